"""When requests come, how long they are, and what they ask of the queue. Layer: sim, pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tooling.errors import UsageError

if TYPE_CHECKING:
    from perf.workload import Workload

Integers = npt.NDArray[np.int64]


_ROUNDS = 16
"""Requests of a client before the clients start anew: about as many as each sends in a run of a second."""


def repeat(values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """`values` over and over, `count` in all (np.resize does this through a list of its repetitions)."""
    return np.tile(values, -(-count // len(values)))[:count]


def _in_short_runs(lengths: Integers, clients: int, count: int) -> Integers:
    """`lengths` as perf_analyzer deals them, for one short run after the other: each begins with the clients at other
    places of the list."""
    rng, walked = np.random.default_rng(0), clients * np.arange(_ROUNDS)[:, np.newaxis]
    starts = rng.integers(len(lengths), size=-(-count // (clients * _ROUNDS)))
    runs = [start + rng.permutation(clients) + walked for start in starts]
    dealt: Integers = lengths[np.concatenate(runs).ravel()[:count] % len(lengths)]
    return dealt


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """`count` requests, open-loop at `times_ns` or closed-loop from `concurrency` clients.

    A client sends its next request when it has its answer. The per-request columns repeat from the start where they
    are shorter: `lengths`, `sizes` (rows of one request), `priorities` (0: the default level), `timeouts_us` (0: none).
    They go to the requests in the order of sending; `dealt` lengths go to the clients instead, as perf_analyzer deals
    them: client c of n sends the lengths c, c + n, c + 2n … Which of them is first to start depends on the run's seed.
    """

    count: int
    times_ns: Integers | None = None
    concurrency: int | None = None
    lengths: Sequence[int] | Integers = (1,)
    sizes: Sequence[int] = (1,)
    priorities: Sequence[int] = (0,)
    timeouts_us: Sequence[int] = (0,)
    dealt: bool = False

    def __post_init__(self) -> None:
        times = self.times_ns
        if self.count < 1 or (times is None) == (self.concurrency is None):
            raise UsageError("arrivals need requests, and either times or clients", where="arrivals")
        if times is not None and (len(times) != self.count or times[0] < 0 or (np.diff(times) < 0).any()):
            raise UsageError("arrival times must not be negative and must ascend, one a request", where="arrivals")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError("no client", where="arrivals", got=self.concurrency, expected="1 or more")
        if min(len(self.lengths), len(self.sizes), len(self.priorities), len(self.timeouts_us)) == 0:
            raise UsageError("a column of the arrivals is empty", where="arrivals")
        if min(np.min(self.lengths), np.min(self.sizes)) < 1:
            raise UsageError("lengths and sizes must be at least 1", where="arrivals")

    @classmethod
    def at(cls, times_s: Sequence[float] | npt.NDArray[np.float64], **columns: Any) -> Arrivals:
        """Explicit send times in seconds, ascending."""
        times = np.rint(np.asarray(times_s, dtype=float) * 1e9).astype(np.int64)
        return cls(count=len(times), times_ns=times, **columns)

    @classmethod
    def poisson(cls, rate_rps: float, count: int, *, seed: int = 0, **columns: Any) -> Arrivals:
        """Open loop, `rate_rps` requests a second at random."""
        gaps = np.random.default_rng(seed).exponential(1e9 / rate_rps, count)
        return cls(count=count, times_ns=np.cumsum(gaps).astype(np.int64), **columns)

    @classmethod
    def constant(cls, rate_rps: float, count: int, *, burst: int = 1, **columns: Any) -> Arrivals:
        """Open loop, `rate_rps` requests a second in equal steps, `burst` at a time."""
        times = (np.arange(count) // burst * (burst * 1e9 / rate_rps)).astype(np.int64)
        return cls(count=count, times_ns=times, **columns)

    @classmethod
    def closed(cls, concurrency: int, count: int, **columns: Any) -> Arrivals:
        """Closed loop: `concurrency` clients send `count` requests between them."""
        return cls(count=count, concurrency=concurrency, **columns)

    @classmethod
    def of(cls, workload: Workload, count: int) -> Arrivals:
        """`count` requests as perf_analyzer sends those of a workload.

        Clients that go round the same list come into step in the long run and then merge all the time, which no short
        run does, nor do texts of real users: so short runs are played (16 clients with 3 lengths, many at a time: 1.9
        requests a batch, 1.7 in runs of perf_analyzer, and 5 in one long run).
        """
        lengths = workload.cycle or (1,)
        columns: dict[str, Any] = {"lengths": lengths, "sizes": workload.batch}
        if workload.concurrency is None:
            return cls.at(workload.times_s(count), **columns)
        columns["lengths"] = _in_short_runs(np.asarray(lengths), workload.concurrency, count)
        return cls.closed(workload.concurrency, count, dealt=True, **columns)

    def with_lengths(self, lengths: Sequence[int] | Integers) -> Arrivals:
        """The same requests with other lengths, for padding."""
        return replace(self, lengths=lengths)
