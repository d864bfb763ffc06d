"""`tritune compare` and `tritune study`: from recorded runs, and on the real server with the real perf_analyzer."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.ab import CompareRequest, compare
from perf.measurement import Measurement
from perf.operands import base_of, sides
from perf.study import FILE_NAME, read_study
from perf.target import EmbeddedTarget
from perf.workload import Workload
from tooling.console import Console
from tooling.errors import UsageError
from tooling.server import EmbeddedServer

CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "sleep_ms" value { string_value: "4" } }
"""
MODEL = """
import json, time
import triton_python_backend_utils as utils

class TritonPythonModel:
    def initialize(self, args):
        self.sleep_s = float(json.loads(args["model_config"])["parameters"]["sleep_ms"]["string_value"]) / 1e3

    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep(self.sleep_s)
            x = utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(utils.InferenceResponse([utils.Tensor("y", x)]))
        return answers
"""
SLOWER = "parameters[sleep_ms]=6"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that sleeps 4 ms a request, in a path with a blank and an accent."""
    directory = tmp_path / "dépôt one" / "sleeper"
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(MODEL)
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory


class Analyzer:
    """Gives what a perf_analyzer with these speeds would report; what runs is recorded, no server is asked."""

    version, source = "2.51.0", "recorded"

    def __init__(self, speeds: dict[str, float], others: float = 0.1) -> None:
        self.speeds, self.others, self.asked = speeds, others, list[str]()

    def measure(self, name: str, *_: Any, **__: Any) -> Measurement:
        self.asked.append(name)
        rps = self.speeds[name] * (1 + 0.004 * (-1) ** len(self.asked))
        latency = 8e6 / rps
        figures = {"throughput_rps": rps, "avg_us": latency, "p50_us": latency, "p99_us": latency, "requests": 300}
        return Measurement(
            status="ok", load={"mode": "concurrency", "value": 8}, wall_s=1.0, foreign_cores=self.others, **figures
        )


class Target(EmbeddedTarget):
    """Serves nothing, so that recorded speeds can be compared."""

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def url(self) -> str:
        return "recorded"

    @property
    def pid(self) -> int:
        return 0

    def serve(self, variant: Any) -> Any:
        from perf.target import Served

        return Served(variant.id, fresh=False)

    def hold(self, *variants: Any) -> None: ...

    def scatter(self) -> None: ...

    def check(self, name: str) -> None: ...


def ask(
    model: Path, study: Path, speeds: dict[str, float], *others: str, budget_s: float = 600
) -> tuple[Any, Analyzer]:
    words = [str(model), *others]
    base = base_of(words, None)
    analyzer = Analyzer(speeds)
    request = CompareRequest(base, sides(words, base), Workload(concurrency=8), budget_s=budget_s, study=study)
    target = Target(model.parent, None)  # type: ignore[arg-type]
    return compare(request, target=target, analyzer=analyzer, console=Console(quiet=True)), analyzer  # type: ignore[arg-type]


def test_each_side_is_compared_with_the_first(model: Path, tmp_path: Path, run_cli: Any) -> None:
    study, others = tmp_path / "study", (str(model), SLOWER, "batching=on,delay=2ms")
    speeds = {"A": 200.0, "B1": 200.0, "B2": 150.0, "B3": 240.0}
    result, _ = ask(model, study, speeds, *others)
    assert [one.verdict.outcome for one in result.compared] == ["tie", "worse", "better"]
    assert [one.identical for one in result.compared] == [True, False, False]
    assert [one.verdict.pairs for one in result.compared] == [6, 6, 6]
    assert (result.decided, result.winner, result.runs) == (True, "B3", 24), "rounds that share the runs of A"
    assert "A wins: B2 is worse than A, 0.75× [0.7" in result.text()
    assert "B1 is identical with A: tie (within ±3%), 1.00×" in result.text()

    again, asked = ask(model, study, speeds, *others)
    assert asked.asked == [], "a finished comparison measures nothing"
    assert again == result

    assert run_cli("study", "best", study).out.splitlines()[0] == others[2]
    shown = run_cli("study", "show", study)
    assert result.text() in shown.out
    assert "session: " in shown.out
    rows = list(csv.DictReader(io.StringIO(run_cli("study", "rows", study, "--csv").out)))
    assert len(rows) == 24
    assert {row["setting"] for row in rows} == {str(model), *others}
    assert rows[0]["throughput_rps"] == str(again.compared[0].against.throughput_rps.high)
    assert (rows[0]["status"], rows[0]["requests"], rows[0]["server_us"]) == ("ok", "300", "")
    figures = {"inference_count", "execution_count", "mean_batch", "failed", "planned_p99_us", "ttft_p95_us", "wall_s"}
    assert rows[0].keys() > figures, "every figure, given or not"
    frontier = run_cli("study", "frontier", study, "--json").json["data"]["settings"]
    assert [one["label"] for one in frontier] == [others[2]]


def test_the_budget_bounds_it_and_a_larger_one_goes_on(model: Path, tmp_path: Path, run_cli: Any) -> None:
    study, speeds = tmp_path / "study", {"A": 200.0, "B1": 150.0}
    result, _ = ask(model, study, speeds, SLOWER, budget_s=10)
    assert (result.decided, result.runs) == (False, 0)
    assert "B1 was not compared within the time budget" in result.text()
    best = run_cli("study", "best", study)
    assert (best.code, best.out) == (1, "")
    assert run_cli("study", "frontier", study).out == "nothing was measured yet\n"
    result, _ = ask(model, study, speeds, SLOWER)
    assert result.compared[0].verdict.outcome == "worse"
    assert run_cli("study", "best", study).out.startswith(str(model))


def test_no_winner_is_named_on_a_host_that_others_use(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("perf.ab.usable_cores", lambda: 2)
    words = [str(model), SLOWER]
    base = base_of(words, None)
    for others, winner in ((0.9, "default"), (1.1, None)):
        request = CompareRequest(base, sides(words, base), Workload(concurrency=8), study=tmp_path / str(others))
        target: Any = Target(model.parent, None)  # type: ignore[arg-type]
        analyzer: Any = Analyzer({"A": 200.0, "B1": 150.0}, others)
        result = compare(request, target=target, analyzer=analyzer, console=Console(quiet=True))
        assert result.compared[0].verdict is not None
        assert result.compared[0].verdict.outcome == "worse"
        assert (result.winner, result.decided) == (winner, winner is not None)
        assert ("No winner is named: other programs used 1.1 of 2 cores" in result.text()) == (winner is None)
        assert (" wins: " in result.text()) == (winner is not None)


def test_another_model_or_config_is_another_study(model: Path, tmp_path: Path, capfd: Any) -> None:
    study = tmp_path / "study"
    ask(model, study, {"A": 200.0, "B1": 150.0}, SLOWER)
    (model / "1" / "model.py").write_text(MODEL + "# changed\n")
    with pytest.raises(UsageError, match=r"the study was made with another `digests\.A`"):
        ask(model, study, {"A": 200.0, "B1": 150.0}, SLOWER)


def test_a_study_by_default_tells_what_changed(model: Path, tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    first, _ = ask(model, None, {"A": 200.0, "B1": 150.0}, SLOWER)  # type: ignore[arg-type]
    assert ask(model, None, {"A": 200.0, "B1": 150.0}, SLOWER)[0].study == first.study  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""
    (model / "config.pbtxt").write_text(CONFIG.replace('"4"', '"5"'))
    second, analyzer = ask(model, None, {"A": 200.0, "B1": 150.0}, SLOWER)  # type: ignore[arg-type]
    assert second.study != first.study
    assert analyzer.asked
    err = capfd.readouterr().err
    assert "a new study begins: since" in err
    assert "other `digests.A`" in err


def test_a_run_in_which_the_clock_was_set_is_measured_again(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    offset_s = 0.0
    monkeypatch.setattr("perf.bench.time.time", lambda: time.monotonic() + offset_s)
    words = [str(model), SLOWER]
    base, steps = base_of(words, None), iter([0, 0, -3600, 0, 0.4])

    class Stepped(Analyzer):
        def measure(self, name: str, *_: Any, **__: Any) -> Measurement:
            nonlocal offset_s
            offset_s += (step := next(steps, 0))
            point = super().measure(name)
            return replace(point, throughput_rps=0.01) if step else point

    analyzer: Any = Stepped({"A": 200.0, "B1": 150.0})
    request = CompareRequest(base, sides(words, base), Workload(concurrency=8), budget_s=600, study=tmp_path / "study")
    target: Any = Target(model.parent, None)  # type: ignore[arg-type]
    result = compare(request, target=target, analyzer=analyzer, console=Console(quiet=True))
    assert result.compared[0].verdict is not None
    assert 0.7 < result.compared[0].verdict.low < result.compared[0].verdict.high < 0.8
    assert len(analyzer.asked) == 1 + 12 + 2, "the window, six pairs, and two again"


def test_damaged_and_foreign_studies_are_told(tmp_path: Path, model: Path, run_cli: Any) -> None:
    assert "no study here" in run_cli("study", "show", tmp_path).err
    study = tmp_path / "study"
    ask(model, study, {"A": 200.0, "B1": 150.0}, SLOWER)
    file = study / FILE_NAME
    text = file.read_text()
    file.write_text(text.replace('"compared": [{', '"compared": [{"x": {}}, {'))
    said = run_cli("study", "best", study)
    assert (said.code, said.out) == (2, "")
    assert "the study is damaged: its result is not whole" in said.err
    file.write_text(text.replace('"schema_version": 2', '"schema_version": 3'))
    assert "in a newer format (got schema_version 3; expected 2)" in run_cli("study", "show", study).err


@pytest.mark.long
@pytest.mark.live
def test_a_model_against_itself_has_no_winner(model: Path, tmp_path: Path, run_cli: Any) -> None:
    """How often the rule errs between equal sides is for `benchmarks/ab_errors.py`: here one run may."""
    study = tmp_path / "study"
    argv = ["compare", model, model, "--concurrency", 2, "--study", study]
    found = run_cli(*argv, "--json")
    data = found.json["data"]
    (one,) = data["compared"]
    assert one["identical"]
    assert data["winner"] is None
    assert data["foreign_cores"] >= 0
    if not data["too_busy"]:
        assert found.code == (0 if one["verdict"]["outcome"] == "tie" else 1), found.err
        assert 0.85 < one["verdict"]["ratio"] < 1.15
    assert 20 < one["figures"]["throughput_rps"]["middle"] < 250, "at best a request in 4 ms"
    runs = [r for r in read_study(study)[1] if r["record"] == "measurement"]
    assert all((study / r["raw"] / "stdout.txt").is_file() for r in runs)
    assert run_cli(*argv).code == found.code
    assert len([r for r in read_study(study)[1] if r["record"] == "measurement"]) == len(runs)


@pytest.fixture
def running(model: Path, runtime: Any) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(model.parent, runtime) as server:
        server.load("sleeper")
        yield server


@pytest.mark.live
@pytest.mark.long
def test_a_slower_config_on_a_running_server(
    model: Path, running: EmbeddedServer, run_cli: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    before = running.model_config("sleeper")
    argv = ["compare", "--url", running.http_url, "current", SLOWER, "--concurrency", 2, "--budget", "90s"]
    only = run_cli(*argv)
    assert only.code == 2
    assert "a running server is only measured as it is" in only.err
    assert "study" not in only.err, "it is told before anything is measured"
    found = run_cli(*argv, "--allow-reconfigure", "--json")
    assert found.code == 0, found.err
    (one,) = found.json["data"]["compared"]
    assert one["verdict"]["outcome"] == "worse"
    assert 0.6 < one["verdict"]["ratio"] < 0.75, "4 ms against 6 ms"
    assert found.json["data"]["foreign_cores"] is None
    assert running.model_config("sleeper") == before
    assert not list((tmp_path / "state").rglob("*.json"))
    with (Path(found.json["data"]["study"]) / FILE_NAME).open() as file:
        assert json.loads(file.readline())["server"]["url"] == running.http_url
