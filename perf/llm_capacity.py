"""How many concurrent streams an engine carries at the Slo: searched on the simulator, then measured around what it
says. Layer: above slo, pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from perf.slo import METRICS, Slo

Figures = Mapping[str, float]
_LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_MORE = 1.25
"""By how much more streams are tried where the last number was carried."""


class Level(NamedTuple):
    """So many streams at once, and what was measured of them."""

    streams: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most streams that were measured and kept every limit; None where none did. `missed` is the fewest above them
    that did not; None where none was found. `predicted` is what the simulator says, None where it finds none either."""

    streams: int | None
    missed: int | None
    predicted: int | None
    levels: tuple[Level, ...]

    def __str__(self) -> str:
        tried = ", ".join(str(level.streams) for level in self.levels)
        if self.streams is None:
            carried = f"no number of concurrent streams that was measured ({tried}) keeps the limits"
        elif self.missed is None:
            carried = f"at least {self.streams} concurrent streams at the limits, measured"
        else:
            carried = f"{self.streams} concurrent streams at the limits, measured ({self.missed} missed them)"
        said = "none" if self.predicted is None else f"{self.predicted}{'+' if self.predicted == _LADDER[-1] else ''}"
        return f"{carried}; the simulator said {said}"

    def to_dict(self) -> dict[str, Any]:
        levels = [{"streams": level.streams, **level.figures} for level in self.levels]
        return {
            "streams": self.streams,
            "how": "measured",
            "missed": self.missed,
            "predicted": self.predicted,
            "levels": levels,
        }


def predict(simulated: Callable[[int], Figures], slo: Slo) -> int | None:
    """The most streams whose simulation keeps the limits, up to the last of the ladder; None where none does."""
    kept, over = None, None
    for streams in _LADDER:
        said = simulated(streams)
        if _kept(said, slo):
            kept = streams
        elif not _too_few(said, slo):
            over = streams
            break
    while kept is not None and over is not None and over - kept > 1:
        middle = (kept + over) // 2
        kept, over = (middle, over) if _kept(simulated(middle), slo) else (kept, middle)
    return kept


def confirm(
    predicted: int | None, known: Iterable[Level], measure: Callable[[int], Figures], slo: Slo, points: int
) -> Capacity:
    """Measure at most `points` numbers of streams, what is predicted first; `known` ones were measured before."""
    levels = {level.streams: level for level in known}
    for _ in range(points):
        streams = _next(predicted or 1, levels, slo)
        if streams is None:
            break
        levels[streams] = Level(streams, measure(streams))
    kept = max((n for n, level in levels.items() if _kept(level.figures, slo)), default=None)
    missed = [n for n, level in levels.items() if n > (kept or 0) and not _too_few(level.figures, slo)]
    ordered = tuple(levels[streams] for streams in sorted(levels))
    return Capacity(kept, min(missed, default=None), predicted, ordered)


def _next(guess: int, levels: Mapping[int, Level], slo: Slo) -> int | None:
    """What to measure next; None when the number is known."""
    enough = [n for n, level in levels.items() if _kept(level.figures, slo) or _too_few(level.figures, slo)]
    low = max(enough, default=0)
    high = min((n for n in levels if n > low), default=None)
    if low < guess and (high is None or guess < high):
        return guess
    if high is None:
        return max(low + 1, math.ceil(low * _MORE))
    return (low + high) // 2 if high - low > 1 else None


def _kept(figures: Figures, slo: Slo) -> bool:
    return slo.met(figures) is True


def _too_few(figures: Figures, slo: Slo) -> bool:
    """Whether it misses nothing but limits that more streams may reach, like tokens a second."""
    missed = [one.term.metric for one in slo.judge(figures) if one.answer == "not met"]
    return bool(missed) and all(METRICS[metric].better == "higher" for metric in missed)
