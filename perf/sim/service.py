"""How long one execution takes: by rows and length, by busy instances, with its scatter. Layer: sim, pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tooling.errors import UsageError

Integers = npt.NDArray[np.int64]
LONGEST_MS = 100_000.0  # more overflows the integers of the kernel


@dataclass(frozen=True, slots=True)
class Scatter:
    """How single executions differ from the service time, as it was seen.

    `factors[i]` are equally likely ones of an execution that takes about `times_ms[i]`: a pause of some ms weighs more
    on a short one. Each row ascends, and all are equally long. `runs` are places among them, from 0 to 1, that
    executions took one after the other; they are replayed run by run, because slow ones come together. Without runs
    every execution is on its own.
    """

    times_ms: tuple[float, ...]
    factors: tuple[tuple[float, ...], ...]
    runs: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        factors = np.asarray(self.factors, dtype=float)
        if factors.ndim != 2 or len(factors) != len(self.times_ms) or not factors.size:
            raise UsageError("factors must be of equal number for each time", where="service")
        if not np.isfinite(factors).all() or (factors <= 0).any():
            raise UsageError("factors must be positive", where="service")

    def kinds(self, times_ns: Integers) -> Integers:
        """For each time, which row of factors is nearest, by ratio."""
        known = np.log(np.asarray(self.times_ms) * 1e6)
        return np.searchsorted((known[1:] + known[:-1]) / 2, np.log(np.maximum(times_ns, 1)))

    def draws(self, count: int, seed: Sequence[int]) -> Integers:
        """`count` places in a row of factors, one an execution."""
        random, places = np.random.default_rng(seed), len(self.factors[0])
        if not self.runs:
            return random.integers(0, places, count)
        runs = [np.minimum((np.asarray(run) * places).astype(np.int64), places - 1) for run in self.runs]
        enough = -(-count // min(map(len, runs)))
        lengths = np.array([len(run) for run in runs])
        chosen = random.integers(0, len(runs), enough)
        chosen = chosen[: int(np.searchsorted(lengths[chosen].cumsum(), count)) + 1]
        return np.concatenate([runs[run] for run in chosen])[:count]


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """Service times in ms on a grid of lengths and rows, read linearly between the points and beyond the ends.

    `times_ms[i][j]` is one execution alone on the machine, of `rows[j]` rows of `lengths[i]`, overheads included.
    `slowdown[n-1]` is how much slower an execution is while n instances are busy (the last value holds for more).
    `spin` is how much slower it is yet while the batcher's thread spins: when the next request has another shape than
    the batch that waits for an instance. `scatter` is how single executions differ from the grid.
    """

    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    times_ms: tuple[tuple[float, ...], ...]
    slowdown: tuple[float, ...] = ()
    scatter: Scatter | None = None
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
            or any(not 0 < f < math.inf for f in (*self.slowdown, self.spin))
        ):
            raise UsageError("service times and factors must be positive", where="service")

    @classmethod
    def linear(
        cls,
        a_ms: float,
        c_ms: float = 0.0,
        overhead_ms: float = 0.0,
        *,
        spread: Sequence[float] = (),
        **options: Any,
    ) -> ServiceModel:
        """The law a_ms + c_ms × rows, for every length, plus an overhead of each execution.

        `spread` are factors around 1, of which each execution draws one.
        """
        fixed = a_ms + overhead_ms
        if spread:
            options["scatter"] = Scatter((1.0,), (tuple(sorted(spread)),))
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
        if (longest := float(times.max())) > LONGEST_MS:
            raise UsageError(
                "an execution takes too long to be simulated",
                where="service",
                got=f"{longest / 1e3:.0f} s for {max_rows} rows of {max(lengths)}",
                expected=f"{LONGEST_MS / 1e3:.0f} s at most",
            )
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
