"""The decision record: complete, and plain text whatever stands in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.compare import Verdict
from perf.decision import decision, markdown
from perf.grid import Candidate
from perf.measurement import Measurement
from perf.result import TuneResult
from perf.trial import Figures, Trial
from tooling.config.knobs import Knobs

FACTS = {"host": {"cpu": "A CPU"}, "server": {"tritonserver": "2.51.0"}, "model": {"sha256": "abcdef0123456789"}}


def trial(name: str, rps: float, p99_ms: float, verdict: Verdict | None = None, **knobs: Any) -> Trial:
    point = Measurement(
        status="ok", load={"mode": "concurrency", "value": 8}, throughput_rps=rps, p50_us=5e4, p99_us=1e3 * p99_ms
    )
    state: Any = "compared" if verdict else "default"
    return Trial(
        Candidate(name, Knobs(**knobs), ("x",) if verdict else ()), state, Figures.of([point]), verdict=verdict
    )


@pytest.fixture
def result(tmp_path: Path) -> TuneResult:
    default = trial("default", 100, 200)
    best = trial("a", 150, 250, Verdict("better", 1.5, 1.4, 1.6, 6), max_queue_delay_us=2_000)
    left = Trial(Candidate("b", Knobs(instance_count=4)), "not explored", reason="budget used up")
    found = {
        "not_explored": ["a model for each length bucket"],
        "checks": [{"label": "b", "agrees": False, "predicted_gain": 2.0, "measured_gain": 1.1}],
    }
    facts = {"workload": "8 clients", "objective": "highest throughput", "runs": 20, "disturbed": 15, "spent_s": 61.2}
    made = TuneResult(
        model="m`*[x](y)",
        default=default,
        trials=(best, left),
        chosen=best,
        finished="2026-01-02",
        study=tmp_path,
        **facts,
    )
    return replace(made, findings=found, rechecks=({"name": "bursts", "weaker": True, "text": "p99 ≈0.70×"},))


def test_it_says_what_why_for_what_and_the_way_back(result: TuneResult) -> None:
    record = decision(result, hardware="cpu-2", owner="Ada", facts=FACTS)
    assert record["what"] == "take default instances, batch ≤ 8, delay 2ms"
    assert record["why"][0].endswith("1.50× [1.40–1.60] against the current config in 6 pairs.")
    assert record["cost"] == ["p99 250.0 ms in place of 200.0 ms", "a lone request may wait 2 ms for others"]
    assert "4 instances, batch ≤ 8, no delay: budget used up" in record["not_explored"]
    assert "a model for each length bucket" in record["not_explored"]
    needs = " ".join(record["needs_a_person"])
    assert "disturbed 15 of 20 runs" in needs
    assert "predicted 2.00×, measured 1.10×" in needs
    assert "bursts: the chosen setting is weaker there" in needs
    assert "--model-config-name=cpu-2" in record["way_back"][0]
    assert json.loads(json.dumps(record))["owner"] == "Ada"
    assert any(line.startswith("the embedded server: for another Triton") for line in record["assumptions"])


def test_the_page_shows_hostile_names_as_they_are(result: TuneResult) -> None:
    page = markdown(decision(result, hardware="cpu-2", owner="<b>\n# x", facts=FACTS))
    assert page.startswith("# m\\`\\*\\[x\\](y): take default instances")
    assert "owner: \\<b\\> \\# x" in page
    for title in (
        "Why",
        "What it costs",
        "It holds for",
        "Not explored",
        "Needs a person",
        "Evidence",
        "How to go back",
    ):
        assert f"\n## {title}\n" in page


def test_nothing_taken_needs_no_way_back(result: TuneResult) -> None:
    stays = decision(replace(result, chosen=result.default), hardware="cpu-2", owner="Ada", facts={})
    assert (stays["what"], stays["way_back"], stays["cost"]) == ("the current config stays", [], [])
    none = decision(replace(result, chosen=None), hardware="cpu-2", owner="Ada", facts={})
    assert none["what"] == "no setting keeps the limits"
    assert any("nothing measured keeps the limits" in need for need in none["needs_a_person"])
    assert "## How to go back" not in markdown(none)


def test_it_says_what_servers_carry_and_cost(result: TuneResult) -> None:
    carried = {"requests_per_s": 74.33, "limits": ["p99 < 100ms"]}
    asked = {"wanted_requests_per_s": 160.0, "replicas": 3, "cost_per_million": 1.4949}
    kept = "a server carries 74.3 requests/s at random times"
    for found, said in (
        (carried, f"{kept} within p99 < 100ms."),
        (
            carried | asked,
            f"{kept} within p99 < 100ms; 160 requests/s take 3; a million requests cost 1.49.",
        ),
        (carried | {"limits": []}, f"{kept} at 80 % of its highest rate."),
        (carried | {"requests_per_s": 0.0}, "a server carries no traffic at random times within p99 < 100ms."),
    ):
        told = replace(result, findings={"capacity": found})
        assert told.capacity == f"Predicted: {said}"
        assert told.text().endswith(f"{told.conclusion}\n{told.capacity}")
        assert decision(told, hardware="cpu-2", owner="Ada", facts=FACTS)["cost"][-1] == told.capacity
    assert result.capacity is None
    assert replace(result, findings={"capacity": carried}, chosen=None).capacity is None


def test_of_a_server_elsewhere_the_machine_of_the_client_is_not_taken_for_its_own(result: TuneResult) -> None:
    there = {**FACTS, "server": {"url": "gpu-host:8000", "tritonserver": "2.51.0"}}
    record = decision(result, hardware=None, owner="Ada", facts=there)
    assert "hardware: not named, the client on A CPU" in record["assumptions"]
    assert not any("embedded" in line for line in record["assumptions"])
    assert not any("on one machine" in line for line in record["assumptions"])
    assert record["way_back"] == ["nothing was written: config.pbtxt is unchanged"]
    here = decision(result, hardware="gpu-h200-x1", owner="Ada", facts={**FACTS, "server": {"url": "[::1]:8000"}})
    assert "hardware: gpu-h200-x1, A CPU" in here["assumptions"]
    assert any("on one machine" in line for line in here["assumptions"])
