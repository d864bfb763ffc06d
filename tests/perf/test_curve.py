"""The service curve: what follows from runs of known times, the law's residuals, and the stored file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from perf.curve import Batch, CurveRun, ServiceCurve, Setting, curve_path, read_curve, write_curve
from perf.sim import Arrivals, BatcherConfig, simulate
from tooling.config.knobs import Knobs
from tooling.errors import UsageError

DISPATCH, CLIENT, MERGE = 300.0, 200.0, 50.0
SLOWER = 1.5
SETTING = Setting(instances=2, threads=1)


def compute_us(rows: int, length: int) -> float:
    return 2_000 + 500 * rows + 40 * rows * length


def run(clients: int, rows: int, length: int, *, most: int = 8, noise: float = 1.0) -> CurveRun:
    """A run on an ideal machine of two instances, where two busy ones slow each other down."""
    busy = min(clients, 2)
    merged = clients > 2 and rows < most
    size = most if merged else rows
    time = compute_us(size, length) * (SLOWER if busy == 2 else 1) * noise
    turn = time + DISPATCH + (MERGE * (size - 1) * SLOWER if merged else 0)
    count, each = 12, size if merged else 1  # executions, and requests in one
    if clients <= 2:
        sent = [(turn + CLIENT) * (n // busy) for n in range(count)]
        ends = [start + turn + CLIENT for start in sent]
    else:
        ends = [turn * (n // each // busy + 1) for n in range(count * each)]
        sent = [0.0] * len(ends)
    return CurveRun(
        threads=1,
        instances=2,
        clients=clients,
        rows=rows,
        lengths=(length,),
        sent_us=sent,
        latency_us=[end - s for s, end in zip(sent, ends, strict=True)],
        batches=[Batch(rows=size, executions=count, compute_us=time)],
    )


def curve(*runs: CurveRun, lengths: tuple[int, ...] = (16, 32)) -> ServiceCurve:
    grid = [run(1, rows, length) for rows in (1, 4, 8) for length in (8, 16, 32)]
    beside = [run(2, 1, 8), run(2, 8, 32)]
    return ServiceCurve(
        tool={"tritune": "0"},
        server={},
        host={"cores": 2, "cpu": "a"},
        model={"name": "m", "sha256": "ab"},
        started="2025-01-01",
        wall_s=1.0,
        lengths=lengths,
        runs=(*grid, *beside, run(4, 8, 8), run(32, 1, 8), *runs),
    )


def test_what_was_put_in_is_found_again() -> None:
    series = curve().of(SETTING)
    assert series.points[4, 16] == pytest.approx(compute_us(4, 16) / 1e3)
    assert series.slowdown == pytest.approx((1.0, SLOWER))
    assert series.dispatch_us == pytest.approx(DISPATCH)
    assert series.client_us == pytest.approx(CLIENT)
    assert series.merge_us == pytest.approx(MERGE)
    assert np.asarray(series.scatter.factors) == pytest.approx(1.0)


def test_busy_instances_may_be_faster_than_one_that_a_sleeping_machine_wakes_up_for() -> None:
    lone = [run(1, rows, length, noise=2.0) for rows in (1, 4, 8) for length in (8, 16, 32)]
    made = curve()
    slow = made.model_copy(update={"runs": (*lone, *(r for r in made.runs if r.clients > 1))}).of(SETTING)
    assert slow.slowdown == pytest.approx((1.0, SLOWER / 2))
    assert slow.service().slowdown == slow.slowdown


def test_the_law_is_found_and_fits() -> None:
    fit = curve().of(SETTING).fit
    assert fit.terms == pytest.approx((2.0, 0.5, 0.04, 0.0), abs=1e-6)
    assert fit.worst < 1e-6
    assert fit.good
    assert str(fit).startswith("2 +0.5·rows +0.04·rows·length")


def test_a_point_off_the_law_is_told() -> None:
    odd = curve(*(run(1, 8, 32, noise=3.0) for _ in range(3)))
    fit = odd.of(SETTING).fit
    assert not fit.good
    assert max(fit.residuals, key=lambda point: abs(fit.residuals[point])) in {(8, 32), (4, 32), (8, 16)}


def test_one_disturbed_run_does_not_move_a_point() -> None:
    noisy = curve(run(1, 8, 32), run(1, 8, 32, noise=4.0)).of(SETTING)
    assert noisy.points[8, 32] == pytest.approx(compute_us(8, 32) / 1e3)
    assert noisy.uncertainty((8, 32)) > 0.5
    assert noisy.uncertainty((1, 8)) == math.inf


def scattered(rows: int, factors: list[float], *, slow: float = 1.0) -> CurveRun:
    """A run of one request after the other, whose executions take these factors of what it takes, and all are slow."""
    base = run(1, rows, 8)
    took = np.array(factors) * slow * base.compute_us
    batch = Batch(rows=rows, executions=len(took), compute_us=float(took.mean()))
    latency = tuple((took + DISPATCH + CLIENT).tolist())
    times = {"sent_us": tuple(range(len(took))), "latency_us": latency, "batches": (batch,)}
    return base.model_copy(update=times)


def test_scatter_is_that_of_executions_that_take_as_long() -> None:
    """Every tenth execution of one row takes twice as long; those of eight rows hardly differ."""
    short = [scattered(1, [1.0] * 9 + [2.0]) for _ in range(9)]
    long = [scattered(8, [0.99, 1.01] * 5) for _ in range(9)]
    series = curve(*short, *long).of(SETTING)
    scatter = series.scatter
    assert list(scatter.times_ms) == sorted(set(series.points.values()))
    one, eight = (scatter.factors[scatter.times_ms.index(series.points[rows, 8])] for rows in (1, 8))
    assert np.mean(one) == pytest.approx(1.0)
    assert max(one) / min(one) == pytest.approx(2.0)
    assert 0.03 < np.mean(np.array(one) > 1.5) < 0.10  # beside points without scatter that take about as long
    assert max(eight) / min(eight) < 1.03


def test_slow_runs_are_replayed_whole() -> None:
    """One run of three is a third slower: it reaches the tail, and its executions stay together."""
    runs = [scattered(1, [0.98, 1.02] * 10, slow=slow) for slow in (1.0, 1.0, 1.33)]
    only = curve().model_copy(update={"runs": tuple(runs)}).of(SETTING)
    factors = np.array(only.scatter.factors[0])
    assert np.quantile(factors, 0.9) / np.median(factors) == pytest.approx(1.33, rel=0.05)
    drawn = factors[only.scatter.draws(2_000, [0])] / np.median(factors) > 1.2
    assert np.mean(drawn) == pytest.approx(1 / 3, abs=0.15)
    assert np.mean(drawn[1:][drawn[:-1]]) > 0.9


def test_the_simulator_gets_the_times_of_the_curve() -> None:
    series = curve().of(SETTING)
    config = BatcherConfig(8, instance_count=1)
    lone = simulate(config, Arrivals.closed(1, 500, lengths=(16,)), series.service(), machine=series.machine())
    assert lone.avg_us == pytest.approx(compute_us(1, 16) + DISPATCH + CLIENT, rel=0.001)
    pair = BatcherConfig(1, instance_count=2)
    busy = simulate(pair, Arrivals.closed(8, 4_000, lengths=(16,)), series.service(), machine=series.machine())
    assert busy.throughput_rps == pytest.approx(2e6 / (compute_us(1, 16) + DISPATCH) / SLOWER, rel=0.01)
    merging = simulate(config, Arrivals.closed(16, 4_000, lengths=(16,)), series.service(), machine=series.machine())
    turn_us = compute_us(8, 16) + DISPATCH + 7 * MERGE
    assert merging.throughput_rps == pytest.approx(8e6 / turn_us, rel=0.01)


def test_two_lengths_in_turn_tell_how_spinning_slows() -> None:
    alone = (compute_us(1, 8) + compute_us(1, 16)) / 2
    batches = [
        Batch(rows=1, executions=20, compute_us=1.8 * SLOWER * alone),
        Batch(rows=2, executions=1, compute_us=9e7),
    ]
    mixed = run(5, 1, 8).model_copy(update={"lengths": (8, 16), "batches": tuple(batches)})
    series = curve(mixed).of(SETTING)
    assert series.spin == pytest.approx(1.8)
    assert series.service().spin == series.spin
    assert series.merge_us == pytest.approx(MERGE)


def test_a_model_without_batching_has_a_curve() -> None:
    runs = [run(1, 1, 1, most=1), run(2, 1, 1, most=1), run(4, 1, 1, most=1)]
    series = curve().model_copy(update={"runs": tuple(runs)}).of(SETTING)
    assert series.merge_us == 0
    assert series.fit.terms == pytest.approx((compute_us(1, 1) / 1e3, 0, 0, 0))
    assert series.service().times_ms == ((pytest.approx((compute_us(1, 1) + DISPATCH) / 1e3),),)


def test_what_was_not_measured_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        curve().of(Setting(1, 2))
    problem = error.value.problems[0]
    assert (problem.got, problem.expected) == ("1 instance × 2 threads", "2 instances × 1 thread")
    assert "`tritune profile MODEL_DIR --instances 1 --threads 2`" in str(problem.hint)


def test_threads_left_to_onnx_runtime_are_measured_apart() -> None:
    runs = [run(1, 1, 1, most=1), run(2, 1, 1, most=1), run(4, 1, 1, most=1)]

    def of(*threads: int) -> ServiceCurve:
        made = [one.model_copy(update={"threads": number}) for number in threads for one in runs]
        return curve().model_copy(update={"runs": tuple(made)})

    left, asked = Knobs(), Knobs(intra_op_threads=2)
    assert [of(0, 2).setting(knobs) for knobs in (left, asked)] == [Setting(2, 0), Setting(2, 2)]
    assert of(2).setting(left) == Setting(2, 2)  # a curve without it: the nearest that there is
    assert of(0).setting(asked) == Setting(2, 2)
    assert str(Setting(2, 0)) == "2 instances × every core"


def test_a_file_of_many_faults_names_some(tmp_path: Path) -> None:
    data = curve().model_dump(mode="json")
    data["runs"] = [{}] * 10
    (tmp_path / "curve.json").write_text(json.dumps(data))
    with pytest.raises(UsageError) as error:
        read_curve(tmp_path / "curve.json")
    assert len(error.value.problems) == 21
    assert "and 61 more" in str(error.value)


def test_the_file_gives_the_same_curve_back(tmp_path: Path) -> None:
    path = tmp_path / "curves" / "m.json"
    write_curve(curve(), path)
    assert read_curve(path) == curve()
    assert '"kind": "service_curve"' in path.read_text()
    assert '"schema_version": 1' in path.read_text()
    assert curve_path("m", "cpu-2").name == "m-cpu-2.json"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "tritune profile"),
        ("{", "not JSON"),
        ('{"kind": "measurement"}', "`kind`"),
        ('{"schema_version": 2}', "`schema_version`"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "curve.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError) as error:
        read_curve(path)
    assert any(message in f"{p} {p.hint}" for p in error.value.problems)
    assert all(str(path) in str(p) for p in error.value.problems)
