"""The guided search: measure what the simulator ranks best, correct the curve where it was wrong, measure again.
Layer: above search and sweep.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from perf.grid import Candidate
from perf.search import Search
from perf.sweep import Expected, Group, Sweep, improved
from perf.trial import Trial

AGREE = 1.2
"""Prediction and measurement disagree where their gains over the current config differ by more than this factor."""
FINALISTS = 5
"""Settings measured first, all of them only in the first rounds."""
MORE = 2
"""Settings measured after a correction, if it makes them promising."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was predicted for a setting before it was measured, and what came out: requests/s, latencies in us."""

    id: str
    label: str
    predicted_rps: float
    measured_rps: float
    predicted_p99_us: float | None
    measured_p99_us: float
    predicted_gain: float
    measured_gain: float

    @property
    def agrees(self) -> bool:
        return abs(math.log(self.measured_gain / self.predicted_gain)) <= math.log(AGREE)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "agrees": self.agrees}


@dataclass(frozen=True, slots=True)
class Guided:
    """What came out: the trials, the sweep as last corrected, every check, and how often it was corrected."""

    default: Trial
    trials: tuple[Trial, ...]
    sweep: Sweep
    checks: tuple[Check, ...]
    refits: int

    @property
    def trusted(self) -> bool:
        """Whether, after any correction, prediction and measurement agree."""
        return self.refits < 2


def guided(search: Search, default: Candidate, sweep: Sweep, admit: Callable[..., None]) -> Guided:
    """Compare the best predicted with the current config; where that contradicts the prediction, correct and go on.

    `admit` is told of settings before they are measured.
    """
    trials: list[Trial] = []
    checks: list[Check] = []
    done: set[Group] = set()
    refits = 0
    finalists: Sequence[Expected] = sweep.finalists(FINALISTS)
    while finalists:
        admit(*(one.candidate for one in finalists))
        new = search.confirm({one.candidate: sweep.gain(one) for one in finalists})
        found = [_check(sweep, one, trial) for one, trial in zip(finalists, new, strict=True) if trial.verdict]
        trials += new
        checks += [check for check in found if check]
        done |= {sweep.group(one.candidate) for one in finalists}
        if all(check.agrees for check in found if check):
            break
        refits += 1
        sweep = sweep.refitted(_latencies(trials, search.current(default)))
        if refits > 1:
            break
        known = [sweep.default, *(sweep.play(t.candidate) for t in trials if t.verdict)]
        best = max(sweep.merit(one)[1] for one in known)
        finalists = sweep.finalists(MORE, without=done, better_than=improved(best))
    return Guided(search.current(default), tuple(trials), sweep, tuple(checks), refits)


def _check(sweep: Sweep, one: Expected, trial: Trial) -> Check | None:
    if trial.figures is None or trial.verdict is None:
        return None
    p = one.prediction
    return Check(
        one.candidate.id,
        one.candidate.label,
        p.throughput_rps,
        trial.figures.throughput_rps.middle,
        p.p99_us,
        trial.figures.p99_us.middle,
        sweep.gain(one),
        trial.verdict.ratio,
    )


def _latencies(trials: Sequence[Trial], default: Trial) -> dict[Candidate, float]:
    """The measured mean latencies."""
    return {t.candidate: t.figures.avg_us.middle for t in (default, *trials) if t.figures and t.figures.avg_us.middle}
