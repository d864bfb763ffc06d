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
_FEW = 8
"""Different lengths up to which they are dealt to clients as perf_analyzer does."""


def repeat(values: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """`values` over and over, `count` in all (np.resize does this through a list of its repetitions)."""
    return np.tile(values, -(-count // len(values)))[:count]


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

        Of many different lengths each client gets an order of its own: clients that go round the same list come into
        step in the long run and then merge all the time, which no short run does, nor do texts of real users.
        """
        lengths = workload.cycle or (1,)
        columns: dict[str, Any] = {"lengths": lengths, "sizes": workload.batch}
        if workload.concurrency is None:
            return cls.at(workload.times_s(count), **columns)
        if len(set(lengths)) > _FEW:
            rng = np.random.default_rng(0)
            rounds = [rng.permutation(lengths) for _ in range(-(-count // len(lengths)))]
            columns["lengths"] = np.concatenate(rounds)[:count]
        return cls.closed(workload.concurrency, count, dealt=True, **columns)

    def with_lengths(self, lengths: Sequence[int] | Integers) -> Arrivals:
        """The same requests with other lengths, for padding."""
        return replace(self, lengths=lengths)
