"""Single rules of the batcher and of the machine around it, and the surprises of the real server."""

from __future__ import annotations

import numpy as np
import pytest

from perf.sim import Arrivals, BatcherConfig, Machine, QueuePolicy, ServiceModel, Stage, Trace, run, simulate
from perf.sim.memory import ANSWERED, REFUSED, TIMED_OUT
from tooling.errors import MissingError, UsageError

MISSES = Machine(lost_wakeup_share=1.0)


def play(config: BatcherConfig, service: ServiceModel, times_s: list[float], machine=None, **columns) -> Trace:
    return run([Stage(config, service)], Arrivals.at(times_s, **columns), machine=machine or Machine())


def starts_s(trace: Trace) -> list[float]:
    return (trace.executions().start_ns / 1e9).tolist()


def latencies_s(trace: Trace) -> list[float]:
    return (trace.latency_ns / 1e9).tolist()


# --- rules


def test_without_dynamic_batching_requests_are_never_merged() -> None:
    config = BatcherConfig(8, dynamic_batching=False, max_queue_delay_us=5_000)
    trace = play(config, ServiceModel.linear(100), [0, 0, 0, 0], sizes=[1, 3, 1, 1])
    assert trace.executions().requests.tolist() == [1, 1, 1, 1]
    assert trace.executions().rows.tolist() == [1, 3, 1, 1]
    assert starts_s(trace) == pytest.approx([0, 0.1, 0.2, 0.3])


def test_payloads_are_staged_two_an_instance_ahead() -> None:
    """Delay 0, preferred size 2: one executes, two full payloads are staged, the rest waits in the queue."""
    config = BatcherConfig(8, preferred_batch_size=(2,))
    trace = play(config, ServiceModel.linear(100), [i / 1_000 for i in range(8)], lengths=[1])
    assert trace.executions().requests.tolist() == [1, 2, 2, 2, 1]


def test_a_staged_payload_of_odd_size_grows_at_once() -> None:
    """The second request is late and staged at 150 ms; the third joins it without waiting for its own delay."""
    config = BatcherConfig(8, max_queue_delay_us=50_000, shape_checked=True)
    trace = play(config, ServiceModel.linear(300), [0, 0.1, 0.32])
    assert trace.executions().requests.tolist() == [1, 2]
    assert starts_s(trace) == pytest.approx([0.05, 0.35])
    fixed = play(BatcherConfig(8, max_queue_delay_us=50_000), ServiceModel.linear(300), [0, 0.1, 0.32])
    assert fixed.executions().requests.tolist() == [1, 1, 1]  # with fixed dimensions it does not wake the batcher


def test_dealt_lengths_go_round_by_client() -> None:
    """Client 0 of two sends the lengths 1, 3, 2, 1 … and client 1 the lengths 2, 1, 3, 2 …; either may start first."""
    service = ServiceModel.measured({(1, 1): 10, (1, 2): 100, (1, 3): 30})
    stage, arrivals = (
        Stage(BatcherConfig(1, instance_count=2), service),
        Arrivals.closed(2, 8, lengths=(1, 2, 3), dealt=True),
    )
    first = set()
    for seed in range(8):
        done = run([stage], arrivals, seed=seed).executions()
        assert (done.start_ns / 1e6).tolist() == [0, 0, 10, 40, 100, 110, 140, 140]
        assert sorted(done.span_ns / 1e6) == [10, 10, 10, 30, 30, 100, 100, 100]
        first.add(float(done.span_ns[0]) / 1e6)
    assert first == {10, 100}


def test_preserve_ordering_holds_fast_answers() -> None:
    service = ServiceModel.measured({(1, 1): 100, (1, 2): 600})
    config = BatcherConfig(1, instance_count=2, preserve_ordering=True)
    times, lengths = [0, 0.01, 0.02], [2, 1, 1]
    held = play(config, service, times, lengths=lengths)
    assert latencies_s(held) == pytest.approx([0.6, 0.59, 0.58])
    free = play(BatcherConfig(1, instance_count=2), service, times, lengths=lengths)
    assert latencies_s(free) == pytest.approx([0.6, 0.1, 0.19])
    assert starts_s(free) == starts_s(held)


@pytest.mark.parametrize(
    ("execution_ms", "rejected_after_s"),
    [(1_500, 0.9), (300, 0.7)],  # the server: 0.902 and 0.685
)
def test_rejects_come_late(execution_ms: float, rejected_after_s: float) -> None:
    config = BatcherConfig(8, default_queue_policy=QueuePolicy(default_timeout_us=100_000))
    trace = play(config, ServiceModel.linear(execution_ms), [0, 0.1], MISSES)
    assert trace.status.tolist() == [ANSWERED, TIMED_OUT]
    assert latencies_s(trace)[1] == pytest.approx(rejected_after_s)


def test_delayed_requests_go_behind_the_fresh_ones() -> None:
    """The server started these at 0, .80, 1.30 and 1.80 s: each time the batcher missed that the instance was idle."""
    policy = QueuePolicy(timeout_action="DELAY", default_timeout_us=100_000)
    config = BatcherConfig(1, default_queue_policy=policy)
    times = [0, 0.05, 0.06, 0.28]
    assert starts_s(play(config, ServiceModel.linear(300), times, MISSES)) == pytest.approx([0, 0.8, 1.3, 1.8])
    ideal = play(config, ServiceModel.linear(300), times)
    assert starts_s(ideal) == pytest.approx([0, 0.3, 0.6, 0.9])
    assert ideal.ran().tolist() == [0, 2, 3, 1]  # the last is not yet late at 0.3 s
    overtaken = play(config, ServiceModel.linear(300), [*times, 0.55])
    assert overtaken.ran().tolist() == [0, 3, 4, 1, 2]


def test_a_timeout_can_only_be_shortened_and_only_where_there_is_one() -> None:
    def second(default_us: int, asked_us: int) -> int:
        policy = QueuePolicy(default_timeout_us=default_us, allow_timeout_override=True)
        config = BatcherConfig(1, default_queue_policy=policy)
        return int(play(config, ServiceModel.linear(200), [0, 0.01], timeouts_us=[0, asked_us]).status[1])

    assert second(0, 100_000) == ANSWERED
    assert second(10_000_000, 100_000) == TIMED_OUT
    assert second(100_000, 10_000_000) == TIMED_OUT
    assert second(10_000_000, 0) == ANSWERED


def test_each_level_has_its_own_queue_limit_and_order() -> None:
    config = BatcherConfig(
        1,
        priority_levels=2,
        default_priority_level=2,
        priority_queue_policy={2: QueuePolicy(max_queue_size=1)},
    )
    trace = play(config, ServiceModel.linear(100), [0, 0.01, 0.02, 0.03, 0.04], priorities=[2, 2, 2, 1, 1])
    assert trace.status.tolist() == [ANSWERED, ANSWERED, REFUSED, ANSWERED, ANSWERED]
    assert trace.ran().tolist() == [0, 3, -1, 1, 2]


def test_an_ensemble_runs_its_stages_in_a_row() -> None:
    first = Stage(BatcherConfig(1, instance_count=2), ServiceModel.linear(10))
    second = Stage(BatcherConfig(8), ServiceModel.linear(20, 5))
    trace = run([first, second], Arrivals.at([0, 0, 0.001]))
    assert starts_s(trace) == pytest.approx([0, 0, 0.010])
    assert trace.executions(1).requests.tolist() == [1, 2]
    assert latencies_s(trace) == pytest.approx([0.035, 0.065, 0.064])
    assert trace.predict().stages[1].batch_histogram == {1: 1, 2: 1}


def test_an_ensembles_closed_loop_is_limited_by_its_slowest_stage() -> None:
    stages = [
        Stage(BatcherConfig(1, instance_count=2), ServiceModel.linear(4)),
        Stage(BatcherConfig(1), ServiceModel.linear(5)),
    ]
    prediction = run(stages, Arrivals.closed(6, 5_000)).predict(warm_up=100)
    assert prediction.throughput_rps == pytest.approx(200, rel=0.01)
    assert prediction.avg_us == pytest.approx(6 / 200 * 1e6, rel=0.01)


def test_busy_instances_slow_each_other_down() -> None:
    """Two executions of 10 ms that run at 2/3 speed together: the second one has 5 ms of its own at the start."""
    service = ServiceModel.linear(10, slowdown=(1.0, 1.5))
    trace = play(BatcherConfig(1, instance_count=2), service, [0, 0.005])
    assert latencies_s(trace) == pytest.approx([0.0125, 0.0125], abs=1e-7)
    assert (trace.executions().span_ns / 1e6).tolist() == pytest.approx([12.5, 12.5], abs=1e-4)


def test_the_clients_overhead_is_in_the_latency_and_between_its_requests() -> None:
    prediction = simulate(
        BatcherConfig(1), Arrivals.closed(1, 100), ServiceModel.linear(8), machine=Machine(client_overhead_us=2_000)
    )
    assert prediction.avg_us == prediction.p99_us == 10_000
    assert prediction.throughput_rps == pytest.approx(100)


def test_a_seed_fixes_the_scatter() -> None:
    def figures(seed: int):
        service = ServiceModel.linear(5, spread=(0.8, 1.0, 1.2))
        return simulate(BatcherConfig(4), Arrivals.poisson(300, 2_000, seed=1), service, seed=seed)

    assert figures(1) == figures(1)
    assert figures(1).avg_us != figures(2).avg_us


def test_percentiles_are_read_as_perf_analyzer_reads_them() -> None:
    prediction = simulate(BatcherConfig(1), Arrivals.constant(1, 100, burst=100), ServiceModel.linear(1))
    latencies = np.arange(1, 101) * 1_000
    wanted = [latencies[int(p / 100 * 99 + 0.5)] for p in (50, 90, 95, 99)]
    assert [prediction.p50_us, prediction.p90_us, prediction.p95_us, prediction.p99_us] == wanted


# --- surprises of the real server


def test_a_short_delay_can_halve_closed_loop_throughput() -> None:
    service = ServiceModel.linear(2.6, 0.4, slowdown=(1.0, 1.05))

    def throughput(delay_us: int) -> float:
        config = BatcherConfig(8, max_queue_delay_us=delay_us, instance_count=2)
        return simulate(config, Arrivals.closed(2, 4_000), service, warm_up=200).throughput_rps

    assert throughput(3_000) < 0.55 * throughput(0)


def test_lengths_that_never_share_a_batch_saturate_early() -> None:
    arrivals = Arrivals.poisson(150, 5_000, seed=3, lengths=(4, 8))
    service = ServiceModel.linear(20, 1)
    equal = simulate(BatcherConfig(4), arrivals, service)
    apart = simulate(BatcherConfig(4, shape_checked=True), arrivals, service)
    assert equal.mean_batch is not None and equal.mean_batch > 2.5
    assert apart.mean_batch == pytest.approx(1, abs=0.01)
    assert equal.p99_us is not None and apart.p99_us is not None
    assert apart.p99_us > 50 * equal.p99_us


def test_a_spinning_batcher_slows_executions() -> None:
    """Two instances, five clients, two lengths in turn: the batcher spins all the time, with three clients never."""
    slow = ServiceModel.linear(10, spin=1.8)
    for clients, factor in ((3, 1.0), (5, 1.8)):
        config = BatcherConfig(8, instance_count=2, shape_checked=True)
        arrivals = Arrivals.closed(clients, 2_000, lengths=(1, 2))
        rate = simulate(config, arrivals, slow, warm_up=100).throughput_rps
        assert rate == pytest.approx(200 / factor, rel=0.02)


def test_a_queue_policy_stalls_the_server() -> None:
    """60 requests at once, 20 ms each: the server took 18.1 s with 35 stalls in 59 gaps, 1.29 s without a policy."""
    arrivals = Arrivals.at([0.0] * 60)
    service = ServiceModel.linear(20)
    policy = QueuePolicy(max_queue_size=1_000)
    stalling = BatcherConfig(1, default_queue_policy=policy)
    machine = Machine(lost_wakeup_share=35 / 59)
    took = [
        max(latencies_s(run([Stage(stalling, service)], arrivals, machine=machine, seed=seed))) for seed in range(20)
    ]
    assert np.mean(took) == pytest.approx(18.1, rel=0.1)
    assert max(latencies_s(play(stalling, service, [0.0] * 60))) == pytest.approx(1.2)
    assert max(latencies_s(play(BatcherConfig(1), service, [0.0] * 60, machine))) == pytest.approx(1.2)


# --- wrong input


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BatcherConfig(4, preferred_batch_size=(8,)), "`preferred_batch_size` is out of range"),
        (lambda: BatcherConfig(4, priority_levels=2), "`priority level` is out of range"),
        (lambda: BatcherConfig(-1, instance_count=0), "`instance_count`"),
        (lambda: ServiceModel.measured({(1, 8): 1.0, (2, 16): 2.0}), r"\(2, 8\), \(1, 16\)"),
        (lambda: ServiceModel.linear(0.0), "positive"),
        (lambda: Arrivals.at([0.2, 0.1]), "ascend"),
        (lambda: Arrivals.at([0.2], lengths=[]), "empty"),
        (lambda: Arrivals.closed(0, 5), "no client"),
    ],
)
def test_impossible_input_is_refused(make, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


def test_a_compiled_run_needs_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    from perf.sim import engine

    monkeypatch.setattr(engine, "compiled_run", lambda: None)
    with pytest.raises(MissingError, match="numba is not installed"):
        run([Stage(BatcherConfig(1), ServiceModel.linear(1))], Arrivals.at([0]), compiled=True)
