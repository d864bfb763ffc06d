"""Makes the runtime: virtual environment, backend files, perf_analyzer, and the marker last. Layer: runtime."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tooling.console import Console
from tooling.errors import ExternalError, MissingError, UsageError
from tooling.runtime.location import MARKER, PINS, PYTHON_MINORS, Runtime, find_runtime, root_for, site_packages

_LOCK = ".lock"
_MADE_HERE = (MARKER, "venv", "backends", "python", "perf_analyzer")
_WITHOUT_DEPENDENCIES = ("nvidia-pytriton", "tritonclient")
_PROBE = """
import json, os, sys, sysconfig as c
name = "libpython3.%d.so.1.0" % sys.version_info[1]
lib, arch = c.get_config_var("LIBDIR") or "", c.get_config_var("MULTIARCH") or ""
places = [lib, os.path.join(lib, arch), os.path.join(sys.base_prefix, "lib")]
found = [os.path.join(p, name) for p in places if os.path.isfile(os.path.join(p, name))]
print(json.dumps([sys.version_info[0], sys.version_info[1], found[0] if found else None]))
"""


@dataclass(frozen=True, slots=True)
class _Base:
    """A Python the virtual environment can be made with; `libpython` is None for a statically linked one."""

    command: str
    minor: int
    libpython: str | None


def install_runtime(console: Console, force: bool = False) -> Runtime:
    """Make the runtime unless a valid one is there (`force` makes it anew); a second call at the same time waits.

    Raises MissingError when no Python fits, ExternalError when venv or pip fails (for one, without a network),
    UsageError when the directory cannot be used. An interrupted installation leaves no marker, so it is never taken
    for a runtime.
    """
    if not force and (present := _present()):
        return present
    base = _choose_python()
    root = root_for(base.minor)
    _check_root(root)
    with locked(root, console):
        if not force and (present := _present(root)):
            return present
        _build(root, base, console)
        return find_runtime(root)


def _present(root: Path | None = None) -> Runtime | None:
    try:
        return find_runtime(root)
    except MissingError:
        return None


def _choose_python() -> _Base:
    """The running Python if it fits, else the newest fitting one on PATH; its shared library must exist."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise MissingError("the embedded server runs on Linux x86-64 only", got=f"{sys.platform} {platform.machine()}")
    commands = [sys.executable, *(found for m in PYTHON_MINORS if (found := shutil.which(f"python3.{m}")))]
    static: list[_Base] = []
    for command in commands:
        base = _probe(command)
        if base and base.libpython:
            return base
        static += [base] if base else []
    if static:
        raise MissingError(
            "the shared Python library that the server's Python stub links is missing",
            where=static[0].command,
            got="a statically linked Python",
            expected=f"libpython3.{static[0].minor}.so.1.0",
            hint=f"install `libpython3.{static[0].minor}` (Debian, Ubuntu: `apt install libpython3.{static[0].minor}`)",
        )
    raise MissingError(
        "no Python for the embedded server's runtime",
        got=f"Python {platform.python_version()} running, and none of the others on PATH",
        expected="Python 3.10, 3.11 or 3.12 with its venv module and shared library",
        hint="install one of them, for example `python3.11`, `python3.11-venv` and `libpython3.11`",
    )


def _probe(command: str) -> _Base | None:
    """What `command` is, or None when it does not run or is outside 3.10–3.12."""
    try:
        done = subprocess.run([command, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=20, check=True)
        major, minor, libpython = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _Base(command, minor, libpython) if major == 3 and minor in PYTHON_MINORS else None


def _check_root(root: Path) -> None:
    """Refuse a directory that cannot stand in PATH or that is somebody else's."""
    if os.pathsep in str(root):
        raise UsageError(
            "the runtime cannot be found from this directory",
            where=root,
            got=f"a `{os.pathsep}` in it",
            expected="a path that can stand in PATH",
            hint="set TRITUNE_RUNTIME to another directory",
        )
    if root.is_dir() and any(root.iterdir()) and not (root / _LOCK).exists():
        raise UsageError(
            "the directory holds other files",
            where=root,
            expected="an empty directory, a new one, or an earlier runtime",
            hint="set TRITUNE_RUNTIME to another directory",
        )


@contextmanager
def locked(root: Path, console: Console) -> Iterator[None]:
    """Alone with a runtime's directory, which is made; a second one waits. Raises UsageError where it cannot be."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(
            "the runtime cannot be written here",
            where=root,
            got=error.strerror,
            expected="a writable directory",
            hint="set TRITUNE_RUNTIME to a directory of your own",
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.info(f"waiting for another installation into {root}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _build(root: Path, base: _Base, console: Console) -> None:
    for name in _MADE_HERE:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    python = root / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off"]
    pinned = {name: f"{name}=={version}" for name, version in PINS.items()}
    whole = [pin for name, pin in pinned.items() if name not in _WITHOUT_DEPENDENCIES]
    with console.progress("runtime", 4) as progress:
        run_installer(
            [base.command, "-m", "venv", str(root / "venv")],
            console,
            "make the virtual environment",
            f"install the venv module of this Python (Debian, Ubuntu: `apt install python3.{base.minor}-venv`)",
        )
        progress.step(f"virtual environment on Python 3.{base.minor} made; installing {', '.join(whole)}")
        check = "check the network and pip's configuration, then run `tritune runtime install` again"
        run_installer([*pip, *whole], console, "install Python packages", check)
        server = [pinned[name] for name in _WITHOUT_DEPENDENCIES]
        progress.step(f"installing {', '.join(server)} (about 100 MB)")
        run_installer([*pip, "--no-deps", *server], console, "install tritonserver", check)
        progress.step("packages installed; linking backends and perf_analyzer")
        packages = site_packages(root)
        _link_python_backend(root, packages, base.minor)
        analyzer = _link_perf_analyzer(root, packages)
        marker = {"pins": PINS, "python": f"3.{base.minor}", "libpython": base.libpython, "perf_analyzer": analyzer}
        (root / f"{MARKER}.part").write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        (root / f"{MARKER}.part").replace(root / MARKER)
        progress.step(f"ready in {root}")


def run_installer(command: Sequence[str], console: Console, what: str, hint: str) -> None:
    """Run an installer. Raises ExternalError with its last lines when it fails."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
    tail: deque[str] = deque(maxlen=6)
    with subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                console.detail(line.rstrip())
                tail.append(line.strip())
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the installers start programs of their own
            raise
    if process.returncode:
        raise ExternalError(
            f"could not {what}",
            where=Path(command[0]).name,
            got=f"exit code {process.returncode}: " + " | ".join(filter(None, tail)),
            hint=hint,
        )


def _link_python_backend(root: Path, packages: Path, minor: int) -> None:
    """Triton looks for the stub beside its backend library; the wheel keeps one for each Python elsewhere."""
    shipped = packages / "pytriton" / "tritonserver"
    shutil.copytree(shipped / "backends" / "python", root / "python", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(shipped / "python_backend_stubs" / f"3.{minor}" / "triton_python_backend_stub", root / "python")


def _link_perf_analyzer(root: Path, packages: Path) -> bool:
    """Give perf_analyzer its two libraries under their plain names; true when it then runs on this system."""
    libraries = root / "perf_analyzer"
    libraries.mkdir()
    for name in ("libb64*.so.0d", "libcudart*.so.12*"):
        for found in (packages / "nvidia_pytriton.libs").glob(name):
            stem, _, version = found.name.partition(".so.")
            (libraries / f"{stem.partition('-')[0]}.so.{version.partition('.')[0]}").symlink_to(found)
    binary = root / "venv" / "bin" / "perf_analyzer"
    env = os.environ | {"LD_LIBRARY_PATH": str(libraries)}
    try:
        done = subprocess.run([binary, "--version"], env=env, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return "Perf Analyzer Version" in done.stderr
