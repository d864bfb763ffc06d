"""The simulator against what a real tritonserver did: the batches it formed, and Poisson traffic through it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from perf.sim import Arrivals, BatcherConfig, QueuePolicy, ServiceModel, Stage, run
from perf.sim.scenario import predict_scenario, read_scenario, scenario_result

DATA = Path(__file__).parent / "data"
BATCHES = yaml.safe_load((DATA / "batches.yaml").read_text("utf-8"))
POISSON = json.loads((DATA / "poisson.json").read_text("utf-8"))["runs"]
# A dispatch is written down some milliseconds after the decision, and by up to 60 ms in a noisy run.
DISPATCH_NOISE_MS = 65


def test_every_recording_is_here() -> None:
    assert (len(BATCHES), len(POISSON)) == (26, 5)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("case", BATCHES, ids=lambda case: case["name"])
def test_batches_of_the_real_server(case: dict[str, Any], compiled: bool) -> None:
    config = BatcherConfig(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in case["config"].items()},
        default_queue_policy=QueuePolicy(max_queue_size=case.get("queue_limit", 0)),
    )
    arrivals = Arrivals.at(
        [ms / 1_000 for ms in case["sent"]],
        sizes=case.get("rows", [1]),
        lengths=case.get("shapes", [1]),
        priorities=case.get("priorities", [0]),
    )
    trace = run([Stage(config, ServiceModel.linear(case["execution"]))], arrivals, compiled=compiled)
    assert trace.executions().requests.tolist() == case["batches"]
    if "started" in case:
        assert trace.executions().start_ns / 1e6 == pytest.approx(case["started"], abs=DISPATCH_NOISE_MS)


@pytest.mark.parametrize("recorded", POISSON, ids=lambda recorded: recorded["name"])
def test_poisson_traffic_is_predicted_within_ten_percent(recorded: dict[str, Any]) -> None:
    scenario = read_scenario(
        {
            **recorded["config"],
            "arrivals": list(zip(recorded["sent_s"], recorded["length"], strict=True)),
            "execution_overhead_ms": 1.5,
            "client_overhead_ms": 1.0,
        }
    )
    result = scenario_result(predict_scenario(scenario))
    seen = np.array(recorded["latency_ms"])
    assert result["mean_ms"] == pytest.approx(seen.mean(), rel=0.10)
    assert result["p90_ms"] == pytest.approx(np.percentile(seen, 90), rel=0.10)
    assert result["p99_ms"] == pytest.approx(np.percentile(seen, 99), rel=0.10)
    assert result["executions"] == pytest.approx(len(recorded["batches"]), rel=0.05)
    histogram = Counter({int(rows): count for rows, count in result["batch_histogram"].items()})
    assert sum(rows * count for rows, count in histogram.items()) == len(seen)
    apart = (histogram - Counter(recorded["batches"])).total()
    assert apart <= 0.25 * len(recorded["batches"])
