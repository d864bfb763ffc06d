"""A service curve as one SVG file: measured executions and their spread, the law beside them. Layer: above curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.curve import Series, ServiceCurve
from tooling.repository import write_atomic

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420.0, 260.0, 52.0, 84.0, 30.0, 34.0
_TICKS = tuple(digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class Dot:
    """A measured point, with its spread from `low` to `high`; `text` tells it."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """One length: its dots, and the law through the same rows as SVG coordinates."""

    label: str
    color: str
    dots: tuple[Dot, ...]
    law: str

    @property
    def path(self) -> str:
        return " ".join(f"{dot.x},{dot.y}" for dot in self.dots)


@dataclass(frozen=True, slots=True)
class Panel:
    """One setting, `top` units below the start of the file; ticks are places and texts."""

    title: str
    top: float
    lines: tuple[Line, ...]
    rows: tuple[tuple[float, str], ...]
    times: tuple[tuple[float, str], ...]


def write_plot(curve: ServiceCurve, path: Path) -> Path:
    """Write all settings of the curve to `path`, one panel below the other, on one scale; returns `path`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    series = [(str(setting), curve.of(setting)) for setting in curve.settings]
    times = [time for _, one in series for time in one.points.values()]
    rows = sorted({rows for _, one in series for rows, _ in one.points})
    x = _scale(rows, _LEFT, _WIDTH - _RIGHT)
    y = _scale([min(times) * 0.8, max(times) * 1.25], _HEIGHT - _BOTTOM, _TOP)
    panels = [_panel(title, one, number * _HEIGHT, rows, x, y) for number, (title, one) in enumerate(series)]
    environment = Environment(
        loader=PackageLoader("perf"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    box = {"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "right": _WIDTH - _RIGHT, "bottom": _HEIGHT - _BOTTOM}
    page = environment.get_template("curve.svg.j2").render(model=curve.model["name"], panels=panels, box=box, top=_TOP)
    write_atomic(path, page)
    return path


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Places of values on a logarithmic axis from `start` to `end`; a single value stands in the middle."""
    low, high = math.log(min(values)), math.log(max(values))

    def place(value: float) -> float:
        part = (math.log(value) - low) / (high - low) if high > low else 0.5
        return round(start + part * (end - start), 1)

    return place


def _panel(
    title: str,
    series: Series,
    top: float,
    rows: Sequence[int],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> Panel:
    law = f"solid: measured; dashed: the law, off by {series.fit.worst:.0%} at most"
    shown = [t for t in _TICKS if _TOP <= y(t) <= _HEIGHT - _BOTTOM]
    ticks = shown if len(shown) <= 8 else [t for t in shown if f"{t:e}"[0] == "1"]
    return Panel(
        f"{title} · {law}",
        top,
        tuple(_lines(series, x, y)),
        tuple((x(value), str(value)) for value in rows),
        tuple((y(time), f"{time:g}") for time in ticks),
    )


def _lines(series: Series, x: Callable[[float], float], y: Callable[[float], float]) -> Iterator[Line]:
    lengths = sorted({length for _, length in series.points})
    for number, length in enumerate(lengths):
        points = {rows: time for (rows, of), time in series.points.items() if of == length}
        dots, law = [], []
        for rows, time in points.items():
            share = min(series.uncertainty((rows, length)), 0.9)
            text = f"{rows} × {length}: {time:.3g} ms ± {share:.0%}"
            dots.append(Dot(x(rows), y(time), y(time * (1 - share)), y(time * (1 + share)), text))
            law.append(f"{x(rows)},{y(time * (1 + series.fit.residuals[rows, length]))}")
        hue = round(220 - 200 * number / max(len(lengths) - 1, 1))
        yield Line(f"{length} tokens", f"hsl({hue} 65% 45%)", tuple(dots), " ".join(law))
