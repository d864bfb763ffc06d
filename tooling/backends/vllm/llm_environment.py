"""What the engine needs before vLLM is imported: its packages, and the files of the model's version. Layer: backend."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from multiprocessing import resource_tracker
from pathlib import Path

VARIABLE = "TRITUNE_LLM"
"""The environment variable with the directory of the LLM environment (a virtual environment below it)."""

ARGUMENTS = "model.json"
_ADAPTERS = "multi_lora.json"
_MARKER = "llm.json"


class Refusal(Exception):
    """Why the model cannot be loaded."""


def read_arguments(folder):
    """The engine's arguments of a version directory."""
    path = folder / ARGUMENTS
    if not path.is_file():
        raise Refusal(f"'{ARGUMENTS}' containing vllm engine args must be provided in '{folder}'")
    return _object(path, "vllm engine args")


def read_adapters(folder, arguments):
    """Paths of the LoRA adapters by name; empty without `enable_lora`."""
    if str(arguments.get("enable_lora", "")).lower() != "true":
        return {}
    arguments["enable_lora"] = True
    path = folder / _ADAPTERS
    if not path.exists():
        raise Refusal(f"Triton backend cannot find {path}.")
    adapters = _object(path, "adapters' names and paths")
    for name, place in adapters.items():
        if not isinstance(place, str):
            got = f"the path of '{name}' is {json.dumps(place)[:60]}"
            raise Refusal(f"'{path}' must hold adapters' names and paths, and {got}")
    return adapters


def _object(path, what):
    """The JSON object of a file."""
    try:
        content = path.read_text(encoding="utf-8")
        found = json.loads(content) if content.strip() else None
    except (OSError, ValueError, RecursionError) as error:
        raise Refusal(f"'{path}' must hold a JSON object of {what}, and cannot be read: {error}") from None
    if not isinstance(found, dict):
        got = f"holds {json.dumps(found)[:60]}" if content.strip() else "is empty"
        raise Refusal(f"'{path}' must hold a JSON object of {what}, and {got}")
    return found


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
