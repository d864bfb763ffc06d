"""The geometry of the report's chart, in units of its SVG view box; the template draws it. Layer: bottom, pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 420.0
ROW = 34.0
_MARGIN = 28.0
_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)
_MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Bar:
    """One ratio with its interval: `low` = `high` = `middle` where there is no interval."""

    label: str
    kind: str
    text: str
    y: float
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Tick:
    x: float
    text: str


@dataclass(frozen=True, slots=True)
class RatioChart:
    """Ratios on a logarithmic axis around 1; `tie_low` and `tie_high` bound the band within which settings tie."""

    width: float
    height: float
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    one: float
    tie_low: float
    tie_high: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """What a bar shows: a ratio, its interval, and `kind`, the class it is drawn in."""

    label: str
    kind: str
    text: str
    low: float
    middle: float
    high: float


def ratio_chart(ratios: Sequence[Ratio], margin: float) -> RatioChart:
    """Place the ratios one below another; `margin` is the share within which a difference does not count."""
    low = min([1 / 1.2, *(r.low for r in ratios)])
    high = max([1.2, *(r.high for r in ratios)])
    span = math.log(high / low)

    def x(ratio: float) -> float:
        return round(_MARGIN + (WIDTH - 2 * _MARGIN) * math.log(ratio / low) / span, 1)

    bars = tuple(
        Bar(r.label, r.kind, r.text, round((i + 0.5) * ROW, 1), x(r.low), x(r.middle), x(r.high))
        for i, r in enumerate(ratios)
    )
    shown = [t for t in _TICKS if low <= t <= high]
    step = math.ceil(len(shown) / _MOST_TICKS)
    ticks = tuple(Tick(x(t), f"{t:g}×") for t in shown if t == 1.0 or (shown.index(t) - shown.index(1.0)) % step == 0)
    return RatioChart(WIDTH, len(ratios) * ROW, bars, ticks, x(1.0), x(1 / (1 + margin)), x(1 + margin))
