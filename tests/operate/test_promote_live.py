"""Promotions and rollbacks under load: nothing is lost, and a bad candidate never serves."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live


def test_a_version_goes_in_and_out_and_no_request_fails(stage: Callable[..., Any]) -> None:
    with stage(clients=8) as it:
        (it.candidate / "config.pbtxt").write_text((it.candidate / "config.pbtxt").read_text() + "# and on this\n")
        before = it.config
        done = it.promote(it.candidate)
        assert done.code == 0, done.err
        data = done.json["data"]
        assert (data["promoted"], data["version"], data["serves"]) == (True, 2, [2])
        assert [gate["outcome"] for gate in data["gates"]] == ["passed", "passed", "passed", "skipped", "skipped"]
        assert "# what the users of this model agreed on" in it.config
        assert "# and on this" in it.config
        assert it.files == ["scale.canary.json", "scale.rollout.jsonl"]
        it.clients.wait_for("scale", "2")

        back = it.rollback()
        assert back.code == 0, back.err
        assert back.json["data"]["serves"] == [1]
        assert (it.config, it.versions) == (before, ["1"])
        it.clients.wait_for("scale", "1")
    assert it.clients.factors == {("scale", "1"): {2.0}, ("scale", "2"): {2.01}}
    assert it.steps == ["begun", *["gate"] * 5, "switching", "promoted", "rolled back"]


def refused(it: Any, candidate: object, *options: object, model: Path | None = None) -> dict[str, Any]:
    """The last gate of a promotion that was stopped: the old version serves, and nothing of the candidate is left."""
    model = model or it.model

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in model.rglob("*") if path.is_file() and "rollout" not in path.parts}

    before = content()
    done = it.run("promote", candidate, *options, model=model)
    assert done.code == 1, done.err
    data = done.json["data"]
    assert (data["promoted"], data["serves"], data["percent"]) == (False, [1], 0)
    assert not model.with_name("scale.next").exists()
    assert content() == before
    log = model.with_name("scale.rollout.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["step"] == "stopped"
    gate: dict[str, Any] = data["gates"][-1]
    assert gate["outcome"] == "failed"
    return gate


def test_what_triton_would_refuse_and_wrong_numbers_are_stopped_while_the_old_one_serves(
    tmp_path: Path, scaled: Callable[..., Path], scripted: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    with stage(clients=4) as it:
        gate = refused(it, "dynamic_batching.preferred_batch_size=99")
        assert gate["gate"] == "check"
        assert "preferred" in gate["why"]

        broken = scripted(tmp_path / "broken", start='raise RuntimeError("the weights are not there")')
        gate = refused(it, broken)
        assert gate["gate"] == "load"
        assert "the weights are not there" in gate["why"]

        gate = refused(it, scaled(tmp_path / "wrong", factor=2.2))
        assert gate["gate"] == "parity"
        assert "off from those of the current version by at most 0.1" in gate["why"]

        elsewhere = scaled(tmp_path / "elsewhere")
        gate = refused(it, it.model, model=elsewhere)
        assert gate["gate"] == "load"
        assert f"does the server at {it.server.http_url} serve {elsewhere.parent}?" in gate["why"]

        dies = scripted(tmp_path / "dies", work='raise RuntimeError("no memory")')
        gate = refused(it, dies)
        assert gate["gate"] == "parity"
        assert "no memory" in gate["why"]
    assert set(it.clients.seen) == {("scale", "1")}


@pytest.mark.long
def test_each_gate_is_in_the_log_as_soon_as_it_is_passed(stage: Callable[..., Any]) -> None:
    """So an interrupted run tells how far it came."""
    with stage() as it:
        process = it.started(lambda: it.steps.count("gate") == 3, it.candidate, "--slo", "avg<60s", skip=("ab",))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130, err
        assert [entry["gate"] for entry in it.log if entry["step"] == "gate"] == ["check", "load", "parity"]
        assert it.log[-1]["at"] == "KeyboardInterrupt"
        assert it.files == ["scale.rollout.jsonl"]


@pytest.mark.long
def test_a_rollback_does_not_wait_for_the_version_that_goes(
    tmp_path: Path, scripted: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    """The old version serves again while the other one still cleans up."""
    gone = tmp_path / "gone"
    work = f"self.finalize = lambda: (time.sleep(8), open({str(gone)!r}, 'w'))"
    with stage(clients=4, candidate=scripted(tmp_path / "new", start=work)) as it:
        done = it.promote(it.candidate)
        assert done.code == 0, done.err
        back = it.rollback()
        assert back.json["data"]["serves"] == [1], back.err
        assert not gone.exists()


@pytest.mark.long
def test_the_canary_file_has_the_last_word_on_numbers(
    tmp_path: Path, scaled: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    """A model that is meant to answer otherwise than the current one brings its answers along."""
    request = {"x": {"content": [1.0, 2.0, 0.5, 4.0], "shape": [4]}}
    canary = tmp_path / "canary.json"
    canary.write_text(
        json.dumps({"data": [request], "validation_data": [{"y": {"content": [-3.0, -6.0, -1.5, -12.0]}}]})
    )
    with stage(candidate=scaled(tmp_path / "new", factor=-3.0)) as it:
        gate = refused(it, scaled(tmp_path / "wrong", factor=2.0), "--canary", canary)
        assert "off from the answers of the canary file" in gate["why"]
        done = it.promote(it.candidate, "--canary", canary)
        assert done.code == 0, done.err
        kept = json.loads(it.model.with_name("scale.canary.json").read_text())
        assert kept["data"] == [request]
        assert kept["validation_data"][0]["y"]["content"] == [-3.0, -6.0, -1.5, -12.0]


@pytest.mark.long
def test_a_slow_candidate_misses_the_slo(
    tmp_path: Path, scripted: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    with stage(clients=2, candidate=scripted(tmp_path / "slow", work="time.sleep(0.03)")) as it:
        gate = refused(it, it.candidate, "--slo", "p99<20ms", "--concurrency", 2)
    assert gate["gate"] == "slo"
    assert "p99<20ms: not met" in gate["why"]
    assert set(it.clients.seen) == {("scale", "1")}


@pytest.mark.long
def test_a_candidate_that_answers_nothing_within_a_window_is_measured_in_longer_ones(
    tmp_path: Path, scripted: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    canary = tmp_path / "canary.json"
    canary.write_text(
        json.dumps({"data": [{"x": [1.0, 2.0, 0.5, 4.0]}], "validation_data": [{"y": [2.0, 4.0, 1.0, 8.0]}]})
    )
    gates = ("--skip", "ab", "--slo", "avg<60s", "--canary", canary, "--hold", "0s", "--concurrency", 1)
    with stage(candidate=scripted(tmp_path / "slow", work="time.sleep(2.5)")) as it:
        done = it.run("promote", it.candidate, *gates)
        assert done.code == 0, done.err
    slo = next(gate for gate in done.json["data"]["gates"] if gate["gate"] == "slo")
    assert (slo["outcome"], slo["figures"]["avg_us"] > 2_000_000) == ("passed", True)


@pytest.mark.long
def test_a_candidate_that_is_slower_only_in_bursts_is_stopped(
    tmp_path: Path, scripted: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    """A batch takes the current one 8 ms; the candidate takes 5 ms for each of its requests. A client asks now and
    then, and has its answers from the current one."""
    model = scripted(tmp_path / "models", work="time.sleep(0.008)")
    serial = scripted(tmp_path / "serial", work="time.sleep(0.005 * len(requests))")
    with stage(clients=1, pause_s=0.5, model=model, candidate=serial) as it:
        gate = refused(it, serial, "--concurrency", 1, "--slo", "p99<100ms", "--budget", "90s")
    assert gate["gate"] == "ab"
    assert "under the workload: B1 wins" in gate["why"]
    assert "in bursts: A wins" in gate["why"] or "in bursts: B1 failed: saturated" in gate["why"]
    assert set(it.clients.seen) == {("scale", "1")}


@pytest.mark.long
def test_ten_promotions_and_rollbacks_under_full_load_lose_nothing(stage: Callable[..., Any]) -> None:
    """32 connections; every answer names its version, and has that version's numbers (how many answers a second:
    `benchmarks/rollback.py`)."""
    with stage(clients=32) as it:
        for number in range(10):
            done = it.promote(it.candidate)
            assert done.code == 0, done.err
            assert done.json["data"]["serves"] == [number + 2], "a number is never used twice"
            back = it.rollback()
            assert back.code == 0, back.err
    promoted = {("scale", str(version)): {2.01} for version in range(2, 12)}
    assert it.clients.factors == {("scale", "1"): {2.0}, **promoted}
    assert it.clients.answered >= 1_000
