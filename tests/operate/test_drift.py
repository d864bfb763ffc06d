"""What speaks for tuning again: other answers, other load, other lengths; and what chance explains."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.grid import Candidate
from perf.rollout import as_tuned
from perf.rollout.drift import _distance, _lengths, _requests
from perf.studies import StudyFile
from perf.study import Study
from tooling.config.knobs import Knobs
from tooling.errors import UsageError
from tooling.repository import hardware_name
from tooling.server.inventory import config_message

SHORT = tuple(random.Random(0).choices(range(8, 40), k=200))


def study_of(directory: Path, model: str = "enc", lengths: tuple[int, ...] = SHORT) -> StudyFile:
    with Study(directory, {"command": "tune", "model": {"name": model}, "workload": {"lengths": list(lengths)}}):
        pass
    return StudyFile(directory)


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    from scipy.stats import ks_2samp

    rng = random.Random(1)
    for _ in range(20):
        one, other = ([rng.randrange(30) for _ in range(rng.randrange(5, 60))] for _ in range(2))
        assert _distance(one, other) == pytest.approx(ks_2samp(one, other).statistic)


def test_lengths_drift_when_they_differ_by_more_than_chance(tmp_path: Path) -> None:
    study = study_of(tmp_path / "study")
    rng = random.Random(2)
    same = tuple(rng.choices(range(8, 40), k=500))
    assert _lengths(same, study).outcome == "steady"
    assert _lengths(tuple(length + 2 for length in same), study).outcome == "steady", "too little to tune for"
    few = (9, 38, 11)
    assert _lengths(few, study).outcome == "steady", "too few to say anything"
    longer = _lengths(tuple(2 * length for length in same), study)
    assert longer.outcome == "drifted"
    assert longer.evidence["mean"] == pytest.approx(2 * sum(same) / len(same))
    assert _lengths(same, None).outcome == _lengths(None, study).outcome == "unknown"


def test_a_log_needs_lengths_and_no_times(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("tokens\n12\n7\n")
    assert _requests(log, tmp_path) == (12, 7)
    lines = log.with_suffix(".jsonl")
    lines.write_text('{"ts": 1, "length": 3}\n{"ts": 2, "length": 9}\n')
    assert _requests(lines, tmp_path) == (3, 9)
    for text, got in (("when,who\n1,2\n", "when, who"), ("tokens\n", "no requests"), ("", "no requests")):
        log.write_text(text)
        with pytest.raises(UsageError, match="the log has no lengths") as raised:
            _requests(log, tmp_path)
        assert raised.value.problems[0].got == got


def test_new_lengths_come_with_new_buckets_where_the_study_has_a_curve(tmp_path: Path, curve_file: Path) -> None:
    study = study_of(tmp_path / "study")
    (study.directory / "curve.json").write_bytes(curve_file.read_bytes())
    sign = _lengths((100,) * 300 + (37,) * 200, study)
    assert sign.outcome == "drifted"
    assert sign.evidence["edges"][-1] == 100
    assert "best for the new ones: " in sign.why
    endless = _lengths((10**9,) * 300, study)
    assert endless.outcome == "drifted"
    assert "edges" not in endless.evidence, "the curve says nothing of executions that long"


def test_the_newest_study_of_the_model_is_taken_and_damaged_ones_are_passed_over(tmp_path: Path) -> None:
    assert as_tuned.newest_of("enc", tmp_path) is None
    study_of(tmp_path / "a")
    study_of(tmp_path / "b", model="other")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "study.jsonl").write_text("not a study\n")
    assert as_tuned.newest_of("enc", tmp_path) == tmp_path / "a"


def test_a_tuned_config_says_which_study_it_came_from(tmp_path: Path) -> None:
    """Whatever was studied since; and never one that is gone, or of a config that names none."""
    model, studies = tmp_path / "models" / "enc", tmp_path / "studies"
    own = study_of(tmp_path / "kept here" / "enc-1").directory
    newer = study_of(studies / "enc-2").directory
    path = model / "configs" / f"{hardware_name()}.pbtxt"
    path.parent.mkdir(parents=True)
    assert as_tuned.study_of(model, studies) == newer
    path.write_text(f"# Chosen: as before.\n# Study: {os.path.relpath(own, path.parent)}\nmax_batch_size: 8\n")
    assert as_tuned.study_of(model, studies) == own
    path.write_text("# Study: ../../gone\nmax_batch_size: 8\n")
    assert as_tuned.study_of(model, studies) == newer


def test_what_is_served_is_compared_with_what_was_chosen(tmp_path: Path) -> None:
    """As Triton tells it: completed with instances, a preferred batch size and a kind that were left to it."""
    served = {
        "name": "enc",
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "dynamic_batching": {"preferred_batch_size": [8], "max_queue_delay_microseconds": 2_000},
        "instance_group": [{"name": "enc_0", "kind": "KIND_CPU", "count": 2}],
        "parameters": {"intra_op_thread_count": {"string_value": "1"}},
        "a_field_of_a_newer_server": True,
    }

    def other(**knobs: Any) -> list[str]:
        chosen = Knobs(**{"max_queue_delay_us": 2_000, "intra_op_threads": 1, **knobs})
        return as_tuned.other_than(Candidate("i2", chosen), config_message(served))

    assert other() == other(instance_count=2) == []
    assert other(instance_count=1) == ["instance_count 2, not 1"]
    assert other(max_batch_size=4, intra_op_threads=None) == ["max_batch_size 8, not 4", "intra_op_threads 1, not 0"]
    assert other(dynamic_batching=False, max_queue_delay_us=0) == [
        "dynamic_batching True, not False",
        "max_queue_delay_us 2000, not 0",
    ]


@pytest.mark.live
def test_answers_that_changed_are_found_and_noted(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = scaled(tmp_path / "models")
    request = {"x": {"content": [1.0, 2.0, 0.5, 4.0], "shape": [4]}}
    for name, f in (("right", 2.0), ("wrong", 2.5)):
        answer = {"y": {"content": [f, 2 * f, f / 2, 4 * f]}}
        (tmp_path / f"{name}.json").write_text(json.dumps({"data": [request], "validation_data": [answer]}))
    with serving(model.parent, "scale") as server:
        argv = ["drift", model, "--url", server.http_url, "--for", "100ms"]
        nothing = run_cli(*argv)
        assert (nothing.code, "there is nothing to compare with" in nothing.err) == (2, True)
        assert "expected canary requests with answers, or a study; for lengths a log of requests besides" in nothing.err
        steady = run_cli(*argv, "--canary", "right.json", "--json")
        assert steady.code == 0, steady.err
        assert [sign["outcome"] for sign in steady.json["data"]["signs"]] == ["steady"] + ["unknown"] * 3
        other = run_cli(*argv, "--canary", "wrong.json")
        assert other.code == 1, other.err
        assert "scale answers otherwise than it did" in other.out
    log = [json.loads(line) for line in model.with_name(f"{model.name}.rollout.jsonl").read_text().splitlines()]
    assert [(entry["step"], entry.get("drifted")) for entry in log[-2:]] == [("drift", False), ("drift", True)]


@pytest.mark.parametrize("log", ["a directory", "damaged"])
def test_a_log_that_takes_no_entry_is_told_before_anything_is_asked(
    tmp_path: Path, scaled: Callable[..., Path], run_cli: Any, log: str
) -> None:
    model = scaled(tmp_path / "models")
    path = model.with_name("scale.rollout.jsonl")
    if log == "damaged":
        path.write_text("{}\n")
    else:
        path.mkdir()
    done = run_cli("drift", model, "--url", "127.0.0.1:1")
    assert (done.code, f"{path}" in done.err, "no Triton server" in done.err) == (2, True, False), done.err


@pytest.mark.live
@pytest.mark.long
def test_load_that_is_not_that_of_the_study_is_found(
    tmp_path: Path, scripted: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any, monkeypatch: Any
) -> None:
    """The same model on a host that lets it compute three times as long. It waits rather than computes, one client
    never queues, and 4 ms more are no drift: so a busy machine changes nothing."""
    monkeypatch.chdir(tmp_path)
    slow = tmp_path / "slow"
    work = f"time.sleep(0.06 if __import__('os').path.exists({str(slow)!r}) else 0.02)"
    model = scripted(tmp_path / "models", work=work)
    done = run_cli("compare", model, "current", "--model", model, "--concurrency", 1, "--budget", "60s")
    assert done.code in (0, 1), done.err
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 1):
        argv = ["drift", model, "--url", server.http_url, "--json"]
        steady = run_cli(*argv, "--for", "5s")
        assert steady.json["data"]["signs"][1]["outcome"] == "steady", steady.out
        assert steady.code == 0
        slow.touch()
        found = run_cli(*argv, "--for", "9s")
        sign = found.json["data"]["signs"][1]
        assert (found.code, sign["outcome"]) == (1, "drifted")
        assert "a request computes" in sign["why"]
        assert found.json["data"]["conclusion"] == "Tune scale again: load."
