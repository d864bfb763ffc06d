"""Length buckets: the dynamic program against trying everything, and its closed form against the simulator."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.buckets import BucketPlan, _batches, _plan, judge, pad, plan_buckets
from perf.sim import Arrivals, BatcherConfig, ServiceModel
from tooling.errors import UsageError

# On a CPU the time grows with every row; on a GPU most of it is fixed.
CPU = ServiceModel.measured({(r, n): 0.5 + 0.1 * n * r for r in (1, 8) for n in (4, 128)})
GPU = ServiceModel.measured({(r, n): 3 + 0.05 * n + 0.002 * n * r for r in (1, 8) for n in (4, 128)})


def draw_lengths(count: int, seed: int = 0) -> list[int]:
    return np.clip(np.random.default_rng(seed).lognormal(3.5, 0.6, count).astype(int), 4, 128).tolist()


def histogram(lengths: list[int]) -> dict[int, int]:
    values, counts = np.unique(lengths, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.integers(1, 200), st.integers(1, 50), min_size=2, max_size=8),
    st.sampled_from([CPU, GPU]),
    st.integers(1, 8),
)
def test_the_edges_are_the_best_ones(counts: dict[int, int], service: ServiceModel, max_batch_size: int) -> None:
    lengths = np.array(sorted(counts))
    share = np.array([counts[n] for n in lengths.tolist()]) / sum(counts.values())
    times = service.table_ns(lengths.tolist(), max_batch_size) / 1e9
    plans = plan_buckets(counts, service, max_batch_size=max_batch_size)
    for number, plan in enumerate(plans, start=1):
        every = combinations(range(len(lengths) - 1), number - 1)
        best = max(_plan((*inner, len(lengths) - 1), lengths, share, times, _batches).throughput_rps for inner in every)
        assert plan.throughput_rps == pytest.approx(best, rel=1e-9)
        assert len(plan.edges) == number
    assert plans[-1].free and plans[-1].edges == tuple(lengths.tolist())


@pytest.mark.parametrize("service", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("instances", [1, 2])
def test_expected_throughput_is_what_the_simulator_finds_in_a_full_queue(service: ServiceModel, instances: int) -> None:
    sample = draw_lengths(20_000)
    plans = plan_buckets(histogram(sample), service, max_batch_size=8, instances=instances, max_edges=4)
    config = BatcherConfig(8, shape_checked=True, instance_count=instances)
    for plan in plans:
        prediction = judge(plan, config, Arrivals.closed(128, len(sample), lengths=sample), service, warm_up=1_000)
        assert prediction.throughput_rps == pytest.approx(plan.throughput_rps, rel=0.03)
        assert prediction.mean_batch == pytest.approx(plan.mean_batch, rel=0.03)


def test_buckets_pay_where_batches_pay() -> None:
    counts = histogram(draw_lengths(5_000))

    def best(service: ServiceModel) -> BucketPlan:
        return max(plan_buckets(counts, service, max_batch_size=8), key=lambda plan: plan.throughput_rps)

    assert best(CPU).free
    assert not best(GPU).free


def test_padding_and_batchability() -> None:
    one, free = plan_buckets({10: 3, 20: 1}, CPU, max_batch_size=4)
    assert (one.edges, one.free) == ((20,), False)
    assert one.padding_waste == pytest.approx(1 - 50 / 80)
    assert (one.batchability, one.mean_batch) == (1.0, 4.0)
    assert (free.edges, free.padding_waste, free.batchability) == ((10, 20), 0.0, pytest.approx(10 / 16))
    assert pad([1, 10, 11], free.edges) == [10, 10, 20]


def test_one_length_needs_no_bucket() -> None:
    (plan,) = plan_buckets({7: 5}, GPU, max_batch_size=4)
    assert plan.free and plan.edges == (7,)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(UsageError, match="no buckets"):
        plan_buckets({}, CPU, max_batch_size=8)
    with pytest.raises(UsageError, match="above the last edge"):
        pad([21], (10, 20))
