"""The order of the search, on a bench whose runs are computed instead of measured."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.grid import Candidate
from perf.measurement import Measurement
from perf.search import FINALISTS, Budget, Search
from perf.slo import Slo
from perf.subject import CandidateFailed, Load, Round
from perf.trial import Trial
from perf.tune import curve_budget_s
from perf.workload import Workload
from tooling.config.knobs import Knobs
from tooling.console import Console

DEFAULT = Candidate("default", Knobs())


class Bench:
    """Settings with known speeds: the current config answers 100 requests/s, a candidate as many as its speed says.

    Every run costs a second, takes 8 / throughput as its latency and scatters by ±`noise`.
    """

    run_s, load_s = 1.0, 4.0
    fresh = 2

    def __init__(self, speeds: dict[str, float], noise: float = 0.01, failing: dict[str, int] | None = None) -> None:
        self.speeds, self.failing = speeds, failing or {}
        self.noise = itertools.cycle((1 + noise, 1 - noise, 1 - noise, 1 + noise))
        self.spent_s, self.measured = 0.0, 0
        self.asked: list[tuple[str, str, int]] = []
        self.recorded: dict[str, range] = {}
        self.groups_asked: list[str] = []

    def groups(self, number: int) -> dict[str, tuple[str, ...]]:
        return {name: tuple(name.split("+")) for name, rounds in self.recorded.items() if number in rounds}

    def holds(self, candidates: list[Candidate], number: int, group: str = "") -> bool:
        return number in self.recorded.get(group, ())

    def prepare(self, longest_run_s: float) -> None:
        self.longest_run_s = longest_run_s
        self.spent_s += 3

    def pair(self, candidate: Candidate, stage: str, number: int, load: Any = None) -> tuple[Measurement, Measurement]:
        self.asked.append((candidate.id, stage, number))
        if self.failing.get(candidate.id, 99) < len([a for a in self.asked if a[0] == candidate.id]):
            raise CandidateFailed("Triton refuses it: no")
        self.spent_s += 2
        self.measured += self.fresh
        return self.point(100.0 * next(self.noise)), self.point(self.speeds[candidate.id])

    def round(self, candidates: list[Candidate], stage: str, number: int, group: str = "") -> Round:
        others, failed = {}, {}
        self.groups_asked.append(group)
        for one in candidates:
            self.asked.append((one.id, stage, number))
            if self.failing.get(one.id, 99) < len([a for a in self.asked if a[0] == one.id]):
                failed[one.id] = "Triton refuses it: no"
            else:
                others[one.id] = self.point(self.speeds[one.id])
        base = self.point(100.0 * next(self.noise)) if others else None
        self.spent_s += bool(base) + len(others)
        self.measured += self.fresh
        return Round(base, others, failed)

    @staticmethod
    def point(rps: float) -> Measurement:
        latency = 8e6 / rps
        figures: dict[str, Any] = {"throughput_rps": rps, "p50_us": latency, "p95_us": latency, "p99_us": latency}
        return Measurement(status="ok", load={"mode": "concurrency", "value": 8}, **figures)


def search(bench: Bench, slo: Slo | None = None, budget_s: float = 1_000) -> tuple[Trial, dict[str, Trial], Search]:
    tries = [Candidate(name, Knobs(), ("instance_count",)) for name in bench.speeds]
    run = Search(bench, slo or Slo(), Budget(budget_s), Console(quiet=True))  # type: ignore[arg-type]
    default, trials = run.run(DEFAULT, tries)
    assert [t.candidate.id for t in trials] == list(bench.speeds)
    return default, {t.candidate.id: t for t in trials}, run


def test_far_off_settings_are_screened_out_and_the_best_compared() -> None:
    bench = Bench({"slow": 50.0, "a": 120.0, "b": 115.0, "c": 110.0, "d": 105.0})
    _, trials, run = search(bench)
    assert trials["slow"].state == trials["d"].state == "screened out"
    assert trials["slow"].screen_ratio == pytest.approx(0.5, rel=0.02)
    assert trials["d"].reason == f"not among the best {FINALISTS}"
    assert {n: t.verdict.outcome for n, t in trials.items() if t.verdict} == dict.fromkeys("abc", "better")
    assert len(run.points) == 5 * 2 * 2 + 6 * (1 + 3)  # screened in pairs, compared in rounds


def test_the_best_are_compared_in_rounds_that_share_the_runs_of_the_current_config() -> None:
    """Who is decided leaves; the others go on."""
    bench = Bench({"a": 110.0, "b": 101.0, "c": 108.0}, noise=0.02)
    run = Search(bench, Slo(), Budget(1_000), Console(quiet=True))  # type: ignore[arg-type]
    a, b, c = run.confirm({Candidate(name, Knobs(), ("x",)): None for name in bench.speeds})
    assert [t.verdict.pairs for t in (a, b, c) if t.verdict] == [6, 18, 6]
    assert bench.asked[:6] == [(name, "paired", number) for number in range(2) for name in "abc"]
    assert len(run.points) == 6 * 4 + 12 * 2
    assert {t.against.runs for t in (a, c) if t.against} == {6}
    assert bench.groups_asked == ["a+b+c"] * 6 + ["b"] * 12


def test_after_two_rounds_only_the_best_go_on() -> None:
    """At most three, and nobody who is more than a tenth behind."""
    bench = Bench({"slow": 120.0, "a": 140.0, "b": 139.0, "c": 138.0, "d": 137.0})
    run = Search(bench, Slo(), Budget(1_000), Console(quiet=True))  # type: ignore[arg-type]
    trials = run.confirm({Candidate(name, Knobs(), ("x",)): None for name in bench.speeds})
    assert [t.figures.runs for t in trials if t.figures] == [2, 6, 6, 6, 2]
    assert len(run.points) == 2 * (1 + 5) + 4 * (1 + 3)
    slow, *_, d = trials
    assert (slow.state, d.state, slow.reason) == ("screened out", "screened out", d.reason)
    assert d.reason and d.reason.endswith("after 2 rounds")
    assert (slow.screen_ratio, d.screen_ratio) == (pytest.approx(1.2, rel=0.01), pytest.approx(1.37, rel=0.01))


def test_after_two_rounds_those_that_keep_the_limits_come_first() -> None:
    """However fast the others are."""

    class Late(Bench):
        @staticmethod
        def point(rps: float) -> Measurement:
            point = Bench.point(rps)
            return point if rps < 130 else replace(point, p99_us=200_000.0)

    bench = Late({"a": 140.0, "b": 160.0, "c": 110.0, "d": 150.0})
    run = Search(bench, Slo.parse("p99<=90ms,throughput"), Budget(1_000), Console(quiet=True))  # type: ignore[arg-type]
    trials = run.confirm({Candidate(name, Knobs(), ("x",)): None for name in bench.speeds})
    assert [t.admissible for t in trials] == [False, False, True, False]
    assert [t.state for t in trials] == ["screened out", "compared", "compared", "compared"]


def test_the_budget_takes_as_many_to_the_rounds_as_it_can_pay() -> None:
    bench = Bench({"a": 131.0, "b": 140.0, "c": 132.0}, noise=0.2)
    run = Search(bench, Slo(), Budget(37), Console(quiet=True))  # type: ignore[arg-type]
    a, b, c = run.confirm({Candidate(name, Knobs(), ("x",)): None for name in bench.speeds})
    assert (c.state, c.reason) == ("not explored", "budget used up")
    assert [t.verdict.pairs for t in (a, b) if t.verdict] == [6, 12], "of two undecided the more promising goes on"
    assert a.outcome == "undecided (time budget used up after 6 of 18 pairs)"


def test_a_run_may_be_as_long_as_lets_all_come_to_the_first_look() -> None:
    bench = Bench({"a": 101.0, "b": 140.0})
    run = Search(bench, Slo(), Budget(84), Console(quiet=True))  # type: ignore[arg-type]
    run.confirm({Candidate(name, Knobs(), ("x",)): None for name in bench.speeds})
    assert bench.longest_run_s == (84 - 3 * 4) / (6 * 3), "loading takes 4 s each"


def test_one_that_fails_leaves_the_rounds() -> None:
    bench = Bench({"a": 140.0, "b": 130.0}, failing={"b": 4})
    run = Search(bench, Slo(), Budget(1_000), Console(quiet=True))  # type: ignore[arg-type]
    a, b = run.confirm({Candidate(name, Knobs(), ("x",)): None for name in bench.speeds})
    assert (b.state, b.reason, b.figures and b.figures.runs) == ("failed", "Triton refuses it: no", 4)
    assert a.verdict and (a.verdict.outcome, a.verdict.pairs) == ("better", 6)


def test_settings_that_do_not_fit_into_memory_together_are_compared_apart() -> None:
    bench = Bench({"a": 140.0, "b": 130.0, "c": 128.0})
    pairs = lambda those: [those[:2], those[2:]]  # noqa: E731
    run = Search(bench, Slo(), Budget(1_000), Console(quiet=True), pairs)  # type: ignore[arg-type]
    trials = run.confirm({Candidate(name, Knobs(), ("x",)): None for name in bench.speeds})
    assert [t.outcome for t in trials] == ["better"] * 3
    assert list(dict.fromkeys(bench.groups_asked)) == ["a+b", "c"]


def test_groups_that_were_begun_stay_together() -> None:
    """A larger budget finds other settings too; those compared before keep the runs that they share."""
    bench = Bench({"a": 140.0, "b": 130.0, "c": 120.0})
    bench.recorded = {"c+x": range(6)}
    run = Search(bench, Slo(), Budget(1_000), Console(quiet=True))  # type: ignore[arg-type]
    run.confirm({Candidate(name, Knobs(), ("x",)): None for name in bench.speeds})
    assert list(dict.fromkeys(bench.groups_asked)) == ["c+x", "a+b"]


def test_who_was_left_behind_goes_on_with_runs_of_its_own() -> None:
    """The runs of the current config that another shared are of other minutes."""
    bench = Bench({"a": 104.0, "b": 103.0}, noise=0.2)
    bench.recorded = {"a+b": range(6), "a": range(6, 12)}
    run = Search(bench, Slo(), Budget(1_000), Console(quiet=True))  # type: ignore[arg-type]
    run.confirm({Candidate(name, Knobs(), ("x",)): None for name in bench.speeds})
    assert bench.groups_asked == ["a+b"] * 6 + ["a"] * 6 + ["b"] * 6 + ["a+b"] * 6


def test_pairs_of_the_screening_do_not_count_in_the_comparison() -> None:
    bench = Bench({"a": 120.0})
    _, trials, _ = search(bench)
    assert bench.asked == [("a", "screen", 0), ("a", "screen", 1), *(("a", "paired", n) for n in range(6))]
    assert trials["a"].figures is not None
    assert trials["a"].figures.runs == 6


def test_noise_leads_to_further_looks() -> None:
    bench = Bench({"a": 101.0}, noise=0.2)
    _, trials, _ = search(bench)
    assert trials["a"].verdict is not None
    assert (trials["a"].verdict.pairs, trials["a"].verdict.word) == (18, "tie (not distinguishable)")


def test_a_look_that_cannot_be_paid_ends_as_a_tie() -> None:
    bench = Bench({"a": 101.0}, noise=0.2)
    _, trials, _ = search(bench, budget_s=30)
    assert trials["a"].verdict is not None
    assert (trials["a"].verdict.pairs, trials["a"].verdict.outcome) == (6, "tie")


def test_what_the_budget_leaves_out_is_named() -> None:
    bench = Bench({"a": 120.0, "b": 130.0})
    _, trials, _ = search(bench, budget_s=10)
    assert (trials["a"].state, trials["a"].reason) == ("not explored", "budget used up")
    assert trials["a"].screen_ratio is not None
    assert (trials["b"].state, trials["b"].figures) == ("not explored", None)
    assert bench.spent_s == 3 + 2 * 2  # the first setting is screened in any case


def test_what_was_compared_before_counts_whatever_is_screened_since() -> None:
    """A larger budget screens more settings: the comparison on record stays, though others now rank before it."""
    bench = Bench({"old": 140, "new1": 150, "new2": 150, "new3": 150})
    bench.recorded = {"old": range(6)}
    _, trials, _ = search(bench, budget_s=3 + 4 * 4 + 1)
    assert trials["old"].verdict is not None
    assert trials["old"].verdict.outcome == "better"
    assert {t.state for name, t in trials.items() if name != "old"} <= {"not explored", "screened out"}


def test_progress_tells_what_is_measured_and_reaches_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench({"a": 101.0, "slow": 50.0}, noise=0.2)
    Search(bench, Slo(), Budget(1_000), Console()).run(DEFAULT, [Candidate(n, Knobs()) for n in bench.speeds])  # type: ignore[arg-type]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("tuning [ 2/16] ETA")
    assert lines[2].startswith("tuning [ 5/10] ETA")  # the slow one is not compared
    assert lines[-1].startswith("tuning [22/22] in")  # two further looks


def test_what_is_recalled_is_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench({"a": 120.0})
    bench.fresh = 0
    Search(bench, Slo(), Budget(1_000), Console()).run(DEFAULT, [Candidate("a", Knobs())])  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""


def test_a_failing_candidate_does_not_stop_the_others() -> None:
    bench = Bench({"refused": 1.0, "breaks": 130.0, "a": 120.0}, failing={"refused": 0, "breaks": 4})
    _, trials, _ = search(bench)
    assert (trials["refused"].state, trials["refused"].reason) == ("failed", "Triton refuses it: no")
    assert (trials["breaks"].state, trials["breaks"].screen_ratio is None) == ("failed", False)
    assert trials["a"].state == "compared"


def test_lower_latency_is_better() -> None:
    _, trials, _ = search(Bench({"fast": 125.0}), Slo.parse("p95"))
    assert trials["fast"].verdict is not None
    assert trials["fast"].verdict.outcome == "better"
    assert trials["fast"].verdict.ratio == pytest.approx(1.25, rel=0.01)


def test_under_a_limit_those_that_keep_it_are_compared_first_even_if_slow() -> None:
    speeds = {"a": 79.0, "b": 78.0, "c": 77.0, "d": 200.0}
    default, trials, _ = search(Bench(speeds), Slo.parse("p99<=60ms"))
    assert default.admissible is False
    assert trials["d"].admissible is True
    assert trials["a"].state == "compared"
    assert trials["a"].outcome == "worse; limits not kept"


def test_what_a_prediction_chose_is_compared_at_once() -> None:
    bench = Bench({"a": 95.0, "b": 90.0})
    run = Search(bench, Slo(), Budget(1_000), Console(quiet=True))  # type: ignore[arg-type]
    a, b = run.confirm({Candidate(name, Knobs(), ("x",)): 1.5 for name in bench.speeds})
    assert [stage for _, stage, _ in bench.asked] == ["paired"] * 12
    assert (a.verdict and a.verdict.outcome, b.verdict and b.verdict.outcome) == ("worse", "worse")
    assert (a.predicted_ratio, a.screen_ratio) == (1.5, None)


def test_without_time_for_a_comparison_the_first_is_measured_roughly() -> None:
    bench = Bench({"a": 120.0, "b": 90.0})
    run = Search(bench, Slo(), Budget(5), Console(quiet=True))  # type: ignore[arg-type]
    a, b = run.confirm({Candidate(name, Knobs(), ("x",)): 1.5 for name in bench.speeds})
    assert bench.asked == [("a", "screen", 0), ("a", "screen", 1)]
    assert (a.state, a.gain, b.state, b.gain) == ("not explored", "≈1.20×", "not explored", "predicted 1.50×")


def test_a_budget_of_points_counts_the_current_config_too() -> None:
    bench = Bench({"a": 120.0, "b": 110.0, "c": 130.0})
    run = Search(bench, Slo(), Budget(points=3), Console(quiet=True))  # type: ignore[arg-type]
    trials = run.confirm({Candidate(name, Knobs(), ("x",)): 1.5 for name in bench.speeds})
    assert [t.state for t in trials] == ["compared", "compared", "not explored"]


def test_other_traffic_is_measured_in_one_block_and_told_where_it_is_weaker() -> None:
    bench = Bench({"a": 70.0})
    run = Search(bench, Slo(), Budget(1_000), Console(quiet=True))  # type: ignore[arg-type]
    loads: Any = {
        "bursts": Load(Workload(request_rate=30), Path("x")),
        "longer texts": Load(Workload(concurrency=8), Path("x")),
    }
    bursts, longer = run.recheck(Candidate("a", Knobs()), loads)
    assert bursts["weaker"] and longer["weaker"] and longer["ratio"] == pytest.approx(0.7, rel=0.01)
    assert bursts["text"] == "p99 ≈0.70× as good as with the current config"
    bench.failing = {"a": 0}
    (failed, _) = run.recheck(Candidate("a", Knobs()), loads)
    assert failed["weaker"] and failed["text"] == "Triton refuses it: no"


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [(Budget(78), 19.5), (Budget(1_000), 60), (Budget(points=6), 20)],
)
def test_the_curve_takes_a_share_of_the_time_and_a_fixed_one_of_points(budget: Budget, seconds: float) -> None:
    assert curve_budget_s(budget) == seconds
