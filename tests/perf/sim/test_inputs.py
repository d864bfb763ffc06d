"""What goes into the simulator: a ModelConfig, service times, a scenario file."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from google.protobuf import text_format

from perf.sim import Arrivals, BatcherConfig, QueuePolicy, ServiceModel, simulate
from perf.sim.scenario import predict_scenario, read_scenario, scenario_result
from perf.workload import Workload
from tooling.config.proto import pb
from tooling.errors import UsageError


def batcher(text: str, **options: int) -> BatcherConfig:
    return BatcherConfig.from_model_config(text_format.Parse(text, pb().ModelConfig()), **options)


def test_a_model_config_in_full() -> None:
    config = batcher("""
        name: "m" max_batch_size: 8
        input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
        input { name: "mask" data_type: TYPE_INT64 dims: [ 4 ] optional: true }
        instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }, { count: 1 kind: KIND_CPU } ]
        dynamic_batching {
          preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 3000
          priority_levels: 2 default_priority_level: 2
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 allow_timeout_override: true }
          priority_queue_policy { key: 1 value { max_queue_size: 7 } }
        }""")
    assert config == BatcherConfig(
        8,
        preferred_batch_size=(4, 8),
        max_queue_delay_us=3_000,
        instance_count=5,
        shape_checked=True,
        optional_inputs=True,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy("DELAY", 5, True),
        priority_queue_policy={1: QueuePolicy(max_queue_size=7)},
    )
    assert not config.prefetch


def test_defaults_of_a_model_config() -> None:
    config = batcher('input { name: "x" dims: [ -1 ] allow_ragged_batch: true }', instance_count=2)
    assert config == BatcherConfig(0, dynamic_batching=False, instance_count=2)
    assert config.prefetch


@pytest.mark.parametrize("scheduler", ["sequence_batching { }", "ensemble_scheduling { }"])
def test_other_schedulers_are_not_simulated(scheduler: str) -> None:
    with pytest.raises(UsageError, match="not simulated"):
        batcher(f'name: "m" {scheduler}')


def test_service_times_are_read_between_and_beyond_the_points() -> None:
    service = ServiceModel.measured({(1, 10): 2.0, (4, 10): 5.0, (1, 20): 4.0, (4, 20): 13.0})
    table = service.table_ns([10, 15, 20, 30], 5) / 1e6
    assert table[:, 1].tolist() == [2.0, 3.0, 4.0, 6.0]
    assert table[:, 4].tolist() == [5.0, 9.0, 13.0, 21.0]
    assert table[1, 2] == pytest.approx(5.0)
    assert table[0, 5] == pytest.approx(6.0)


def test_a_linear_law() -> None:
    table = ServiceModel.linear(20, 3, overhead_ms=1.5).table_ns([7], 3)
    assert table[0, 1:].tolist() == [24_500_000, 27_500_000, 30_500_000]


def test_clients_walk_through_the_lengths_in_short_runs_that_begin_at_other_places() -> None:
    lengths = Arrivals.of(Workload(concurrency=4, lengths=tuple(range(1, 8))), 640).lengths
    walks = np.reshape(lengths, (10, 16, 4))  # runs, requests of a client, clients
    cycle = Workload(concurrency=4, lengths=tuple(range(1, 8))).cycle
    steps = {(a, b) for a, b in zip(cycle, [*cycle[4:], *cycle[:4]], strict=True)}
    assert {(int(a), int(b)) for run in walks for walk in run.T for a, b in pairwise(walk)} == steps
    assert len({tuple(run[0]) for run in walks}) > 1


def test_arrivals_of_a_workload() -> None:
    closed = Arrivals.of(Workload(concurrency=3, lengths=(5, 9)), 10)
    assert (closed.concurrency, closed.times_ns, closed.dealt) == (3, None, True)
    assert set(closed.lengths) == {5, 9} and len(closed.lengths) == 10
    steady = Arrivals.of(Workload(request_rate=100), 3)
    assert steady.times_ns is not None and steady.times_ns.tolist() == [0, 10_000_000, 20_000_000]
    random = Arrivals.of(Workload(request_rate=100, distribution="poisson", seed=1), 10_000)
    assert random.times_ns is not None and random.times_ns[-1] / 1e9 == pytest.approx(100, rel=0.05)
    again = Arrivals.of(Workload(request_rate=100, distribution="poisson", seed=1), 10_000)
    assert again.times_ns is not None and (again.times_ns == random.times_ns).all()


def test_clients_with_many_lengths_do_not_come_into_step() -> None:
    """Eight clients that deal 61 lengths among them would merge twice as many requests after 20,000 as after 2,000."""
    workload = Workload(concurrency=8, lengths=tuple(range(6, 67)))
    often = np.bincount(Arrivals.of(workload, 61 * 200).lengths)[6:]
    assert often.sum() == 61 * 200 and often.min() > 150 and often.max() < 250
    service = ServiceModel.linear(1, 0.1, overhead_ms=4)
    config = BatcherConfig(8, instance_count=2, max_queue_delay_us=10_000)
    short, long = (simulate(config, Arrivals.of(workload, count), service) for count in (2_000, 20_000))
    assert long.mean_batch == pytest.approx(short.mean_batch, rel=0.05)


def test_bursts_come_together() -> None:
    bursts = Arrivals.constant(100, 5, burst=2)
    assert bursts.times_ns is not None and bursts.times_ns.tolist() == [0, 0, 20_000_000, 20_000_000, 40_000_000]


def test_a_scenario_by_hand() -> None:
    scenario = read_scenario(
        {
            "max_batch_size": 4,
            "a_ms": 20,
            "c_ms": 3,
            "arrivals": [[0.0, 4], [0.001, 4], [0.002, 8], [0.003, 8]],
            "execution_overhead_ms": 1.5,
            "client_overhead_ms": 1,
        }
    )
    result = scenario_result(predict_scenario(scenario))
    assert result["executions"] == 3
    assert result["batch_histogram"] == {"1": 2, "2": 1}
    assert result["mean_ms"] == pytest.approx((25.5 + 49 + 75.5 + 74.5) / 4)
    assert set(result) == {"mean_ms", "p50_ms", "p90_ms", "p99_ms", "executions", "batch_histogram"}


def test_every_problem_of_a_scenario_is_told() -> None:
    with pytest.raises(UsageError) as caught:
        read_scenario({"a_ms": -1, "arrivals": [[0, 4]], "surprise": 1}, where="s.json")
    said = [str(problem) for problem in caught.value.problems]
    assert len(said) == 3
    assert all(text.startswith("s.json: ") for text in said)
    assert any("max_batch_size" in text for text in said) and any("surprise" in text for text in said)


@pytest.mark.parametrize("key", ["max_batch_size", "max_queue_delay_us", "instances"])
def test_a_scenario_has_its_bounds(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_scenario({"max_batch_size": 4, "a_ms": 20, "arrivals": [[0, 4]], key: 10**30}, where="s.json")
    assert f"`{key}`: out of range" in str(caught.value)
