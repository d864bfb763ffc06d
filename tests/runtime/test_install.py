"""Installing the runtime: which Python it takes, where it refuses, and what a failure or an interruption leaves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tooling.console import Console
from tooling.errors import ExternalError, MissingError, UsageError
from tooling.runtime import find_runtime, install_runtime

INSTALL = "from tooling.cli import entry; entry()"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds nothing: no index, no directory with wheels."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def _python(directory: Path, minor: int, libpython: str | None) -> Path:
    """A program that answers the probe as such a Python would."""
    directory.mkdir(exist_ok=True)
    path = directory / f"python3.{minor}"
    answer = "null" if libpython is None else f'"{libpython}"'
    path.write_text(f"#!/bin/sh\necho '[3, {minor}, {answer}]'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.long
def test_pip_that_fails_is_an_external_error_and_leaves_no_runtime(
    root: Path, no_network: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExternalError) as error:
        install_runtime(Console())
    assert "could not install Python packages" in str(error.value)
    assert "No matching distribution found" in str(error.value)
    assert "network" in str(error.value.problems[0].hint)
    assert "[1/4]" in capsys.readouterr().err
    with pytest.raises(MissingError, match="not installed"):
        find_runtime()


def test_an_interrupted_installation_ends_its_programs_and_leaves_no_runtime(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", INSTALL, "runtime", "install"], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (root / "venv" / "bin" / "python").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 143
    assert not _processes_of(root)
    with pytest.raises(MissingError, match="not installed"):
        find_runtime()


def _processes_of(root: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.append(process.read_text(errors="replace"))
    return [command for command in found if str(root) in command]


def test_a_second_installation_waits_for_the_first_and_takes_its_result(root: Path, finish: Callable[[], Path]) -> None:
    root.mkdir()
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(
            [sys.executable, "-c", INSTALL, "runtime", "install"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == f"waiting for another installation into {root}\n"
            assert not (root / "venv").exists()
            finish()
            fcntl.flock(lock, fcntl.LOCK_UN)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert f"root           {root}\n" in out


def test_an_outdated_python_is_passed_over(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running on one that does not fit, the newest that fits on PATH is taken."""
    from tooling.runtime.install import _choose_python

    monkeypatch.setattr(sys, "executable", str(_python(tmp_path / "running", 13, "/lib/libpython3.13.so.1.0")))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    fitting = _python(tmp_path / "path", 12, "/lib/libpython3.12.so.1.0")
    assert _choose_python().command == str(fitting)


def test_no_python_that_fits(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(_python(tmp_path / "running", 13, None)))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(MissingError, match=r"expected Python 3\.10, 3\.11 or 3\.12"):
        install_runtime(Console())


def test_a_static_python_names_the_package_to_install(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(_python(tmp_path / "running", 11, None)))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(MissingError, match=r"libpython3\.11\.so\.1\.0") as error:
        install_runtime(Console())
    assert "apt install libpython3.11" in str(error.value.problems[0].hint)


def test_a_path_that_cannot_stand_in_PATH(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITUNE_RUNTIME", str(tmp_path / "with:colon"))
    with pytest.raises(UsageError, match="cannot be found") as error:
        install_runtime(Console())
    assert "TRITUNE_RUNTIME" in str(error.value.problems[0].hint)
    assert not (tmp_path / "with:colon").exists()


def test_a_directory_of_somebody_else_is_left_alone(root: Path) -> None:
    (root / "venv").mkdir(parents=True)
    (root / "venv" / "mine").touch()
    with pytest.raises(UsageError, match="holds other files"):
        install_runtime(Console(), force=True)
    assert (root / "venv" / "mine").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITUNE_RUNTIME", str(tmp_path / "file" / "below"))
    with pytest.raises(UsageError, match="cannot be written"):
        install_runtime(Console())


@pytest.mark.live
def test_installing_again_does_nothing(runtime: object) -> None:
    started = time.monotonic()
    assert install_runtime(Console(quiet=True)) == runtime
    assert time.monotonic() - started < 1
