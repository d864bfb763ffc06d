"""Finding the runtime: what is accepted, what is refused and with which fix, on directories with the real layout."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tooling.errors import MissingError
from tooling.runtime import Runtime, default_root, find_runtime
from tooling.runtime.location import BACKENDS_SOURCE, site_packages


def _refusal(hint: str = "tritune runtime install --force") -> tuple[str, str]:
    with pytest.raises(MissingError) as error:
        find_runtime()
    assert error.value.exit_code == 3
    assert hint in str(error.value.problems[0].hint)
    return error.value.problems[0].what, str(error.value)


def _set_version(installed: Path, package: str, version: str) -> None:
    [metadata] = site_packages(installed).glob(f"{package}-*.dist-info")
    metadata.rename(metadata.with_name(f"{package}-{version}.dist-info"))


def test_a_complete_runtime_is_found(installed: Path) -> None:
    runtime = find_runtime()
    assert runtime.root == installed == default_root()
    assert runtime.python == installed / "venv" / "bin" / "python"
    assert runtime.libraries == (site_packages(installed) / "nvidia_pytriton.libs", installed / "lib")
    assert runtime.perf_analyzer == installed / "venv" / "bin" / "perf_analyzer"


def test_nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITUNE_RUNTIME", str(tmp_path / "none"))
    assert "not installed" in _refusal("run `tritune runtime install`")[0]


def test_an_interrupted_installation_is_no_runtime(installed: Path) -> None:
    (installed / "runtime.json").unlink()
    assert "not installed" in _refusal("run `tritune runtime install`")[0]


@pytest.mark.parametrize("text", ["{", "[]", '"text"', "{}", '{"pins": {}}'])
def test_an_unreadable_or_older_marker(installed: Path, text: str) -> None:
    (installed / "runtime.json").write_text(text)
    assert "runtime" in _refusal("run `tritune runtime install")[0]


@pytest.mark.parametrize("version", ["2.0.0", "2.4.6", "3.0.0rc1"])
def test_numpy_2_names_the_version_and_the_fix(installed: Path, version: str) -> None:
    _set_version(installed, "numpy", version)
    what, message = _refusal()
    assert "corrupts tensors" in what
    assert f"got numpy {version}; expected numpy 1.26.4" in message


def test_another_onnxruntime_is_refused(installed: Path) -> None:
    _set_version(installed, "onnxruntime", "1.20.1")
    assert "got onnxruntime 1.20.1; expected onnxruntime 1.19.2" in _refusal()[1]


def test_a_removed_package_is_refused(installed: Path) -> None:
    _set_version(installed, "tokenizers", "0")
    [metadata] = site_packages(installed).glob("tokenizers-*.dist-info")
    (metadata / "METADATA").unlink()
    metadata.rmdir()
    assert "got tokenizers missing" in _refusal()[1]


@pytest.mark.parametrize(
    "path",
    [
        "venv/bin/python",
        "lib/libpython3.11.so.1.0",
        "python/triton_python_backend_stub",
        "python/libtriton_python.so",
        "venv/lib/python3.11/site-packages/pytriton/tritonserver/bin/tritonserver",
    ],
)
def test_a_missing_file_is_named(installed: Path, path: str) -> None:
    (installed / path).unlink()
    what, message = _refusal()
    assert "incomplete" in what
    assert f"got no {installed / path}" in message


def test_a_python_that_was_uninstalled(installed: Path) -> None:
    """The environment's `python` is a link: it dangles when the Python it was made with is gone."""
    python = installed / "venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(installed / "gone")
    assert f"got no {python}" in _refusal()[1]


def test_no_perf_analyzer_is_no_failure(installed: Path) -> None:
    (installed / "venv" / "bin" / "perf_analyzer").unlink()
    assert find_runtime().perf_analyzer is None


def test_backends_are_those_of_this_package(installed: Path) -> None:
    backends = find_runtime().backends
    shipped = {file.relative_to(BACKENDS_SOURCE) for file in BACKENDS_SOURCE.rglob("*.py")}
    assert {Path("onnxruntime/model.py")} <= shipped
    assert all((backends / name).read_bytes() == (BACKENDS_SOURCE / name).read_bytes() for name in shipped)
    assert (backends / "python" / "triton_python_backend_stub").exists()


def test_changed_backend_files_are_followed_and_older_ones_stay(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    before = find_runtime().backends
    assert find_runtime().backends == before
    changed = shutil.copytree(BACKENDS_SOURCE, tmp_path / "changed")
    (changed / "onnxruntime" / "model.py").write_text("# changed\n")
    monkeypatch.setattr("tooling.runtime.location.BACKENDS_SOURCE", changed)
    after = find_runtime().backends
    assert (after / "onnxruntime" / "model.py").read_text() == "# changed\n"
    assert (before / "onnxruntime" / "model.py").read_text() != "# changed\n"
    assert not [entry for entry in before.parent.iterdir() if entry.name.startswith(".staged")]


def test_environment_of_the_server(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    monkeypatch.setenv("PATH", "/usr/bin")
    runtime = find_runtime()
    env = runtime.env()
    assert env["PATH"].split(os.pathsep) == [
        str(runtime.python.parent),
        "/usr/bin",
        *os.defpath.split(os.pathsep),
    ]
    assert env["LD_LIBRARY_PATH"].split(os.pathsep) == [*map(str, runtime.libraries), "/mine"]
    assert "PYTHONPATH" not in env
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert runtime.perf_analyzer_env()["LD_LIBRARY_PATH"].split(os.pathsep) == [
        str(installed / "perf_analyzer"),
        "/mine",
    ]


def test_without_the_variable_the_users_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITUNE_RUNTIME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root().parent == tmp_path / "tritune"
    assert default_root().name.startswith("runtime-24.10-py3.1")
    finished = tmp_path / "tritune" / "runtime-24.10-py3.10"
    finished.mkdir(parents=True)
    (finished / "runtime.json").touch()
    assert default_root() == finished


@pytest.mark.live
def test_the_real_one_is_valid_and_found_fast(runtime: Runtime) -> None:
    started = time.perf_counter()
    again = find_runtime()
    assert time.perf_counter() - started < 0.05
    assert again == runtime


@pytest.mark.live
def test_the_bundled_perf_analyzer_runs(runtime: Runtime) -> None:
    import subprocess

    assert runtime.perf_analyzer is not None
    done = subprocess.run(
        [runtime.perf_analyzer, "--version"],
        env=runtime.perf_analyzer_env(),
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert "Perf Analyzer Version 2.51.0" in done.stderr


def test_commands(installed: Path, run_cli: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run_cli("runtime", "show")
    assert code == 0
    assert f"tritonserver   {site_packages(installed) / 'pytriton/tritonserver/bin/tritonserver'}" in out.splitlines()
    assert run_cli("runtime", "install")[0] == 0  # nothing to do
    _set_version(installed, "numpy", "2.1.0")
    code, out, err = run_cli("runtime", "show")
    assert (code, out) == (3, "")
    assert "numpy 2.1.0" in err
    assert "hint: run `tritune runtime install --force`" in err
