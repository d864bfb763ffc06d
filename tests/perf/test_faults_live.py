"""What breaks while a comparison measures: right status, study intact, nothing orphaned, and it goes on from there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perf.study import FILE_NAME, read_study
from tooling.errors import ExternalError
from tooling.server import EmbeddedServer, ServerOptions

pytestmark = [pytest.mark.live, pytest.mark.long]

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching {}
"""


def add_model(repository: Path, name: str) -> Path:
    """FP32 [-1, 2] → its double."""
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["batch", 2]) for tensor in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), directory / "1/model.onnx"
    )
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return add_model(tmp_path / "dépôt one", "double")


class Run:
    """`tritune compare` as a process whose descendants carry a mark in their environment."""

    def __init__(self, *argv: object, wrapped: tuple[str, ...] = (), **env: str) -> None:
        self.mark = f"mark-{uuid.uuid4().hex}"
        command = [*wrapped, sys.executable, "-c", "from tooling.cli import entry; entry()", "compare", *map(str, argv)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "TEST_MARK": self.mark, **env}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)

    def processes(self) -> dict[int, str]:
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found[int(entry.name)] = (entry / "cmdline").read_text().split("\0")[0]
        return found

    def one(self, program: str) -> int:
        """The process of a program, once there is one."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = [pid for pid, name in self.processes().items() if name.endswith(program)]
            if found:
                return found[0]
            time.sleep(0.005)
        raise AssertionError(f"no {program} came")

    def ended(self, within_s: float = 90) -> tuple[int, str, str]:
        """Exit code, stdout and stderr, once nothing of it is left (5 seconds are allowed)."""
        out, err = self.process.communicate(timeout=within_s)
        deadline = time.monotonic() + 5
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == {}
        return self.process.returncode, out, err


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def run(*argv: object, **options: Any) -> Run:
        started.append(Run(*argv, **options))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.communicate()


def measured(study: Path) -> list[tuple[object, ...]]:
    """What was measured, in order; every line must be whole."""
    if not (study / FILE_NAME).exists():
        return []
    assert all(json.loads(line) for line in (study / FILE_NAME).read_text().splitlines())
    runs = [r for r in read_study(study)[1] if r["record"] == "measurement"]
    return [(r["candidate"], r["pair"], r["side"], r["attempt"]) for r in runs]


def wait_for(study: Path, runs: int) -> None:
    deadline = time.monotonic() + 60
    while len(measured(study)) < runs:
        assert time.monotonic() < deadline, "no measurement came"
        time.sleep(0.05)


def test_server_killed_then_perf_analyzer_killed_then_finished(model: Path, start: Any, tmp_path: Path) -> None:
    study = tmp_path / "study"
    argv = [model, "delay=1ms", "--study", study, "--concurrency", 2, "--budget", "30s"]
    run = start(*argv)
    wait_for(study, 2)
    os.kill(run.one("/tritonserver"), signal.SIGKILL)
    code, out, err = run.ended()
    assert (code, out) == (4, "")
    assert "what was measured is kept: the same command goes on from there" in err
    first = measured(study)
    assert len(first) >= 2

    run = start(*argv)
    wait_for(study, len(first) + 1)
    os.kill(run.one("/perf_analyzer"), signal.SIGKILL)
    code, out, err = run.ended()
    (aborted,) = [r for r in read_study(study)[1] if r["record"] == "aborted"]
    lost = aborted["measurement"]
    assert (lost["status"], "perf_analyzer died of SIGKILL" in lost["message"]) == ("crashed", True)
    if aborted["attempt"] == 1:  # else the first of the two runs counts
        assert code in (1, 4), "of B a failed side, of A a failed program"
        assert "perf_analyzer died of SIGKILL" in out + err
    second = measured(study)
    assert second[: len(first)] == first

    run = start(*argv)
    code, out, err = run.ended()
    assert code in (0, 1), err
    runs = measured(study)
    assert runs[: len(second)] == second
    assert len(set(runs)) == len(runs), "something was measured twice"
    assert "against A" in out


def test_server_stopped(model: Path, start: Any, tmp_path: Path) -> None:
    """It holds its connections and never answers: perf_analyzer is ended at its deadline, and so is the server."""
    study = tmp_path / "study"
    run = start(model, "delay=1ms", "--study", study, "--concurrency", 2)
    wait_for(study, 1)
    run.one("/perf_analyzer")
    os.kill(run.one("/tritonserver"), signal.SIGSTOP)
    code, out, err = run.ended(within_s=120)
    assert (code, out) == (4, "")
    assert "tritonserver did not answer within 10 s" in err
    records = read_study(study)[1]
    assert all(r["measurement"]["status"] == "ok" for r in records if r["record"] == "measurement")


def test_disk_full(model: Path, start: Any, tmp_path: Path) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=160k tmpfs "$1" && kept=$2 && disk=$1 && shift 2; "$@"; code=$?; '
    script += 'cp "$disk"/study/*.jsonl "$kept"; exit $code'
    argv = (model, "delay=1ms", "--study", disk / "study", "--concurrency", 2)
    run = start(*argv, wrapped=("unshare", "-rm", "sh", "-c", script, "sh", str(disk), str(kept)))
    code, out, err = run.ended()
    assert (code, out) == (2, ""), err
    assert "cannot be written (got No space left on device" in err
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert lines[0]["record"] == "header"
    assert kept.read_bytes().endswith(b"\n")

    study = tmp_path / "study"
    study.mkdir()
    shutil.copy(kept, study / FILE_NAME)
    run = start(model, "delay=1ms", "--study", study, "--concurrency", 2, "--budget", "1s")
    assert run.ended()[0] in (0, 1), "with room it goes on"


@pytest.mark.parametrize("name", ["double", "other"])
def test_running_server_replaced_on_its_port(model: Path, start: Any, tmp_path: Path, runtime: Any, name: str) -> None:
    """The one that is measured is killed; another one, with the same model or with others, takes its port."""
    study = tmp_path / "study"
    with EmbeddedServer(model.parent, runtime) as first:
        first.load("double")
        port = int(first.http_url.rpartition(":")[2])
        run = start("current", "current", "--url", first.http_url, "--study", study, "--concurrency", 2)
        wait_for(study, 2)
        os.kill(first.pid, signal.SIGKILL)
        with pytest.raises(ExternalError, match="was killed by SIGKILL"):
            first.stats("double")
        add_model(tmp_path / "others", name)
        with EmbeddedServer(tmp_path / "others", runtime, ServerOptions(http_port=port)) as second:
            second.load(name)
            code, out, err = run.ended()
    assert (code, out) == (4, "")
    assert any(said in err for said in ("the server went away", "another server", "the model is gone"))
    assert len(measured(study)) >= 2
