"""Promotions and rollbacks under load: nothing is lost, and a bad candidate never serves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live

FAST = ("--skip", "slo", "--skip", "ab", "--hold", "0s")


def steps(model_dir: Path) -> list[str]:
    lines = model_dir.with_name(f"{model_dir.name}.rollout.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_version_goes_in_and_out_and_no_request_fails(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    model = scaled(tmp_path / "models")
    candidate = scaled(tmp_path / "new", factor=2.01)
    (candidate / "config.pbtxt").write_text((candidate / "config.pbtxt").read_text() + "# and on this\n")
    config_before = (model / "config.pbtxt").read_text()
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 8) as clients:
        done = run_cli("promote", model, candidate, "--url", server.http_url, *FAST, "--json")
        assert done.code == 0, done.err
        data = done.json["data"]
        assert (data["promoted"], data["version"], data["serves"]) == (True, 2, [2])
        assert [gate["outcome"] for gate in data["gates"]] == ["passed", "passed", "passed", "skipped", "skipped"]
        text = (model / "config.pbtxt").read_text()
        assert "# what the users of this model agreed on" in text
        assert "# and on this" in text
        assert not model.with_name("scale.next").exists()

        back = run_cli("rollback", model, "--url", server.http_url, "--json")
        assert back.code == 0, back.err
        assert back.json["data"]["serves"] == [1]
        assert (model / "config.pbtxt").read_text() == config_before
        assert [entry.name for entry in model.iterdir() if entry.name.isdecimal()] == ["1"]
    assert clients.failed == []
    assert clients.wrong == []
    assert set(clients.seen) == {("scale", "1"), ("scale", "2")}
    assert steps(model)[-2:] == ["promoted", "rolled back"]


def refused(run_cli: Any, model: Path, candidate: object, server: Any, *options: object) -> dict[str, Any]:
    """The last gate of a promotion that was stopped: the old version serves, and nothing of the candidate is left."""
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file() and "rollout" not in path.parts}
    done = run_cli("promote", model, candidate, "--url", server.http_url, *options, "--json")
    assert done.code == 1, done.err
    data = done.json["data"]
    assert (data["promoted"], data["serves"], data["percent"]) == (False, [1], 0)
    assert not model.with_name("scale.next").exists()
    left = {path: path.read_bytes() for path in model.rglob("*") if path.is_file() and "rollout" not in path.parts}
    assert left == before
    assert steps(model)[-1] == "stopped"
    gate: dict[str, Any] = data["gates"][-1]
    assert gate["outcome"] == "failed"
    return gate


def test_what_triton_would_refuse_and_wrong_numbers_are_stopped_while_the_old_one_serves(
    tmp_path: Path, scaled: Callable[..., Path], scripted: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    model = scaled(tmp_path / "models")
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 4) as clients:
        gate = refused(run_cli, model, "dynamic_batching.preferred_batch_size=99", server)
        assert gate["gate"] == "check"
        assert "preferred" in gate["why"]

        broken = scripted(tmp_path / "broken", start='raise RuntimeError("the weights are not there")')
        gate = refused(run_cli, model, broken, server)
        assert gate["gate"] == "load"
        assert "the weights are not there" in gate["why"]

        gate = refused(run_cli, model, scaled(tmp_path / "wrong", factor=2.2), server)
        assert gate["gate"] == "parity"
        assert "off from those of the current version by at most 0.1" in gate["why"]

        elsewhere = scaled(tmp_path / "elsewhere")
        gate = refused(run_cli, elsewhere, model, server)
        assert gate["gate"] == "load"
        assert f"does the server at {server.http_url} serve {elsewhere.parent}?" in gate["why"]

        dies = scripted(tmp_path / "dies", work='raise RuntimeError("no memory")')
        gate = refused(run_cli, model, dies, server)
        assert gate["gate"] == "parity"
        assert "no memory" in gate["why"]
    assert clients.failed == clients.wrong == []
    assert set(clients.seen) == {("scale", "1")}


@pytest.mark.long
def test_a_rollback_does_not_wait_for_the_version_that_goes(
    tmp_path: Path, scaled: Callable[..., Path], scripted: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    """The old version serves again while the other one still cleans up."""
    model, gone = scaled(tmp_path / "models"), tmp_path / "gone"
    work = f"self.finalize = lambda: (time.sleep(8), open({str(gone)!r}, 'w'))"
    candidate = scripted(tmp_path / "new", start=work)
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 4) as clients:
        done = run_cli("promote", model, candidate, "--url", server.http_url, *FAST, "--json")
        assert done.code == 0, done.err
        back = run_cli("rollback", model, "--url", server.http_url, "--json")
        assert back.json["data"]["serves"] == [1], back.err
        assert not gone.exists()
    assert clients.failed == clients.wrong == []


@pytest.mark.long
def test_the_canary_file_has_the_last_word_on_numbers(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    """A model that is meant to answer otherwise than the current one brings its answers along."""
    model, other = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=-3.0)
    request = {"x": {"content": [1.0, 2.0, 0.5, 4.0], "shape": [4]}}
    canary = tmp_path / "canary.json"
    canary.write_text(
        json.dumps({"data": [request], "validation_data": [{"y": {"content": [-3.0, -6.0, -1.5, -12.0]}}]})
    )
    with serving(model.parent, "scale") as server:
        gate = refused(run_cli, model, scaled(tmp_path / "wrong", factor=2.0), server, *FAST, "--canary", canary)
        assert "off from the answers of the canary file" in gate["why"]
        done = run_cli("promote", model, other, "--url", server.http_url, *FAST, "--canary", canary, "--json")
        assert done.code == 0, done.err
        kept = json.loads(model.with_name("scale.canary.json").read_text())
        assert kept["data"] == [request]
        assert kept["validation_data"][0]["y"]["content"] == [-3.0, -6.0, -1.5, -12.0]


@pytest.mark.long
def test_a_slow_candidate_misses_the_slo(
    tmp_path: Path, scaled: Callable[..., Path], scripted: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    model, slow = scaled(tmp_path / "models"), scripted(tmp_path / "slow", work="time.sleep(0.03)")
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 2) as clients:
        gate = refused(run_cli, model, slow, server, "--slo", "p99<20ms", "--concurrency", 2)
    assert gate["gate"] == "slo"
    assert "p99<20ms: not met" in gate["why"]
    assert clients.failed == clients.wrong == []
    assert set(clients.seen) == {("scale", "1")}


@pytest.mark.long
def test_a_candidate_that_answers_nothing_within_a_window_is_measured_in_longer_ones(
    tmp_path: Path, scaled: Callable[..., Path], scripted: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    model, slow = scaled(tmp_path / "models"), scripted(tmp_path / "slow", work="time.sleep(2.5)")
    canary = tmp_path / "canary.json"
    canary.write_text(
        json.dumps({"data": [{"x": [1.0, 2.0, 0.5, 4.0]}], "validation_data": [{"y": [2.0, 4.0, 1.0, 8.0]}]})
    )
    gates = ("--skip", "ab", "--slo", "avg<60s", "--canary", canary, "--hold", "0s", "--concurrency", 1)
    with serving(model.parent, "scale") as server:
        done = run_cli("promote", model, slow, "--url", server.http_url, *gates, "--json")
        assert done.code == 0, done.err
    slo = next(gate for gate in done.json["data"]["gates"] if gate["gate"] == "slo")
    assert (slo["outcome"], slo["figures"]["avg_us"] > 2_000_000) == ("passed", True)


@pytest.mark.long
def test_a_candidate_that_is_slower_only_in_bursts_is_stopped(
    tmp_path: Path, scripted: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    """A batch takes the current one 8 ms; the candidate takes 5 ms for each of its requests."""
    model = scripted(tmp_path / "models", work="time.sleep(0.008)")
    serial = scripted(tmp_path / "serial", work="time.sleep(0.005 * len(requests))")
    with serving(model.parent, "scale") as server:
        gate = refused(run_cli, model, serial, server, "--concurrency", 1, "--slo", "p99<100ms", "--budget", "90s")
    assert gate["gate"] == "ab"
    assert "under the workload: B1 wins" in gate["why"]
    assert "in bursts: A wins" in gate["why"] or "in bursts: B1 failed: saturated" in gate["why"]


@pytest.mark.long
def test_ten_promotions_and_rollbacks_under_full_load_lose_nothing(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    """32 connections; every answer names its version, and answers come all the while (how many a second:
    `benchmarks/rollback.py`)."""
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 32) as clients:
        _ten_times(model, candidate, server, run_cli)
    assert clients.failed == clients.wrong == []
    assert set(clients.seen) == {("scale", str(version)) for version in range(1, 12)}
    assert clients.answered >= 1_000


def _ten_times(model: Path, candidate: Path, server: Any, run_cli: Any) -> None:
    for number in range(10):
        done = run_cli("promote", model, candidate, "--url", server.http_url, *FAST, "--json")
        assert done.code == 0, done.err
        assert done.json["data"]["serves"] == [number + 2], "a number is never used twice"
        back = run_cli("rollback", model, "--url", server.http_url, "--json")
        assert back.code == 0, back.err
