"""The geometry of the report's charts, in units of their SVG view boxes; a template draws them. Layer: bottom, pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
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


HEIGHT = 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 12.0, 8.0, 34.0
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "plus")
"""Told apart without colour."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with its shape as an SVG path, and the text that explains it."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """Marks of one shape, joined by the polyline `points`, with `key`, the mark of the legend."""

    name: str
    shape: str
    key: str
    marks: tuple[Mark, ...]
    points: str


@dataclass(frozen=True, slots=True)
class XYChart:
    """Lines in a box from `left`, `top` to `right`, `bottom`, with ticks below it and at its left (there `x` is y)."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    diagonal: str = ""


XY = tuple[float, float, str]
"""Of a point: its values and its text."""


def xy_chart(
    lines: Mapping[str, Sequence[XY]], *, joined: Collection[str] = (), diagonal: bool = False
) -> XYChart | None:
    """Place points, those of `joined` as lines, on linear axes from 0; None without a point. With `diagonal`, axes are
    equal."""
    values = [point for points in lines.values() for point in points]
    if not values:
        return None
    most_x = 1.08 * max(x for x, _, _ in values) or 1.0
    most_y = 1.08 * max(y for _, y, _ in values) or 1.0
    if diagonal:
        most_x = most_y = max(most_x, most_y)
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def at(point: XY) -> tuple[float, float]:
        x = _LEFT + (right - _LEFT) * point[0] / most_x
        return round(x, 1), round(bottom - (bottom - _TOP) * point[1] / most_y, 1)

    placed = []
    for number, (name, points) in enumerate(lines.items()):
        shape = SHAPES[number % len(SHAPES)]
        spots = [at(point) for point in points]
        marks = tuple(Mark(_shape(shape, *spot), point[2]) for spot, point in zip(spots, points, strict=True))
        path = " ".join(f"{x},{y}" for x, y in spots) if name in joined and len(spots) > 1 else ""
        placed.append(Line(name, shape, _shape(shape, 8, 8), marks, path))
    x_ticks = tuple(Tick(at((value, 0, ""))[0], f"{value:g}") for value in _nice(most_x))
    y_ticks = tuple(Tick(at((0, value, ""))[1], f"{value:g}") for value in _nice(most_y))
    line = f"{_LEFT},{bottom} {right},{_TOP}" if diagonal else ""
    return XYChart(WIDTH, HEIGHT, _LEFT, right, _TOP, bottom, tuple(placed), x_ticks, y_ticks, line)


def _nice(most: float) -> list[float]:
    """About five round numbers from 0 up to `most`."""
    rough = most / 5
    unit: float = 10.0 ** math.floor(math.log10(rough))
    step: float = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [round(step * n, 10) for n in range(int(most / step) + 1)]


def _shape(shape: str, x: float, y: float, r: float = 4.5) -> str:
    drawn = {
        "circle": f"M{x - r} {y}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
        "square": f"M{x - r} {y - r}h{2 * r}v{2 * r}h{-2 * r}z",
        "triangle": f"M{x} {y - r}l{r} {2 * r}h{-2 * r}z",
        "diamond": f"M{x} {y - r - 1}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        "cross": f"M{x - r} {y - r}l{2 * r} {2 * r}M{x - r} {y + r}l{2 * r} {-2 * r}",
        "plus": f"M{x - r} {y}h{2 * r}M{x} {y - r}v{2 * r}",
    }
    return drawn[shape]


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a bar, drawn in the pattern of its `kind`."""

    kind: str
    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class BarRow:
    label: str
    text: str
    y: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class BarChart:
    width: float
    height: float
    rows: tuple[BarRow, ...]


Piece = tuple[str, float, float, str]
"""Of a bar: the kind, where it starts, how long it is, and its text."""


def bar_chart(rows: Sequence[tuple[str, str, Sequence[Piece]]]) -> BarChart | None:
    """Place bars one below another, each a label, a text and its pieces on one linear axis; None without a length."""
    longest = max((start + length for _, _, pieces in rows for _, start, length, _ in pieces), default=0.0)
    if longest <= 0:
        return None
    scale = WIDTH / longest
    placed = tuple(
        BarRow(
            label,
            text,
            round((number + 0.5) * ROW, 1),
            tuple(Part(k, round(s * scale, 1), round(max(w * scale, 0.8), 1), t) for k, s, w, t in pieces),
        )
        for number, (label, text, pieces) in enumerate(rows)
    )
    return BarChart(WIDTH, len(rows) * ROW, placed)
