"""Both kernels do the same, and whatever the configuration, every request is answered by the rules of the batcher."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perf.sim import Arrivals, BatcherConfig, Machine, QueuePolicy, Scatter, ServiceModel, Stage, Trace, run
from perf.sim.memory import ANSWERED, NONE, REFUSED, SHAPE, TIMED_OUT

policies = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(["REJECT", "DELAY"]),
    default_timeout_us=st.sampled_from([0, 500, 5_000, 50_000]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 1, 5]),
)
plain_policies = st.just(QueuePolicy())


@st.composite
def configs(draw: st.DrawFn) -> BatcherConfig:
    size = draw(st.integers(0, 9))
    levels = draw(st.sampled_from([0, 0, 0, 1, 3]))
    return BatcherConfig(
        max_batch_size=size,
        dynamic_batching=draw(st.sampled_from([True, True, True, False])),
        preferred_batch_size=tuple(draw(st.lists(st.integers(1, size), max_size=3))) if size else (),
        max_queue_delay_us=draw(st.sampled_from([0, 0, 100, 2_000, 20_000])),
        instance_count=draw(st.integers(1, 4)),
        shape_checked=draw(st.booleans()),
        optional_inputs=draw(st.booleans()),
        preserve_ordering=draw(st.booleans()) and levels <= 1,
        priority_levels=levels,
        default_priority_level=draw(st.integers(1, levels)) if levels else 0,
        default_queue_policy=draw(plain_policies | policies),
        priority_queue_policy={1: draw(policies)} if levels else {},
    )


services = st.builds(
    ServiceModel.linear,
    st.sampled_from([0.05, 1.0, 7.0]),
    st.sampled_from([0.0, 0.3]),
    scatter=st.sampled_from(
        [None, Scatter((1.0,), ((0.5, 1.0, 3.0),)), Scatter((1.0, 9.0), ((0.5, 2.0), (0.9, 1.0)), ((0.1, 0.9), (1.0,)))]
    ),
    slowdown=st.sampled_from([(), (1.0, 1.7), (1.0, 1.0, 2.5)]),
    spin=st.sampled_from([1.0, 1.6]),
)
stages = st.lists(st.builds(Stage, configs(), services), min_size=1, max_size=2)
machines = st.builds(
    Machine,
    client_overhead_us=st.sampled_from([0, 300]),
    timer_lateness_us=st.sampled_from([0, 200]),
    lost_wakeup_share=st.sampled_from([0.0, 0.3, 1.0]),
)


@st.composite
def traffic(draw: st.DrawFn) -> Arrivals:
    columns = {
        "lengths": draw(st.lists(st.integers(1, 3), min_size=1, max_size=7)),
        "priorities": draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)),
        "timeouts_us": draw(st.lists(st.sampled_from([0, 200, 10_000]), min_size=1, max_size=3)),
    }
    count = draw(st.integers(1, 120))
    if draw(st.booleans()):
        return Arrivals.closed(draw(st.integers(1, 20)), count, dealt=draw(st.booleans()), **columns)
    gaps = draw(st.lists(st.sampled_from([0, 0, 10_000, 900_000, 8_000_000]), min_size=1, max_size=9))
    return Arrivals(count=count, times_ns=np.cumsum(np.resize(np.array(gaps, dtype=np.int64), count)), **columns)


# An execution ends without waking the batcher; it runs by chance, stages what two idle instances can take, and spins.
MISSED = Stage(
    BatcherConfig(
        3,
        preferred_batch_size=(1, 2, 3),
        max_queue_delay_us=20_000,
        instance_count=3,
        shape_checked=True,
        default_queue_policy=QueuePolicy(default_timeout_us=50_000, allow_timeout_override=True),
    ),
    ServiceModel.linear(0.05, slowdown=(1.0, 1.7)),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(
    [MISSED],
    Arrivals.closed(5, 56, lengths=[1, 2], priorities=[3, 1, 0, 4], timeouts_us=[200]),
    Machine(timer_lateness_us=200, lost_wakeup_share=1.0),
    0,
)
@given(stages, traffic(), machines, st.integers(0, 5))
def test_compiled_and_plain_kernels_are_identical_and_keep_the_rules(
    row: list[Stage], arrivals: Arrivals, machine: Machine, seed: int
) -> None:
    plain = run(row, arrivals, machine=machine, seed=seed, compiled=False)
    compiled = run(row, arrivals, machine=machine, seed=seed, compiled=True)
    assert np.array_equal(plain.layout.memory, compiled.layout.memory)
    assert set(plain.status.tolist()) <= {ANSWERED, TIMED_OUT, REFUSED}
    assert (plain.latency_ns >= 0).all()
    assert ((plain.waited_ns >= 0) & (plain.waited_ns <= plain.latency_ns)).all()
    for s, stage in enumerate(row):
        check_executions(plain, s, stage.config, arrivals)


def check_executions(trace: Trace, s: int, config: BatcherConfig, arrivals: Arrivals) -> None:
    executions, ran = trace.executions(s), trace.ran(s)
    assert (np.bincount(ran[ran != NONE], minlength=len(executions.rows)) == executions.requests).all()
    limit = config.max_batch_size if config.dynamic_batching else 1
    assert (executions.rows <= max(1, limit)).all()
    begin, end = executions.start_ns, executions.start_ns + executions.span_ns
    busy = np.array([((begin <= t) & (end > t)).sum() for t in begin])
    assert (busy <= config.instance_count).all()
    if config.shape_checked or config.optional_inputs:
        shapes = trace.layout.requests[:, SHAPE]
        if not arrivals.dealt:
            lengths = np.resize(np.asarray(arrivals.lengths), arrivals.count)
            assert (np.unique(arrivals.lengths)[shapes] == lengths).all()
        for number in range(len(executions.rows)):
            assert len(set(shapes[ran == number].tolist())) == 1


def test_a_long_run_of_both_kernels() -> None:
    stage = Stage(BatcherConfig(8, max_queue_delay_us=2_000, instance_count=2), ServiceModel.linear(6, 0.4))
    arrivals = Arrivals.poisson(900, 10_000, seed=4, lengths=(8, 16, 16))
    plain, compiled = (run([stage], arrivals, compiled=compiled) for compiled in (False, True))
    assert np.array_equal(plain.layout.memory, compiled.layout.memory)
    assert plain.predict() == compiled.predict()


def test_import_loads_neither_numba_nor_grpc() -> None:
    code = (
        "import sys, perf.sim, perf.sim.scenario, perf.buckets\n"
        "heavy = {'numba', 'grpc', 'tritonclient', 'torch', 'onnx', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from perf.sim import *\n"
        "simulate(BatcherConfig(4), Arrivals.poisson(100, 50), ServiceModel.linear(1))\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_machine_code_is_kept_for_the_code_it_was_made_of(monkeypatch) -> None:
    """Made for another memory layout it would write beside the memory."""
    from perf.sim import compiled, kernel

    before = compiled._entry().__qualname__
    assert compiled._entry().__qualname__ == before
    monkeypatch.setattr(kernel, "WORK_BITS", 9)
    constant = compiled._entry().__qualname__
    monkeypatch.setattr(kernel, "pace", kernel.dequeue)
    assert len({before, constant, compiled._entry().__qualname__}) == 3


def test_without_numba_the_plain_kernel_answers(monkeypatch) -> None:
    from perf.sim import compiled as adapter
    from perf.sim import engine

    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(engine, "compiled_run", adapter.compiled_run.__wrapped__)
    monkeypatch.setattr(engine, "PLAIN_REQUESTS", 10)
    stage = Stage(BatcherConfig(4), ServiceModel.linear(1))
    assert run([stage], Arrivals.poisson(100, 50)).predict().requests == 50
