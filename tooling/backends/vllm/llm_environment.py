"""What the engine needs before vLLM is imported: its packages, and the files of the model's version. Layer: backend."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from multiprocessing import resource_tracker
from pathlib import Path

VARIABLE = "TRITUNE_LLM"
"""The environment variable with the directory of the LLM environment (a virtual environment below it)."""

_ARGUMENTS, _ADAPTERS = "model.json", "multi_lora.json"
_MARKER = "llm.json"
_ID = re.compile(r"(?!.*(?:--|\.\.))(\b[\w.-]+\b/)?\b[\w.-]{1,96}\b(/[\w.-]+\.gguf|:[\w.-]+)?")
"""How the id of a model at Hugging Face is spelled."""


class Refusal(Exception):
    """Why the model cannot be loaded."""


def read_arguments(folder):
    """The engine's arguments of a version directory."""
    path = folder / _ARGUMENTS
    if not path.is_file():
        raise Refusal(f"'{_ARGUMENTS}' containing vllm engine args must be provided in '{folder}'")
    try:
        arguments = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"'{path}' cannot be read: {error}") from None
    if not isinstance(arguments, dict):
        raise Refusal(f"'{path}' must hold a JSON object of vllm engine args")
    return arguments


def require_model(folder, arguments):
    """Raise Refusal for a model that is a path at which nothing stands: vLLM would ask Hugging Face for it.

    As in the container a relative path is looked for in the server's working directory, which a stub keeps.
    """
    named = arguments.get("model")
    if not isinstance(named, str) or "://" in named or _ID.fullmatch(named) or Path(named).exists():
        return
    here = "" if Path(named).is_absolute() else f" below '{Path.cwd()}', where the server was started"
    meant = _beside(folder, named)
    raise Refusal(
        f"`model` of '{folder / _ARGUMENTS}' is the path '{named}', and nothing stands there{here}: write the absolute "
        f"path{f' {meant}' if meant else ''}, or a Hugging Face id"
    )


def _beside(folder, named):
    """What a relative path names beside the arguments, which is most likely what was meant."""
    if Path(named).is_absolute():
        return None
    found = (start / named for start in (folder, folder.parent, folder.parent.parent))
    return next((path.resolve() for path in found if path.exists()), None)


def read_adapters(folder, arguments):
    """Paths of the LoRA adapters by name; empty without `enable_lora`."""
    if str(arguments.get("enable_lora", "")).lower() != "true":
        return {}
    arguments["enable_lora"] = True
    path = folder / _ADAPTERS
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise Refusal(f"Triton backend cannot find {path}.") from None
    except (OSError, ValueError, TypeError) as error:
        raise Refusal(f"'{path}' cannot be read: {error}") from None


def use_environment():
    """Put the packages of the LLM environment first, here and in the processes that vLLM starts.

    These run under its Python, through a program that ends them with this process: an engine whose server was killed
    would otherwise serve nobody for ever. Python's resource tracker is started without it, as it has to outlive them
    all to remove the semaphores that killed ones leave in /dev/shm.
    """
    root = Path(os.environ.get(VARIABLE, ""))
    packages = root / "venv" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    if not os.environ.get(VARIABLE) or not (root / _MARKER).is_file() or not packages.is_dir():
        raise Refusal("vLLM is not installed for the embedded server: run `tritune runtime install --llm`")
    sys.path.insert(0, str(packages))
    sys.executable = str(root / "venv" / "bin" / "python")
    multiprocessing.set_executable(sys.executable)
    resource_tracker.ensure_running()
    multiprocessing.set_executable(str(root / "venv" / "bin" / "python-of-server"))
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a fork would copy the stub's locks and shared memory
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # One process computes and schedules: the one more that vLLM starts otherwise takes a third of the time to load.
    # Then it is on us to leave a core to the server and this process.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))
