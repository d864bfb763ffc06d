"""Whether one setting is better than another, from paired runs and planned looks. Layer: bottom of perf, pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Side = Literal["A", "B"]
Outcome = Literal["better", "worse", "tie", "undecided"]

LOOKS = (6, 12, 18)
"""Numbers of pairs after which the question may be answered; nothing is decided in between."""
ALPHA = 0.007
"""Two-sided error of one look. Three looks together declare equal settings different in less than 3 % of runs, where
sampling "until the intervals separate" does so in about half of them."""
TIE_MARGIN = 0.03
"""A difference below this share is no reason to change a configuration."""
T_QUANTILES = {6: 4.403337278811153, 12: 3.306244907034124, 18: 3.065713260910322}
"""Student's t at 1 - ALPHA / 2 with pairs - 1 degrees of freedom, per look (a test recomputes them with scipy)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the pairs say. `ratio` is how many times better B is than A (1 = equal), inside [`low`, `high`]."""

    outcome: Outcome
    ratio: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.ratio:.2f}× [{self.low:.2f}–{self.high:.2f}]"

    @property
    def word(self) -> str:
        """The verdict in words; a tie says whether equality was shown, only no difference, or too little measured."""
        if self.outcome != "tie":
            return self.outcome
        if _inside_margin(self.low, self.high):
            return f"tie (within ±{TIE_MARGIN:.0%})"
        if self.pairs < LOOKS[-1]:
            return f"undecided (time budget used up after {self.pairs} of {LOOKS[-1]} pairs)"
        return "tie (not distinguishable)"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def round_order(sides: Sequence[T], number: int) -> list[T]:
    """Who runs first in the round numbered from 0: A B, B A, A B … so that a drift hits all sides alike."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


def gain(score_a: float, score_b: float) -> float:
    """The log ratio of one pair; scores are positive and larger is better."""
    return math.log(score_b / score_a)


def judge(gains: Sequence[float]) -> Verdict:
    """The verdict of one look on the log ratios of its pairs; `undecided` asks for the pairs of the next look.

    Raises ValueError when the number of pairs is not one of LOOKS: an unplanned look would void the error rate.
    """
    if len(gains) not in T_QUANTILES:
        raise ValueError(f"a look at {len(gains)} pairs was not planned: the looks are at {LOOKS}")
    mean = statistics.fmean(gains)
    half = T_QUANTILES[len(gains)] * statistics.stdev(gains) / math.sqrt(len(gains))
    low, high = math.exp(mean - half), math.exp(mean + half)
    return Verdict(_outcome(low, high, last=len(gains) == LOOKS[-1]), math.exp(mean), low, high, len(gains))


def settle(verdict: Verdict) -> Verdict:
    """The verdict when no further look can be paid for: what is undecided is a tie."""
    outcome: Outcome = "tie" if verdict.outcome == "undecided" else verdict.outcome
    return Verdict(outcome, verdict.ratio, verdict.low, verdict.high, verdict.pairs)


def _inside_margin(low: float, high: float) -> bool:
    return low >= 1 / (1 + TIE_MARGIN) and high <= 1 + TIE_MARGIN


def _outcome(low: float, high: float, *, last: bool) -> Outcome:
    if _inside_margin(low, high):
        return "tie"
    if low > 1:
        return "better"
    if high < 1:
        return "worse"
    return "tie" if last else "undecided"
