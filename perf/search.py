"""The measuring part of a search: screen candidates, compare the best in common rounds, within a budget. Layer: above
bench."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perf.bench import Bench
from perf.compare import LOOKS, gain, settle
from perf.contest import CUT, Contender, Contest
from perf.grid import BASE, Candidate
from perf.measurement import Measurement
from perf.slo import Goal, Slo
from perf.subject import CandidateFailed, Load, Round, Stage
from perf.trial import Figures, State, Trial, within_limit
from tooling.console import Console, Progress
from tooling.errors import Refused

SCREEN_PAIRS = 2
"""One A B B A block: enough to see what is far off, never enough to win."""
FINALISTS = 3
COMPARISON_S = 30
"""About what six pairs of a model take, loading included."""
_BUDGET, _START = "budget used up", "cold start"
Fitting = Callable[[Sequence[Candidate]], Sequence[Sequence[Candidate]]]


@dataclass(frozen=True, slots=True)
class _Screened:
    """A candidate with what let it in: a rough ratio of short runs, or a predicted one."""

    candidate: Candidate
    ratio: float | None = None
    points: tuple[Measurement, ...] = ()
    admissible: bool | None = None
    predicted: float | None = None

    def trial(self, state: State, reason: str | None) -> Trial:
        figures = Figures.of(self.points)
        return Trial(
            self.candidate, state, figures, self.ratio, None, reason, self.admissible, predicted_ratio=self.predicted
        )

    def compared(self, found: Contender, slo: Slo) -> Trial:
        """What became of it in the comparison."""
        if found.failure is not None:
            return Trial(self.candidate, "failed", Figures.of(found.points), self.ratio, None, found.failure)
        if found.verdict is None:
            here = self
            if found.points:
                rough, kept = found.ratio, within_limit(found.points, slo)
                here = replace(self, ratio=rough, points=tuple(found.points), admissible=kept)
            return here.trial("screened out" if found.behind else "not explored", found.behind or _BUDGET)
        return Trial(
            self.candidate,
            "compared",
            Figures.of(found.points),
            self.ratio,
            settle(found.verdict),
            admissible=within_limit(found.points, slo),
            against=Figures.of(found.current),
            predicted_ratio=self.predicted,
            gains=tuple(found.gains),
        )


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search may spend: seconds, and measured points, of which each setting under one load is one."""

    seconds: float = math.inf
    points: int | None = None

    def without(self, comparisons: int) -> Budget:
        """What is left for the search when so many comparisons of the setting found are to follow: at least half."""
        seconds = max(self.seconds - COMPARISON_S * comparisons, self.seconds / 2)
        return Budget(seconds, None if self.points is None else max(self.points - comparisons, 2))

    def __str__(self) -> str:
        return f"{self.points} points" if self.points is not None else f"{self.seconds:.0f} s"


class Search:
    """One search; nothing in it depends on the clock but `bench.spent_s`. `points` holds every run used; `fitting`
    divides settings into those that may be loaded at once."""

    def __init__(
        self, bench: Bench, slo: Slo, budget: Budget, console: Console, fitting: Fitting = lambda found: [found]
    ) -> None:
        self._bench, self._slo, self.budget, self._console = bench, slo, budget, console
        self._fitting = fitting
        self._trials: dict[str, Trial] = {}
        self._measured = {BASE}
        self._current: list[Measurement] = []
        self._progress = Progress(console, "tuning", 0)
        self._seen = 0
        self.points: list[Measurement] = []

    def run(self, default: Candidate, tries: Sequence[Candidate]) -> tuple[Trial, tuple[Trial, ...]]:
        """The trial of the current config and those of the candidates, in the order given: the direct search.

        Raises Refused or ExternalError when the current config cannot be measured or the server dies.
        """
        pairs = SCREEN_PAIRS * len(tries) + LOOKS[0] * min(FINALISTS, len(tries))
        self._bench.prepare(self._longest_run_s(FINALISTS, SCREEN_PAIRS * len(tries)))  # no part of the pace
        with self._console.progress("tuning", pairs) as self._progress:
            screened = [s for s in (self._screen(candidate) for candidate in tries) if s]
            screening = self._current
            self._current = []
            finalists = self._finalists(screened)
            self._progress.total -= LOOKS[0] * (min(FINALISTS, len(tries)) - len(finalists))
            self._compare(finalists)
        return self.current(default, self._current or screening), tuple(self._trials[c.id] for c in tries)

    def confirm(self, finalists: Mapping[Candidate, float | None]) -> list[Trial]:
        """Compare settings chosen beforehand, with the ratio that a prediction gives each, if any, in this order."""
        ones = [_Screened(candidate, predicted=predicted) for candidate, predicted in finalists.items()]
        self._bench.prepare(self._longest_run_s(len(ones)))
        with self._console.progress("tuning", LOOKS[0] * len(ones)) as self._progress:
            first = [one.candidate.id for one in ones[:1]]
            if first and not self.points and not self._affordable(first, 2 * LOOKS[0]):  # from nothing is no answer
                rough = self._screen(ones[0].candidate)
                if rough:
                    rough = replace(rough, predicted=ones[0].predicted)
                    self._trials[rough.candidate.id] = rough.trial("not explored", _BUDGET)
                self._compare(ones[1:], keep=FINALISTS)
            else:
                self._compare(ones, keep=FINALISTS)
        return [self._trials[candidate.id] for candidate in finalists]

    def current(self, default: Candidate, points: Sequence[Measurement] = ()) -> Trial:
        """The current config, from these runs or from all of the comparisons."""
        points = points or self._current
        return Trial(default, "default", Figures.of(points), admissible=within_limit(points, self._slo))

    def recheck(self, candidate: Candidate, loads: Mapping[Stage, Load]) -> list[dict[str, Any]]:
        """The chosen setting against the current config under other traffic, roughly: one A B B A block each.

        Throughput is compared where clients wait for their answers, p99 where requests come by schedule.
        """
        found = []
        for stage, load in loads.items():
            if not self._affordable([candidate.id], 2 * SCREEN_PAIRS, loaded=True):
                break
            about: dict[str, Any] = {"name": stage, "workload": str(load.workload)}
            try:
                pairs = [self._bench.pair(candidate, stage, number, load) for number in range(SCREEN_PAIRS)]
            except (CandidateFailed, Refused) as failure:
                found.append(
                    {**about, "ratio": None, "weaker": isinstance(failure, CandidateFailed), "text": str(failure)}
                )
                continue
            goal = Goal("p99" if load.workload.mode == "request_rate" else "throughput")
            ratio = math.exp(statistics.fmean(gain(*(goal.score(p) or 1.0 for p in pair)) for pair in pairs))
            text = f"{goal.metric} ≈{ratio:.2f}× as good as with the current config"
            found.append({**about, "ratio": ratio, "weaker": ratio < CUT, "text": text})
            self.points += [point for pair in pairs for point in pair]
        return found

    def restart(self, candidate: Candidate) -> list[dict[str, Any]]:
        """How the chosen setting starts: until it is loaded, and its first request; in the form of `recheck`."""
        try:
            found = self._bench.restart(candidate)
        except Refused as refusal:
            return [{"name": _START, "workload": "loaded anew", "ratio": None, "weaker": True, "text": str(refusal)}]
        if found is None:
            return []
        text = "loaded in {load_s:.1f} s, first request {first_ms:.1f} ms, warm {warm_ms:.1f} ms".format(**found)
        return [{"name": _START, "workload": "one client", "ratio": None, "weaker": False, "text": text}]

    def _screen(self, candidate: Candidate) -> _Screened | None:
        """A rough ratio, if the budget leaves time for one comparison afterwards; else, or on failure, a trial.

        The first candidate is measured whatever the budget: an answer from nothing would be none.
        """
        again = [candidate.id] * 2  # loaded now, and in the comparison
        if self.points and not self._affordable(again, 2 * (SCREEN_PAIRS + LOOKS[0])):
            self._trials[candidate.id] = Trial(candidate, "not explored", reason=_BUDGET)
            self._progress.total -= SCREEN_PAIRS
            return None
        try:
            pairs = [self._pair(candidate, "screen", number) for number in range(SCREEN_PAIRS)]
        except CandidateFailed as failure:
            self._trials[candidate.id] = Trial(candidate, "failed", reason=str(failure))
            self._step(f"{candidate.label}: failed, {failure}", SCREEN_PAIRS)
            return None
        points = tuple(b for _, b in pairs)
        ratio = math.exp(statistics.fmean(gain(self._score(a), self._score(b)) for a, b in pairs))
        self._step(f"{candidate.label}: about {ratio:.2f}×", SCREEN_PAIRS)
        return _Screened(candidate, ratio, points, within_limit(points, self._slo))

    def _finalists(self, screened: Sequence[_Screened]) -> list[_Screened]:
        """The best few; under limits those that seem to keep them come first, and slow ones stay in.

        What the study has begun to compare stays in, so that a larger budget takes nothing back.
        """
        limited = bool(self._slo.terms)
        ranked = sorted(screened, key=lambda s: (s.admissible is False, -(s.ratio or 0)))
        able = [s for s in ranked if limited or (s.ratio or 0) >= CUT]
        known = {id_ for ids in self._bench.groups(0).values() for id_ in ids}
        begun = [s for s in ranked if s.candidate.id in known]
        finalists = begun + [s for s in able if s not in begun][: max(0, FINALISTS - len(begun))]
        for out in ranked:
            if out not in finalists:
                reason = f"not among the best {FINALISTS}" if out in able else None
                self._trials[out.candidate.id] = out.trial("screened out", reason)
        return finalists

    def _compare(self, finalists: Sequence[_Screened], keep: int | None = None) -> None:
        """Each of them against the current config, the best `keep` after the first rounds. The screening pairs, which
        chose them, do not count again."""
        of = {one.candidate.id: one for one in finalists}
        contenders = [Contender(id_, one.candidate.label) for id_, one in of.items()]

        def fitting(those: Sequence[Contender]) -> list[list[Contender]]:
            groups = self._fitting([of[one.id].candidate for one in those])
            return [[one for one in those if of[one.id].candidate in group] for group in groups]

        def misses(points: Sequence[Measurement]) -> bool:
            return within_limit(points, self._slo) is False

        contest = Contest(
            bench=self._bench,
            score=self._score,
            affordable=self._affordable,
            progress=self._progress,
            told=self._told,
            fitting=fitting,
            misses=misses,
            keep=keep,
        )
        contest.run(contenders)
        self._trials |= {found.id: of[found.id].compared(found, self._slo) for found in contenders}

    def _told(self, found: Round, note: str, settings: int) -> None:
        if found.base is not None:
            self.points.append(found.base)
            self._current.append(found.base)
        self.points += found.others.values()
        self._measured |= found.others.keys()
        self._step(note, settings)

    def _step(self, note: str, pairs: int = 1) -> None:
        """Tell what was measured; what came from the study took no time, so it is no part of the pace."""
        if self._bench.measured > self._seen:
            self._progress.step(note, pairs)
        else:
            self._progress.total -= pairs
        self._seen = self._bench.measured

    def _pair(self, candidate: Candidate, stage: Stage, number: int) -> tuple[Measurement, Measurement]:
        a, b = self._bench.pair(candidate, stage, number)
        self.points += [a, b]
        self._current.append(a)
        self._measured.add(candidate.id)
        return a, b

    def _score(self, point: Measurement) -> float:
        return self._slo.objective.score(point) or 0.0

    def _longest_run_s(self, finalists: int, screening: int = 0) -> float:
        """What one run may take, so that all of these, and the current config, come to the first look."""
        left_s = self.budget.seconds - self._bench.spent_s - self._bench.load_s * (finalists + 1)
        return left_s / (LOOKS[0] * (finalists + 1) + 2 * screening)

    def _affordable(self, ids: Sequence[str], runs: int, *, loaded: bool = False) -> bool:
        """Whether so many more runs of them and the current config fit into the budget, and loading them first."""
        most = self.budget.points
        if most is not None and len(self._measured | set(ids)) > most:
            return False
        seconds = (0 if loaded else self._bench.load_s * len(ids)) + runs * self._bench.run_s
        return self._bench.spent_s + seconds <= self.budget.seconds
