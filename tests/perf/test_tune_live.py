"""`tritune tune` on the real server with the real perf_analyzer: ends, resumes, applies, and says what is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.study import FILE_NAME, read_study
from tooling.config.knobs import Knobs
from tooling.errors import UsageError

pytestmark = pytest.mark.live

CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 64 ] } ]
dynamic_batching { }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model directory in a path with a blank and an accent: FP32 [-1, 64] through a product and a tanh."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 64]) for name in "xy")
    weights = numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Tanh", ["z"], ["y"])]
    graph = helper.make_graph(nodes, "tiny", [x], [y], [weights])
    directory = tmp_path / "dépôt one" / "tiny"
    (directory / "1").mkdir(parents=True)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), directory / "1/model.onnx"
    )
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory


class Tuning:
    """`tritune tune` as a process whose descendants carry a mark in their environment."""

    def __init__(self, *argv: object) -> None:
        self.mark = f"mark-{uuid.uuid4().hex}"
        command = [sys.executable, "-c", "from tooling.cli import entry; entry()", "tune", *map(str, argv)]
        env = {**os.environ, "TEST_MARK": self.mark}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)

    def processes(self) -> dict[int, list[str]]:
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        found[int(entry.name)] = (entry / "cmdline").read_text().split("\0")
        return found

    def server(self) -> int:
        (pid,) = [pid for pid, words in self.processes().items() if words[0].endswith("/tritonserver")]
        return pid

    def ended(self) -> tuple[int, str]:
        """The exit code and stderr, once nothing of the tuning is left (5 seconds are allowed)."""
        out, err = self.process.communicate(timeout=60)
        assert out == ""
        deadline = time.monotonic() + 5
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left == {}
        return self.process.returncode, err


@pytest.fixture
def start() -> Iterator[Callable[..., Tuning]]:
    started: list[Tuning] = []

    def tuning(*argv: object) -> Tuning:
        started.append(Tuning(*argv))
        return started[-1]

    yield tuning
    for one in started:
        one.process.kill()
        one.process.communicate()


def measured(study: Path) -> list[tuple[object, ...]]:
    """What was measured, in order."""
    if not (study / FILE_NAME).exists():
        return []
    runs = [r for r in read_study(study)[1] if r["record"] == "measurement"]
    return [(r["candidate"], r["stage"], r["pair"], r["side"], r["attempt"]) for r in runs]


def wait_for(study: Path, runs: int) -> None:
    deadline = time.monotonic() + 60
    while len(measured(study)) < runs:
        assert time.monotonic() < deadline, "no measurement came"
        time.sleep(0.05)


@pytest.mark.long
def test_interrupted_killed_and_resumed(model: Path, start: Any, run_cli: Any, tmp_path: Path) -> None:
    study, report = tmp_path / "study", tmp_path / "report.html"
    argv = [model, "--study", study, "--concurrency", 4, "--instances", "1,2", "--threads", 1, "--delay", 0]
    argv += ["--direct", "--budget", "1s", "--apply", "--report", report]

    tuning = start(*argv)
    wait_for(study, 1)
    os.killpg(tuning.process.pid, signal.SIGINT)  # as Ctrl-C on a terminal does
    code, err = tuning.ended()
    assert (code, err.splitlines()[-1]) == (130, "interrupted")
    after_interrupt = measured(study)

    tuning = start(*argv)
    wait_for(study, len(after_interrupt) + 1)
    tuning.process.kill()
    assert tuning.ended()[0] == -signal.SIGKILL
    after_kill = measured(study)
    assert after_kill[: len(after_interrupt)] == after_interrupt

    finished = run_cli("tune", *argv)
    assert finished.code == 0, finished.err
    runs = measured(study)
    assert runs[: len(after_kill)] == after_kill
    assert len(set(runs)) == len(runs), "something was measured twice"
    assert "The current config stays" in finished.out
    assert "Not measured within the budget" in finished.out
    assert (model / "configs").is_dir()
    assert "Measured on" in next((model / "configs").iterdir()).read_text()
    assert report.stat().st_size > 1_000

    again = run_cli("tune", *argv, "--json")
    assert (again.code, measured(study)) == (0, runs)
    assert again.json["data"]["runs"] == 4
    assert again.json["data"]["study"] == str(study)
    other = run_cli("tune", *argv, "--seed", 1)
    assert other.code == 2
    assert "the study was made with another `workload.seed` (got 1; expected 0)" in other.err
    assert other.out == ""


@pytest.mark.long
def test_server_that_dies_is_an_external_error_and_the_study_goes_on(model: Path, start: Any, tmp_path: Path) -> None:
    study = tmp_path / "study"
    tuning = start(model, "--direct", "--study", study, "--instances", 1, "--threads", 1, "--delay", 0)
    wait_for(study, 1)
    os.kill(tuning.server(), signal.SIGKILL)
    code, err = tuning.ended()
    assert code == 4, err
    assert "error: tritonserver" in err
    assert "what was measured is kept: the same command goes on from there" in err
    assert measured(study)
    with (study / FILE_NAME).open() as file:
        assert all(json.loads(line) for line in file)


@pytest.mark.long
def test_unmet_limit_shows_the_table_and_exits_1(model: Path, run_cli: Any, tmp_path: Path) -> None:
    argv = ["--direct", "--max-p99", "1us", "--instances", 1, "--threads", 1, "--delay", 0, "--budget", "1s"]
    unmet = run_cli("tune", model, *argv, "--study", tmp_path / "study", "--apply")
    assert unmet.code == 1
    assert "limits not kept" in unmet.out
    assert "No setting measured keeps the limits; nothing is chosen." in unmet.out
    assert not (model / "configs").exists()


@pytest.mark.long
def test_guided_by_the_simulator_it_measures_few_points(model: Path, run_cli: Any, tmp_path: Path) -> None:
    study, report = tmp_path / "study", tmp_path / "report.html"
    argv = ["--study", study, "--concurrency", 4, "--instances", "1,2", "--threads", 1, "--budget", "12s"]
    argv += ["--apply", "--report", report, "--for-rate", 100_000, "--price-per-hour", 1, "--owner", "Ada"]
    found = run_cli("tune", model, *argv, "--json")
    assert found.code == 0, found.err
    data = found.json["data"]
    assert data["points"] <= 12
    assert data["method"]
    if data["findings"]:  # the curve of so small a model is noise at times: then the search was direct, and says so
        assert data["findings"]["simulated"] > 30
        assert data["findings"]["capacity"]["replicas"] > 1
        assert any("batches above 64 rows" in one for one in data["findings"]["not_explored"])
    else:
        assert "no simple law fits" in data["method"]
    assert (study / "curve.json").is_file()
    assert "owner: Ada" in (study / "decision.md").read_text()
    assert json.loads((study / "decision.json").read_text())["assumptions"]
    assert "Time line of the search" in report.read_text()
    runs = measured(study)
    again = run_cli("tune", model, *argv, "--json")
    assert (again.code, measured(study), again.json["data"]["chosen"]) == (0, runs, data["chosen"])


@pytest.mark.long
def test_the_choice_is_looked_at_under_other_traffic_and_when_it_starts(
    run_cli: Any, tmp_path: Path, layered: Any
) -> None:
    model = layered(tmp_path / "repo" / "encoder", 3)
    argv = ["--concurrency", 2, "--instances", 1, "--threads", 1, "--delay", 0, "--direct", "--budget", "150s"]
    argv += ["--objective", "p99"]  # what instances that share their cores surely lose; in requests/s it may be a tie
    done = run_cli("tune", model, *argv, "--study", tmp_path / "study", "--json")
    assert done.code == 0, done.err
    data = done.json["data"]
    if data["chosen"] == "default":
        pytest.fail(f"two instances of every core each were not slower: {data['conclusion']}")
    found = {one["name"]: one for one in data["rechecks"]}
    assert list(found) == ["random arrivals", "bursts", "cold start"]
    assert found["bursts"]["workload"].endswith("in bursts of 8")
    times = [float(t) for t in re.findall(r"([0-9.]+) m?s", found["cold start"]["text"])]
    assert 0.05 < times[0] < 30 and times[1] > 0 and 0 < times[2] < 1_000, found["cold start"]["text"]
    assert data["points"] == 2 + 2 * 2
    runs = measured(tmp_path / "study")
    again = run_cli("tune", model, *argv, "--study", tmp_path / "study")
    assert again.code == 0 and measured(tmp_path / "study") == runs, "all of it is in the study"
    assert found["cold start"]["text"] in again.out


def test_tuned_config_is_what_the_server_loads(model: Path, runtime: Any, tmp_path: Path) -> None:
    from perf.compare import Verdict
    from perf.grid import Candidate
    from perf.result import TuneResult
    from perf.trial import Trial
    from perf.tuned import write_tuned_config
    from tooling.server import EmbeddedServer, ServerFlags, ServerOptions

    knobs = Knobs(max_queue_delay_us=2_000, instance_count=1, intra_op_threads=1)
    chosen = Trial(Candidate("a", knobs), "compared", verdict=Verdict("better", 1.25, 1.2, 1.3, 6))
    default = Trial(Candidate("default", Knobs()), "default")
    facts = {"model": "tiny", "workload": "8 clients", "objective": "highest throughput", "finished": "2026-01-02"}
    result = TuneResult(
        **facts, default=default, trials=(chosen,), chosen=chosen, runs=16, disturbed=0, spent_s=30.0, study=tmp_path
    )
    before = (model / "config.pbtxt").read_bytes()
    path = write_tuned_config(result, model, "cpu-test")
    assert path == model / "configs" / "cpu-test.pbtxt"
    assert "1.25× [1.20–1.30] against the current config in 6 pairs" in path.read_text()
    (where,) = (line.split(": ")[1] for line in path.read_text().splitlines() if line.startswith("# Study: "))
    assert (path.parent / where).samefile(tmp_path), "relative to the file it stands in"
    assert (model / "config.pbtxt").read_bytes() == before
    with EmbeddedServer(model.parent, runtime, ServerOptions(flags=ServerFlags(config_name="cpu-test"))) as server:
        server.load("tiny")
        loaded = server.model_config("tiny")
    assert [g["count"] for g in loaded["instance_group"]] == [1]
    assert loaded["parameters"]["intra_op_thread_count"]["string_value"] == "1"
    assert int(loaded["dynamic_batching"]["max_queue_delay_microseconds"]) == 2_000

    write_tuned_config(replace(result, runs=18), model, "cpu-test")  # its own file it may replace
    path.write_text(path.read_text() + "# mine\n")
    with pytest.raises(UsageError, match="the file is not as tritune wrote it"):
        write_tuned_config(result, model, "cpu-test")


def test_wrong_usage_is_told_before_a_server_starts(
    model: Path, minilm_repository: Path, run_cli: Any, tmp_path: Path
) -> None:
    bare = tmp_path / "repository" / "minilm"
    shutil.copytree(minilm_repository / "minilm", bare, copy_function=os.symlink)
    shutil.rmtree(bare / "tokenizer")
    edited = model / "configs"
    cases = [
        ([bare], "the tokenizer is missing"),
        ([bare, "--lengths", "16"], "the tokenizer is missing"),
        ([model, "--request-rate", 5, "--objective", "throughput"], "cannot be the objective"),
        ([model, "--request-rate", 5, "--concurrency", 5], "exclude each other"),
        ([model, "--distribution", "poisson"], "--distribution: it needs a --request-rate"),
        ([model, "--burst", 4, "--concurrency", 5], "--burst: it needs a --request-rate"),
        ([model, "--instances", "2", "--threads", "-1"], "--threads: not a usable number (got `-1`"),
        ([model, "--max-batch-size", "0"], "switching batching on or off"),
        ([model, "--delay", "2"], "--delay: not a duration"),
        ([model, "--slo", "p98<1ms"], "unknown metric"),
        ([model, "--slo", "p99<1ms", "--max-p99", "1ms"], "--slo excludes"),
        ([model, "--max-p99", "0ms"], "--max-p99: too small (got `0ms`; expected 1us or more)"),
        ([model, "--slo", "cosine>0.9"], "no limit or goal for a model that answers"),
        ([model, "--budget", "1"], "--budget: not a usable number"),
        ([model, "--budget", "soon"], "--budget: not a duration"),
        ([model, "--study", model / "config.pbtxt"], "the study cannot be written"),
        ([tmp_path / "nothing"], "does not exist"),
    ]
    for argv, message in cases:
        said = run_cli("tune", *argv)
        assert (said.code, said.out) == (2, ""), (argv, said)
        assert message in said.err, (argv, said.err)
    assert not edited.exists()


STREAM = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(2):
                time.sleep(0.01)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([float(i)], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STREAM_CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""


@pytest.mark.long
def test_a_python_model_that_streams(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    """Its instances are tried, and it is measured over a stream, which its config says. It waits and computes nothing,
    so that two instances answer two clients twice as fast."""
    version = tmp_path / "repo" / "dec" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(STREAM_CONFIG)
    (version / "model.py").write_text(STREAM)
    argv = [version.parent, "--concurrency", 2, "--instances", "1,2", "--study", tmp_path / "study"]
    found = run_cli("tune", *argv, "--budget", "1s", "--json")
    assert found.code == 0, found.err
    assert "adds -i grpc --async --streaming for decoupled models" in found.err
    data = found.json["data"]
    assert data["method"].startswith("Direct search")
    (two,) = data["trials"]
    assert (two["label"], two["changed"]) == ("2 instances, no batching", ["instance_count"])
    assert two["screen_ratio"] > 1.3, two
    refused = run_cli("tune", *argv[:3], "--threads", 2)
    assert "the python backend has no setting for threads" in refused.err


def test_settings_of_another_backend_are_not_searched(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    version = tmp_path / "net" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "pytorch"\n')
    (version / "model.pt").touch()
    result = run_cli("tune", version.parent)
    assert (result.code, result.out) == (2, "")
    assert "the settings of this backend are not searched (got backend pytorch" in result.err
    assert "`tritune compare current instances=2 --url HOST:PORT`" in result.err
