"""`tritune doctor`: the real machine is ready; each missing part is named with its fix and its exit code."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tooling.cli import capabilities


def by_name(result) -> dict:
    return {c["name"]: c for c in result.json["data"]["capabilities"]}


@pytest.mark.live
def test_this_machine_can_do_the_main_job(run_cli) -> None:
    result = run_cli("doctor", "--json")
    assert result.code == 0
    assert result.json["data"]["ready"] is True
    found = by_name(result)
    assert "2.51.0" in found["tritonserver"]["detail"]
    assert found["server numpy"]["detail"] == "1.26.4"
    assert found["perf_analyzer"]["state"] == "ok"


def test_without_the_runtime_it_says_what_to_run(run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITUNE_RUNTIME", str(tmp_path / "none"))
    result = run_cli("doctor")
    assert result.code == 3
    assert "fix tritonserver: run `tritune runtime install`" in result.out
    assert "The main job cannot run here: tritonserver" in result.out


def test_both_onnxruntimes_are_refused(run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(name: str) -> str:
        return "1.32.0" if name.startswith("onnxruntime") else version(name)

    monkeypatch.setattr(capabilities, "version", both)
    result = run_cli("doctor", "--json")
    assert result.code == 3
    assert by_name(result)["onnxruntime"]["state"] == "wrong"
    assert "pip uninstall onnxruntime onnxruntime-gpu" in by_name(result)["onnxruntime"]["fix"]


def test_a_missing_export_library_is_named(run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = capabilities.find_spec
    monkeypatch.setattr(capabilities, "find_spec", lambda name: None if name == "torch" else real(name))
    result = run_cli("doctor", "--json")
    assert result.code == 3
    assert by_name(result)["export"]["detail"] == "not installed: torch"


def test_without_numba_the_simulator_is_slow(run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> str:
        if name == "numba":
            raise PackageNotFoundError(name)
        return version(name)

    assert by_name(run_cli("doctor", "--json"))["simulator"]["detail"] == f"compiled by numba {version('numba')}"
    monkeypatch.setattr(capabilities, "version", without)
    found = by_name(run_cli("doctor", "--json"))["simulator"]
    assert (found["state"], found["needed"]) == ("missing", False)
    assert "tritune[tune]" in found["fix"]


@pytest.mark.parametrize(
    ("driver", "state", "detail"),
    [
        ("560.35.03", "ok", "560.35.03"),
        ("525.60.13", "ok", "525.60.13"),
        ("470.199", "wrong", "tritonserver:24.10 needs a newer driver than 470: 525 (CUDA 12.6.2)"),
    ],
)
def test_a_gpu_and_its_driver(
    driver: str, state: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncase $1 in *driver*) echo {driver};; *) echo 'NVIDIA H200, 143771 MiB';; esac\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    gpu, found = capabilities._gpu()
    assert (gpu.state, gpu.detail) == ("ok", "NVIDIA H200, 143771 MiB")
    assert (found.state, found.detail) == (state, detail)
    assert (found.fix is None) == (state == "ok")


def test_an_absent_package_has_no_version() -> None:
    assert capabilities._installed("surely-not-installed") is None
    with pytest.raises(PackageNotFoundError):
        version("surely-not-installed")
