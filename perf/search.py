"""The search: screen every candidate, compare the best in pairs, within a time budget. Layer: above bench."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from perf.bench import Bench, CandidateFailed, Stage
from perf.compare import LOOKS, Verdict, gain, judge, settle
from perf.grid import Candidate
from perf.measurement import Measurement
from perf.trial import Figures, Objective, State, Trial, within_limit
from tooling.console import Console, Progress

SCREEN_PAIRS = 2
"""One A B B A block: enough to see what is far off, never enough to win."""
FINALISTS = 3
CUT = 0.9
"""A setting whose screening ratio is below this is not compared further."""
_LOAD_S = 4.0
"""About what loading a model and warming it up takes; only decides what still fits into the budget."""
_BUDGET = "time budget used up"


@dataclass(frozen=True, slots=True)
class _Screened:
    candidate: Candidate
    ratio: float
    points: tuple[Measurement, ...]
    admissible: bool | None

    def trial(self, state: State, reason: str | None) -> Trial:
        return Trial(self.candidate, state, Figures.of(self.points), self.ratio, None, reason, self.admissible)


class Search:
    """One search; nothing in it depends on the clock but `bench.spent_s`. `points` holds every run used."""

    def __init__(self, bench: Bench, objective: Objective, budget_s: float, console: Console) -> None:
        self._bench, self._objective, self._budget_s, self._console = bench, objective, budget_s, console
        self._trials: dict[str, Trial] = {}
        self._current: list[Measurement] = []
        self._progress = Progress(console, "tuning", 0)
        self._told = 0
        self.points: list[Measurement] = []

    def run(self, default: Candidate, tries: Sequence[Candidate]) -> tuple[Trial, tuple[Trial, ...]]:
        """The trial of the current config and those of the candidates, in the order given.

        Raises Refused or ExternalError when the current config cannot be measured or the server dies.
        """
        pairs = SCREEN_PAIRS * len(tries) + LOOKS[0] * min(FINALISTS, len(tries))
        with self._console.progress("tuning", pairs) as self._progress:
            self._bench.prepare()
            screened = [s for s in (self._screen(candidate) for candidate in tries) if s]
            screening = self._current
            self._current = []
            finalists = self._finalists(screened)
            self._progress.total -= LOOKS[0] * (min(FINALISTS, len(tries)) - len(finalists))
            for finalist in finalists:
                self._trials[finalist.candidate.id] = self._compare(finalist)
        points = self._current or screening
        current = Trial(default, "default", Figures.of(points), admissible=within_limit(points, self._objective))
        return current, tuple(self._trials[c.id] for c in tries)

    def _screen(self, candidate: Candidate) -> _Screened | None:
        """A rough ratio, if the budget leaves time for one comparison afterwards; else, or on failure, a trial.

        The first candidate is measured whatever the budget: an answer from nothing would be none.
        """
        if self.points and not self._affordable(2 * _LOAD_S, pairs=SCREEN_PAIRS + LOOKS[0]):
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
        ratio = math.exp(statistics.fmean(self._gain(a, b) for a, b in pairs))
        self._step(f"{candidate.label}: about {ratio:.2f}×", SCREEN_PAIRS)
        return _Screened(candidate, ratio, points, within_limit(points, self._objective))

    def _finalists(self, screened: Sequence[_Screened]) -> list[_Screened]:
        """The best few; under a p99 limit those that seem to keep it come first, and slow ones stay in.

        What the study has begun to compare stays in, so that a larger budget takes nothing back.
        """
        limited = self._objective.max_p99_us is not None
        ranked = sorted(screened, key=lambda s: (s.admissible is False, -s.ratio))
        able = [s for s in ranked if limited or s.ratio >= CUT]
        begun = [s for s in ranked if self._bench.holds(s.candidate, 0)]
        finalists = begun + [s for s in able if s not in begun][: max(0, FINALISTS - len(begun))]
        for out in ranked:
            if out not in finalists:
                reason = f"not among the best {FINALISTS}" if out in able else None
                self._trials[out.candidate.id] = out.trial("screened out", reason)
        return finalists

    def _compare(self, screened: _Screened) -> Trial:
        """Pairs of its own, up to the look that decides; the screening pairs, which chose it, do not count again."""
        candidate, gains, current, points = screened.candidate, list[float](), list[Measurement](), list[Measurement]()
        verdict: Verdict | None = None
        try:
            for look in LOOKS:
                missing = look - len(gains)
                recorded = all(self._bench.holds(candidate, number) for number in range(len(gains), look))
                if not recorded and not self._affordable(0 if gains else _LOAD_S, pairs=missing):
                    self._progress.total -= 0 if gains else missing
                    break
                self._progress.total += missing if gains else 0
                for number in range(len(gains), look):
                    a, b = self._pair(candidate, "paired", number)
                    current.append(a)
                    points.append(b)
                    gains.append(self._gain(a, b))
                    self._step(f"{candidate.label}: pair {number + 1} of {look}, {math.exp(gains[-1]):.2f}×")
                verdict = judge(gains)
                if verdict.outcome != "undecided":
                    break
        except CandidateFailed as failure:
            return Trial(candidate, "failed", Figures.of(points), screened.ratio, None, str(failure))
        if verdict is None:
            return screened.trial("not explored", _BUDGET)
        admissible = within_limit(points, self._objective)
        return Trial(
            candidate,
            "compared",
            Figures.of(points),
            screened.ratio,
            settle(verdict),
            admissible=admissible,
            against=Figures.of(current),
        )

    def _step(self, note: str, pairs: int = 1) -> None:
        """Tell what was measured; what came from the study took no time, so it is no part of the pace."""
        if self._bench.measured > self._told:
            self._progress.step(note, pairs)
        else:
            self._progress.total -= pairs
        self._told = self._bench.measured

    def _pair(self, candidate: Candidate, stage: Stage, number: int) -> tuple[Measurement, Measurement]:
        a, b = self._bench.pair(candidate, stage, number)
        self.points += [a, b]
        self._current.append(a)
        return a, b

    def _gain(self, a: Measurement, b: Measurement) -> float:
        return gain(self._objective.score(a), self._objective.score(b))

    def _affordable(self, seconds: float, *, pairs: int) -> bool:
        return self._bench.spent_s + seconds + 2 * pairs * self._bench.run_s <= self._budget_s
