"""Several models on one server: tuned under the traffic of all, by weight."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perf.compare import Verdict
from perf.grid import Candidate
from perf.several import ModelOutcome, Several
from perf.studies import StudyFile
from perf.tuned import write_settings
from tooling.config.knobs import Knobs
from tooling.errors import UsageError
from tooling.repository import alone_in

CHANGED = Candidate("i1", Knobs(instance_count=1), ("instance_count",))


def answer(outcome: str = "better", kept: bool | None = None) -> Several:
    verdict = Verdict(outcome, 1.5, 1.4, 1.6, 6)  # type: ignore[arg-type]
    models = (ModelOutcome("a", 2.0, CHANGED, None, None), ModelOutcome("b", 1.0, CHANGED, None, None))
    return Several("4 clients", "highest throughput", models, verdict, kept, 20, 61.5, Path("study"), ("b: x",))


def test_the_answer_in_words() -> None:
    assert answer().conclusion == "Chosen: 1.50× [1.40–1.60] for all together, by weight, in 6 pairs."
    assert answer("tie").conclusion.startswith("The current configs stay: undecided")
    missed = answer(kept=False)
    assert not missed.taken and not missed.met and "A limit is missed with the best setting" in missed.conclusion
    none = replace(answer(), verdict=None)
    assert not none.taken and none.met and "no setting measured was better" in none.conclusion
    assert "Not measured within the budget: b: x." in answer().text()


def test_the_answer_survives_json() -> None:
    made = answer(kept=True)
    assert Several.from_dict(json.loads(json.dumps(made.to_dict())), made.study) == made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--weight", "other=2"], "no model of this name is tuned"),
        (["--weight", "one=0"], "a number above 0"),
        (["--weight", "one"], "a number above 0"),
        (["--url", "127.0.0.1:1"], "this is for one model"),
        (["--also", "instances=2", "--owner", "ann"], "--owner, --also: this is for one model"),
    ],
)
def test_wrong_usage_is_told(words: list[str], said: str, layered: Any, tmp_path: Path, run_cli: Any) -> None:
    one, two = (layered(tmp_path / "repo" / name, 0) for name in ("one", "two"))
    done = run_cli("tune", one, two, *words)
    assert (done.code, done.out) == (2, "") and said in done.err
    alone = run_cli("tune", one, "--weight", "one=2")
    assert alone.code == 2 and "there is only one model" in alone.err


def test_models_must_share_a_repository(layered: Any, tmp_path: Path, run_cli: Any) -> None:
    one, two = layered(tmp_path / "here" / "one", 0), layered(tmp_path / "there" / "two", 0)
    done = run_cli("tune", one, two)
    assert done.code == 2 and "models of several repositories cannot share a server" in done.err
    twice = run_cli("tune", one, one)
    assert twice.code == 2 and "a model is named twice" in twice.err


@pytest.mark.live
@pytest.mark.long
def test_two_models_are_tuned_as_they_share_the_cores(layered: Any, tmp_path: Path, run_cli: Any) -> None:
    """Each has two instances of every core by default, so the two crowd each other out."""
    one, two = layered(tmp_path / "re po" / "one", 3), layered(tmp_path / "re po" / "two", 2)
    argv = ["--weight", "two=3", "--concurrency", 2, "--instances", 1, "--threads", 1, "--delay", 0]
    argv += ["--study", tmp_path / "study", "--budget", "4m", "--apply"]
    done = run_cli("tune", one, two, *argv, "--json")
    assert done.code == 0, done.err
    data = done.json["data"]
    assert [(m["name"], m["weight"]) for m in data["models"]] == [("one", 1.0), ("two", 3.0)]
    if data["taken"]:
        changed = {m["name"] for m in data["models"] if m["setting"]["changed"]}
        assert {Path(path).parents[1].name for path in data["configs"]} == changed
        assert data["verdict"]["low"] > 1
        assert all(m["after"]["requests"] > 10 for m in data["models"])
    study = StudyFile(tmp_path / "study")
    rows = list(study.rows())
    assert {row["model"] for row in rows} == {"one", "two"} and len(rows) == 2 * data["runs"]
    first, second = (datetime.fromisoformat(row["started"]) for row in rows[:2])
    assert abs(first - second) <= timedelta(seconds=1), "together"
    again = run_cli("tune", one, two, *argv)
    assert again.code in (0, 2)  # a written config is another one, so another study
    shown = run_cli("study", "show", tmp_path / "study")
    assert shown.code == 0 and "All models are measured at the same time." in shown.out
    best = run_cli("study", "best", tmp_path / "study")
    assert best.code == (0 if data["taken"] else 1)


def test_a_tuned_config_that_is_edited_meanwhile_is_left_alone(layered: Any, tmp_path: Path) -> None:
    model = layered(tmp_path / "one", 1)
    path = write_settings(CHANGED, model, "cpu-9", ["Fast."])
    assert "count: 1" in path.read_text()
    with ThreadPoolExecutor(1) as pool:
        with alone_in(path.parent):
            second = pool.submit(write_settings, replace(CHANGED, knobs=Knobs(instance_count=7)), model, "cpu-9", [])
            wait([second], timeout=1)
            path.write_text("max_batch_size: 3\n")
        with pytest.raises(UsageError, match=r"cpu-9\.pbtxt: the file is not as tritune wrote it"):
            second.result(timeout=60)
    assert path.read_text() == "max_batch_size: 3\n"
