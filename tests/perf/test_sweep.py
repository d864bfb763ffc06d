"""The sweep on the simulator: what it takes for equal, what it ranks first, what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perf.curve import Batch, CurveRun, ServiceCurve, Setting
from perf.grid import Candidate, Grid, wide
from perf.guided import guided
from perf.slo import Slo
from perf.sweep import Sweep, improved
from perf.workload import Workload
from tooling.config.knobs import Knobs, apply
from tooling.config.proto import ModelConfig, pb

BASE = Knobs()
REQUESTS = 300


def config(dims: int = -1) -> ModelConfig:
    made = pb().ModelConfig(name="m", backend="onnxruntime", max_batch_size=8)
    made.dynamic_batching.SetInParent()
    made.input.add(name="x", data_type=pb().TYPE_FP32, dims=[dims])
    made.output.add(name="y", data_type=pb().TYPE_FP32, dims=[1])
    return made


def run(setting: Setting, rows: int, length: int, compute_us: float, clients: int = 1) -> CurveRun:
    sent = [n * compute_us for n in range(8)]
    return CurveRun(
        threads=setting.threads,
        instances=setting.instances,
        clients=clients,
        rows=rows,
        lengths=(length,),
        sent_us=sent,
        latency_us=[compute_us] * 8,
        batches=[Batch(rows=rows, executions=8, compute_us=compute_us)],
    )


def curve(fixed_us: dict[Setting, float], row_us: float, lengths: tuple[int, ...] = (16,)) -> ServiceCurve:
    """Executions that take a time of their setting and `row_us` for each row of 16 tokens; none slows another down."""
    runs = [
        run(setting, rows, length, fixed + rows * row_us * length / 16)
        for setting, fixed in fixed_us.items()
        for rows in (1, 8)
        for length in sorted({*lengths, min(lengths) + 1})
    ]
    return ServiceCurve(
        tool={},
        server={},
        host={"cores": 2, "cpu": "a"},
        model={"name": "m"},
        started="2025-01-01",
        wall_s=1.0,
        lengths=lengths,
        runs=tuple(runs),
    )


ONE, TWO, FAST = Setting(1, 2), Setting(2, 2), Setting(2, 1)
FOUR = {ONE: 10_000.0, TWO: 10_000.0, FAST: 5_000.0, Setting(1, 1): 40_000.0}


def sweep(
    fixed_us: dict[Setting, float] = FOUR,
    row_us: float = 1_000,
    workload: Workload | None = None,
    slo: str = "throughput",
    base: Knobs = BASE,
    **grid: Any,
) -> Sweep:
    traffic = workload or Workload(concurrency=8, lengths=(16,))
    made = apply(base, config())
    measured = curve(fixed_us, row_us, traffic.lengths)
    return Sweep(made, base, measured, traffic, Slo.parse(slo), wide(base, Grid(**grid), 2), requests=REQUESTS)


def test_the_best_of_each_split_comes_first_and_the_simplest_of_equals() -> None:
    first = sweep(delays_us=(0, 5_000)).finalists(3)[0].candidate
    assert (first.knobs.instance_count, first.knobs.intra_op_threads) == (None, 1)
    assert first.changed[0] == "intra_op_threads" or "intra_op_threads" in first.changed
    assert first.knobs.max_queue_delay_us == 0 or "max_queue_delay_us" in first.changed


def test_a_setting_that_waits_is_tried_beside_the_same_without_a_delay_which_other_splits_precede() -> None:
    made = sweep({ONE: 3_850.0, TWO: 40_000.0, FAST: 5_000.0, Setting(1, 1): 40_000.0}, delays_us=(0, 5_000))
    finalists = made.finalists(9)
    assert [one.candidate.id for one in finalists] == ["i2-t1-b4-d5000", "i1-t2-b8-d5000", "i2-t1-b4-d0"]
    assert made.merit(finalists[2]) > made.merit(finalists[1])


def test_batches_from_1_to_64_and_delays_to_50_ms_are_played_with_and_without_merging() -> None:
    knobs = [one.candidate.knobs for one in sweep().expected]
    assert {k.max_batch_size for k in knobs} == {1, 2, 4, 8, 16, 32, 64}
    assert {k.max_queue_delay_us for k in knobs} >= {0, 1_000, 10_000, 50_000}
    assert {k.dynamic_batching for k in knobs} == {True, False}


@pytest.mark.parametrize(
    "base",
    [
        Knobs(instance_count=1, instance_kind="cpu"),
        Knobs(preferred_batch_size=(4, 8), max_queue_delay_us=300),
        Knobs(intra_op_threads=2, dynamic_batching=False),
        Knobs(max_batch_size=48),
    ],
)
def test_what_a_config_holds_never_shortens_the_search(base: Knobs) -> None:
    plain, found = (wide(b, Grid(), 2) for b in (BASE, base))
    assert len(found) >= len(plain)
    splits = {(c.knobs.instance_count or 2, c.knobs.intra_op_threads or 2) for c in found}
    assert splits == {(1, 1), (1, 2), (2, 1), (2, 2)}
    if base.preferred_batch_size:
        assert {bool(c.knobs.preferred_batch_size) for c in found} == {True, False}


def test_without_batching_only_instances_and_threads_are_left() -> None:
    found = wide(Knobs(max_batch_size=0, dynamic_batching=False), Grid(), 2)
    assert [c.id for c in found] == ["i1-t1-b0-d0", "i1-t2-b0-d0", "i2-t1-b0-d0"]


def test_equal_settings_are_played_once() -> None:
    made = sweep(delays_us=(0, 5_000))
    assert len(made.expected) > 30
    assert len(made._played) <= 0.7 * len(made.expected), "8 clients never fill 16, 32 or 64 rows"
    by_size = [e for e in made.expected if e.candidate.id in ("i2-t1-b16-d0", "i2-t1-b64-d0")]
    assert by_size[0].prediction == by_size[1].prediction


def test_a_delay_that_halves_what_two_clients_get_is_not_proposed() -> None:
    few = Workload(concurrency=2, lengths=(16,))
    best = sweep(workload=few, max_batch_sizes=(8,)).finalists(4)
    assert best and all(one.candidate.knobs.max_queue_delay_us == 0 for one in best)


def test_of_two_groups_of_a_split_predicted_alike_one_waits_for_the_other_splits() -> None:
    """Merging gains next to nothing where each row takes its time."""
    made = sweep({ONE: 100.0, TWO: 1_500.0, FAST: 100.0, Setting(1, 1): 100.0}, row_us=10_000, delays_us=(0,))
    best = [one.candidate for one in made.best()]
    assert [made.setting(one.knobs) for one in best[:3]] == [FAST, FAST, TWO]
    finalists = [one.candidate for one in made.finalists(9)]
    assert (finalists[:2], finalists[-1]) == ([best[0], best[2]], best[1])


def test_limits_come_before_the_score() -> None:
    made = sweep(slo="p99<26ms,throughput", max_batch_sizes=(4, 8))
    kept = [one for one in made.expected if (one.prediction.p99_us or 0) < 26_000]
    assert kept and made.merit(made.best()[0])[0] == 2.0
    assert made.best()[0].prediction.throughput_rps == pytest.approx(
        max(one.prediction.throughput_rps for one in kept), rel=0.06
    )


def test_a_rate_that_is_too_much_ranks_last() -> None:
    made = sweep(workload=Workload(request_rate=150, lengths=(16,)), slo="p95", delays_us=(0, 5_000))
    saturated = [one for one in made.expected if one.saturated]
    assert saturated and not made.best()[0].saturated
    assert min(made.merit(one) for one in made.expected) == min(made.merit(one) for one in saturated)


def test_padding_is_proposed_where_batches_pay() -> None:
    """A GPU's law: an execution takes as long whatever its rows, so equal shapes are worth their padding."""
    mixed = Workload(concurrency=16, lengths=tuple(range(16, 48)))
    flat = sweep({TWO: 20_000.0, ONE: 20_000.0, FAST: 20_000.0, Setting(1, 1): 20_000.0}, 10, mixed, delays_us=(0,))
    assert flat.finalists(3)[0].candidate.edges
    steep = sweep({TWO: 500.0, ONE: 500.0, FAST: 500.0, Setting(1, 1): 500.0}, 10_000, mixed, delays_us=(0,))
    assert not any(one.candidate.edges for one in steep.finalists(9))


def test_frontier_holds_what_no_other_beats() -> None:
    made = sweep(delays_us=(0, 5_000))
    front = made.frontier()
    assert front
    rates = [one.prediction.throughput_rps for one in front]
    assert rates == sorted(rates)
    for one in front:
        assert not any(
            other.prediction.throughput_rps > one.prediction.throughput_rps * 1.001
            and (other.prediction.p99_us or 0) < (one.prediction.p99_us or 0) * 0.94
            for other in made.expected
        )


def test_refitting_finds_how_much_slower_the_machine_was() -> None:
    made = sweep(delays_us=(0,))
    slow = replace(made, common=1.5)
    one = made.finalists(1)[0].candidate
    seen = slow.play(one).prediction.avg_us or 0
    found = made.refitted({one: seen})
    assert found.factors[made.setting(one.knobs)] == pytest.approx(1.5, rel=0.05)
    assert found.common == pytest.approx(1.5, rel=0.05)
    assert found.play(one).prediction.throughput_rps == pytest.approx(
        slow.play(one).prediction.throughput_rps, rel=0.05
    )


class Server:
    """A server that behaves as `truth` predicts, in place of Search: every comparison is decided at once."""

    def __init__(self, truth: Sweep) -> None:
        self.truth, self.asked = truth, []

    def confirm(self, finalists: dict[Candidate, float]) -> list[Any]:
        self.asked += list(finalists)
        return [self._trial(one) for one in finalists]

    def current(self, default: Candidate) -> Any:
        return self._trial(default)

    def _trial(self, one: Candidate) -> Any:
        from perf.compare import Verdict
        from perf.measurement import Measurement
        from perf.trial import Figures, Trial

        p = self.truth.play(one).prediction
        names = ("throughput_rps", "avg_us", "p50_us", "p99_us")
        figures: dict[str, Any] = {name: getattr(p, name) for name in names}
        point = Measurement(status="ok", load={"mode": "concurrency", "value": 8}, **figures)
        ratio = self.truth.gain(self.truth.play(one))
        return Trial(one, "compared", Figures.of([point]), verdict=Verdict("better", ratio, ratio, ratio, 6))


def test_a_right_curve_needs_three_measurements() -> None:
    made = sweep(delays_us=(0, 5_000))
    server = Server(made)
    found = guided(server, Candidate("default", BASE), made, lambda *_: None)  # type: ignore[arg-type]
    assert (found.refits, found.trusted) == (0, True)
    assert 1 <= len(found.trials) == len(server.asked) <= 3
    assert all(check.agrees for check in found.checks)


def test_a_wrong_curve_is_corrected_and_what_then_looks_best_is_measured_too() -> None:
    """The curve flatters one split; measured, it is slow, and the best of the others is found in the second round."""
    truth = sweep({ONE: 9_000.0, TWO: 20_000.0, FAST: 30_000.0, Setting(1, 1): 30_000.0}, delays_us=(0,))
    believed = sweep({ONE: 40_000.0, TWO: 20_000.0, FAST: 4_000.0, Setting(1, 1): 90_000.0}, delays_us=(0,))
    server = Server(truth)
    found = guided(server, Candidate("default", BASE), believed, lambda *_: None)  # type: ignore[arg-type]
    assert found.refits >= 1
    assert any(not check.agrees for check in found.checks)
    assert len(server.asked) <= 6


@pytest.mark.parametrize(
    ("slo", "workload", "tier"),
    [
        ("p99<1ms,throughput", Workload(concurrency=8, lengths=(16,)), 0.0),
        ("p99<1ms,p95", Workload(request_rate=10, lengths=(16,)), 0.0),
        ("p95", Workload(request_rate=5_000, lengths=(16,)), -1.0),
    ],
)
def test_where_nothing_is_predicted_to_keep_up_the_nearest_are_measured(
    slo: str, workload: Workload, tier: float
) -> None:
    """So that the answer is a table of what was measured, and not that there is nothing to measure."""
    made = sweep(slo=slo, workload=workload, delays_us=(0,))
    assert {made.merit(one)[0] for one in (made.default, *made.expected)} == {tier}
    finalists = made.finalists(3)
    assert finalists[0] == made.best()[0]
    server = Server(made)
    found = guided(server, Candidate("default", BASE), made, lambda *_: None)  # type: ignore[arg-type]
    assert [trial.candidate for trial in found.trials][:3] == [one.candidate for one in finalists]


@pytest.mark.parametrize(("score", "least"), [(100.0, 105.0), (-2.1, -2.0)])
def test_a_gain_is_5_percent_of_what_is_kept_and_of_what_is_missed(score: float, least: float) -> None:
    assert improved(score) == pytest.approx(least)
