"""How long one execution takes: by rows and length, by busy instances, with its scatter. Layer: sim, pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tooling.errors import UsageError

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """Service times in ms on a grid of lengths and rows, read linearly between the points and beyond the ends.

    `times_ms[i][j]` is one execution alone on the machine, of `rows[j]` rows of `lengths[i]`, overheads included.
    `slowdown[n-1]` is how much slower an execution is while n instances are busy (the last value holds for more).
    `spin` is how much slower it is yet while the batcher's thread spins: when the next request has another shape than
    the batch that waits for an instance. `spread` are factors around 1 that executions draw from at random, such as
    the residuals of a measured curve.
    """

    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    times_ms: tuple[tuple[float, ...], ...]
    slowdown: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    spin: float = 1.0

    def __post_init__(self) -> None:
        grid = np.asarray(self.times_ms, dtype=float)
        axes = (self.lengths, self.rows)
        if grid.shape != (len(self.lengths), len(self.rows)) or any(list(a) != sorted(set(a)) or not a for a in axes):
            raise UsageError(
                "service times do not form a grid",
                where="service",
                got=f"{len(self.lengths)} lengths, {len(self.rows)} rows, times of shape {grid.shape}",
                expected="ascending lengths and rows, and one time for each pair",
            )
        if (
            not np.isfinite(grid).all()
            or (grid <= 0).any()
            or any(f <= 0 for f in (*self.slowdown, *self.spread, self.spin))
        ):
            raise UsageError("service times and factors must be positive", where="service")

    @classmethod
    def linear(cls, a_ms: float, c_ms: float = 0.0, overhead_ms: float = 0.0, **options: Any) -> ServiceModel:
        """The law a_ms + c_ms × rows, for every length, plus an overhead of each execution."""
        fixed = a_ms + overhead_ms
        return cls((1,), (1, 2), ((fixed + c_ms, fixed + 2 * c_ms),), **options)

    @classmethod
    def measured(cls, points_ms: Mapping[tuple[int, int], float], **options: Any) -> ServiceModel:
        """From measured points {(rows, length): ms}. Raises UsageError when they do not form a full grid."""
        rows = tuple(sorted({r for r, _ in points_ms}))
        lengths = tuple(sorted({n for _, n in points_ms}))
        missing = [f"({r}, {n})" for n in lengths for r in rows if (r, n) not in points_ms]
        if missing:
            raise UsageError(
                "measured service times leave gaps",
                where="service",
                got=f"no time for (rows, length) {', '.join(missing)}",
                expected="a time for every pair of rows and length",
            )
        return cls(lengths, rows, tuple(tuple(points_ms[r, n] for r in rows) for n in lengths), **options)

    def table_ns(self, lengths: Sequence[int], max_rows: int) -> Integers:
        """Service times in ns, [length, rows] for rows 0 to `max_rows` (row 0 is never executed)."""
        grid = np.asarray(self.times_ms, dtype=float)
        by_rows = _along(self.rows, grid.T, range(max_rows + 1))
        times = _along(self.lengths, by_rows.T, lengths)
        smallest = grid.min() / 10  # a line drawn far below the grid may cross zero
        return np.asarray(np.rint(np.maximum(times, smallest) * 1e6), dtype=np.int64)


def _along(known: Sequence[int], values: npt.NDArray[np.float64], wanted: Iterable[int]) -> npt.NDArray[np.float64]:
    """Linear interpolation along the first axis; the end segments reach beyond the ends."""
    at = np.asarray(list(wanted), dtype=float)
    if len(known) == 1:
        return np.repeat(values, len(at), axis=0)
    axis = np.asarray(known, dtype=float)
    left = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2)
    share = ((at - axis[left]) / (axis[left + 1] - axis[left]))[:, None]
    return np.asarray(values[left] * (1 - share) + values[left + 1] * share)
