"""Which way to pad is chosen, on curves as a CPU and as a GPU has them, and models beside each other."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perf.buckets import plan_buckets
from perf.padding import MARGIN, _merged_share, choose_edges, choose_padding, padding_share
from perf.sim import Arrivals, BatcherConfig, Machine, ServiceModel, simulate
from perf.sim.lanes import simulate_lanes
from tooling.errors import UsageError

# On a CPU the time grows with every row and token, and two busy instances share the cores; on a GPU most is fixed.
CPU = ServiceModel.measured({(r, n): 0.5 + 0.1 * n * r for r in (1, 8) for n in (4, 256)}, slowdown=(1.0, 1.9))
GPU = ServiceModel.measured({(r, n): 2 + 0.004 * n + 0.0005 * n * r for r in (1, 32) for n in (4, 256)})
IDEAL = Machine()


def mixed_lengths(count: int = 2_000) -> list[int]:
    return np.clip(np.random.default_rng(1).lognormal(3.5, 0.8, count).astype(int), 4, 256).tolist()


def test_on_a_cpu_free_lengths_are_chosen() -> None:
    choice = choose_padding(mixed_lengths(), CPU, BatcherConfig(8, instance_count=2), concurrency=8)
    assert (choice.chosen.padding, choice.chosen.edges, choice.chosen.padding_share) == ("none", (), 0.0)
    one = next(way for way in choice.ways if way.padding == "buckets" and len(way.edges) == 1)
    assert choice.chosen.throughput_rps > 2.5 * one.throughput_rps


@pytest.mark.parametrize("concurrency", [64, 256])
def test_on_a_gpu_padding_is_chosen(concurrency: int) -> None:
    choice = choose_padding(mixed_lengths(), GPU, BatcherConfig(32), concurrency=concurrency)
    free = next(way for way in choice.ways if way.padding == "none")
    assert choice.chosen.padding != "none"
    assert choice.chosen.throughput_rps > 3 * free.throughput_rps


@pytest.mark.parametrize(("service", "concurrency"), [(CPU, 1), (GPU, 64)], ids=["cpu", "gpu"])
def test_the_choice_is_the_simplest_of_the_best(service: ServiceModel, concurrency: int) -> None:
    choice = choose_padding(mixed_lengths(), service, BatcherConfig(8), concurrency=concurrency)
    best = max(way.throughput_rps for way in choice.ways)
    good = [way for way in choice.ways if way.throughput_rps >= (1 - MARGIN) * best]
    assert choice.chosen is good[0]
    order = [way.padding for way in choice.ways]
    assert order == ["none", *["buckets"] * 8, "merged", *["models"] * 3]
    assert [len(way.edges) for way in choice.ways] == [0, *range(1, 9), 0, 2, 3, 4]
    assert f"→ {choice.chosen.label}" in choice.text()


def test_the_merged_batch_is_padded_to_its_longest() -> None:
    lengths = np.array([1, 3, 2, 2, 8])
    assert _merged_share(lengths, {1: 1, 2: 2}) == pytest.approx(1 - (1 + 3 + 2 + 2 + 8) / (1 + 6 + 16))
    assert _merged_share(lengths, {1: 20}) == 0.0


def test_texts_of_one_length_need_no_padding() -> None:
    choice = choose_padding([12] * 50, GPU, BatcherConfig(8), concurrency=16)
    assert choice.chosen.padding == "none"
    assert [way.padding for way in choice.ways] == ["none", "merged"]


@settings(max_examples=30)
@given(st.dictionaries(st.integers(1, 200), st.integers(1, 50), min_size=2, max_size=8), st.integers(1, 8))
def test_edges_for_queues_of_their_own_are_the_best_ones(counts: dict[int, int], batch: int) -> None:
    """Every batch is full there, so a request costs its share of a full batch of its edge."""
    lengths = sorted(counts)
    whole = {n: t[batch] / 1e9 for n, t in zip(lengths, GPU.table_ns(lengths, batch), strict=True)}
    plans = plan_buckets(counts, GPU, max_batch_size=batch, own_queues=True)
    for number, plan in enumerate(plans, start=1):
        costs = []
        for inner in combinations(lengths[:-1], number - 1):
            edges = (*inner, lengths[-1])
            costs.append(sum(c * whole[min(e for e in edges if e >= n)] for n, c in counts.items()))
        assert plan.throughput_rps == pytest.approx(sum(counts.values()) * batch / min(costs))


def test_without_a_curve_edges_pad_least() -> None:
    lengths = [3] * 10 + [4] * 10 + [50] * 10 + [60] * 10 + [200]
    edges = choose_edges(lengths, None, BatcherConfig(8), own_queues=False)
    assert edges == (4, 50, 60, 200)
    others = [(*inner, 200) for inner in combinations([3, 4, 50, 60], 3)]
    assert padding_share(lengths, edges) == min(padding_share(lengths, other) for other in others)


@pytest.mark.parametrize("concurrency", [1, 3, 8, 40])
@pytest.mark.parametrize("instances", [1, 2])
def test_one_lane_is_the_model_that_the_simulator_knows(concurrency: int, instances: int) -> None:
    config = BatcherConfig(8, instance_count=instances)
    arrivals = Arrivals.closed(concurrency, 2_000, lengths=(64,))
    machine = Machine(client_overhead_us=400)
    lane = simulate_lanes((64,), config, arrivals, CPU, machine=machine, warm_up=200)
    known = simulate(config, arrivals, CPU, machine=machine, warm_up=200)
    assert lane.throughput_rps == pytest.approx(known.throughput_rps, rel=0.06)
    assert lane.avg_us == pytest.approx(known.avg_us, rel=0.06)


def test_open_arrivals_wait_by_littles_law() -> None:
    arrivals = Arrivals.poisson(40, 4_000, seed=3, lengths=(10, 200))
    seen = simulate_lanes((10, 200), BatcherConfig(1), arrivals, CPU, machine=IDEAL)
    assert seen.throughput_rps == pytest.approx(40, rel=0.05)
    assert seen.requests == seen.inference_count == seen.execution_count == 4_000
    assert [stage.inference_count for stage in seen.stages] == [2_000, 2_000]
    assert seen.avg_us is not None and seen.avg_us > 0.5 * (1_500 + 20_500)  # what they take alone


def test_short_texts_do_not_wait_behind_long_ones_in_models_of_their_own() -> None:
    """One in ten is long; in one model of one instance the others queue behind it."""
    lengths = [10] * 9 + [250]
    arrivals = Arrivals.poisson(120, 6_000, seed=5, lengths=lengths)
    roomy = ServiceModel(CPU.lengths, CPU.rows, CPU.times_ms, slowdown=(1.0, 1.0))  # two executions do not disturb
    own = simulate_lanes((10, 250), BatcherConfig(8), arrivals, roomy, machine=IDEAL)
    one = simulate(BatcherConfig(8, shape_checked=True), arrivals, roomy)
    assert own.p90_us is not None and one.p90_us is not None and own.p90_us < one.p90_us / 2
    assert own.p50_us == pytest.approx(1_500)  # as long as they take alone


def test_more_executions_than_were_measured_share_what_the_measured_ones_got() -> None:
    arrivals = Arrivals.closed(4, 400, lengths=(10, 20, 30, 40))
    alone = ServiceModel(CPU.lengths, CPU.rows, CPU.times_ms)
    seen = simulate_lanes((10, 20, 30, 40), BatcherConfig(1), arrivals, alone, machine=IDEAL)
    each_s = np.mean([0.5 + 0.1 * n for n in (10, 20, 30, 40)]) / 1e3
    assert seen.throughput_rps == pytest.approx(1 / each_s, rel=0.02)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(UsageError, match="above the last edge"):
        simulate_lanes((10,), BatcherConfig(1), Arrivals.closed(1, 5, lengths=(11,)), CPU, machine=IDEAL)
    with pytest.raises(UsageError, match="no buckets"):
        choose_padding([], CPU, BatcherConfig(8), concurrency=8)
