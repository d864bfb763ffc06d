"""Building without a GPU: what is missing is said, with the command to run elsewhere; nothing is left behind."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from export.engine.build import _place, build_engine, shell_line, without_plan
from export.engine.request import EngineRequest
from export.engine.trtexec import container_command
from tooling.console import Console
from tooling.errors import ExternalError, MissingError, UsageError
from tooling.repository import alone_in

Make = Callable[..., EngineRequest]
SILENT = Console(quiet=True)


@pytest.fixture(autouse=True)
def _nothing_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_no_builder_at_all(request_for: Make) -> None:
    request = request_for("24.10")
    with pytest.raises(MissingError, match="no trtexec builder here") as raised:
        build_engine(request, "trtexec", "0" * 64, SILENT)
    (problem,) = raised.value.problems
    assert problem.hint == (
        f"run on the machine with the GPU: mkdir -p {request.plan.parent} && {shlex.join(container_command(request))}; "
        f"or serve the ONNX file and let ONNX Runtime build an engine at load: {without_plan(request)}"
    )
    assert not request.plan.parent.exists()


def test_a_builder_without_a_gpu(request_for: Make, tmp_path: Path) -> None:
    """A program of that name is enough: the GPU is asked for first, by nvidia-smi, and that is not there."""
    tool = tmp_path / "empty" / "trtexec"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    request = request_for("24.10")
    with pytest.raises(MissingError, match="no GPU 0 to build the engine on"):
        build_engine(request, None, "0" * 64, SILENT)
    assert not request.plan.parent.exists()


@pytest.mark.parametrize(
    ("answers", "compatible", "error", "said"),
    [
        ("echo 'No devices were found'; exit 6", None, MissingError, r"no GPU 0 .*\(got No devices were found;"),
        ("echo '[N/A]'", None, MissingError, r"\(got \[N/A\];"),
        ("true", None, MissingError, r"\(got no answer of nvidia-smi;"),
        ("echo 7.5", "ampere+", UsageError, r"got compatible=ampere\+ on compute capability 7\.5; expected 8\.0"),
    ],
)
def test_what_the_gpu_says_is_judged_before_the_build(
    request_for: Make, tmp_path: Path, answers: str, compatible: str | None, error: type[Exception], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    for name, script in (("nvidia-smi", answers), ("trtexec", "exit 9")):
        (tmp_path / "empty" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "empty" / name).chmod(0o755)
    request = request_for("24.10", hardware_compatibility=compatible)
    with pytest.raises(error, match=said):
        build_engine(request, "trtexec", "0" * 64, SILENT)
    assert not request.plan.parent.exists()


def test_a_local_trtexec_gets_the_gpu_that_is_asked_for(
    request_for: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nvidia-smi counts, whose answer goes into the sidecar; and it is named when it fails."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    for name, script in (("nvidia-smi", "echo 9.0"), ("trtexec", "env | grep ^CUDA_; exit 9")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    with pytest.raises(ExternalError, match=r"trtexec built no engine \(exit 9\)") as raised:
        build_engine(request_for("24.10", gpu=1), "trtexec", "0" * 64, SILENT)
    said = str(raised.value.problems[0].got)
    assert {"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=1"} <= set(said.splitlines())


def test_docker_mounts_only_what_is_there(request_for: Make, tmp_path: Path) -> None:
    request = request_for("24.10", timing_cache=tmp_path / "new dir" / "timing")
    assert shell_line(request).startswith(f"mkdir -p {request.plan.parent} '{tmp_path}/new dir' && docker run ")


def test_a_plan_of_one_build_never_stands_beside_the_sidecar_of_another(tmp_path: Path) -> None:
    def pair(directory: Path, text: str) -> Path:
        directory.mkdir()
        for name in ("model.plan", "model.plan.json"):
            (directory / name).write_text(text)
        return directory / "model.plan"

    plan, built = pair(tmp_path / "1", "old"), pair(tmp_path / "built", "new")
    with ThreadPoolExecutor(1) as pool:
        with alone_in(plan.parent):
            second = pool.submit(_place, built, plan)
            wait([second], timeout=1)
            assert {path.read_text() for path in plan.parent.iterdir()} == {"old"}
        second.result(timeout=60)
    assert {path.name: path.read_text() for path in plan.parent.iterdir()} == {
        "model.plan": "new",
        "model.plan.json": "new",
    }
