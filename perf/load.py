"""A workload as perf_analyzer's load options, and when its requests are to leave. Layer: above workload."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perf.workload import Workload
from tooling.repository import write_atomic

Integers = npt.NDArray[np.int64]
_RATE_THREADS = 4
_MOST_TIMES = 1_000_000
_LONGEST_TRACE_S = 60
WINDOWS, STRETCH = 3, 1.2
"""A run is three windows, and a window of perf_analyzer lasts this times the interval asked."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Options, the number of workers that deal out the requests, and the planned gaps before each request of an open
    loop (ns; they repeat from the start), None in a closed one."""

    options: tuple[str, ...]
    workers: int
    gaps_ns: Integers | None = None

    @property
    def uneven(self) -> bool:
        """Whether requests leave at other times than an even rate gives."""
        return self.gaps_ns is not None and len(self.gaps_ns) > 1

    def planned_ns(self, count: int) -> Integers | None:
        """When the first `count` requests are to leave, and a whole round of the gaps at least."""
        if self.gaps_ns is None:
            return None
        return np.cumsum(np.resize(self.gaps_ns, max(count, len(self.gaps_ns))))


def window_ms(workload: Workload) -> int | None:
    """The interval that makes a run as long as the workload says, or as one pass of its trace takes; None where
    nothing says."""
    span_s = workload.duration_s or (min(workload.period_s, _LONGEST_TRACE_S) if workload.timestamps else None)
    return None if span_s is None else max(1, round(span_s / (WINDOWS * STRETCH) * 1000))


def plan_load(workload: Workload, span_s: float, directory: Path, *, rows: int) -> LoadPlan:
    """The load for a run of `span_s` seconds, in which perf_analyzer puts `rows` steps of the input into each request;
    sending times other than an even rate go to a file in `directory`.

    perf_analyzer's own random times are the same for every seed and begin with a lull, so they are not used. Open loops
    are asynchronous: otherwise a late answer delays the next request, and a busy server looks fast.
    """
    streaming = () if workload.streams is None else ("--streaming",)
    size = ("-b", str(rows)) if rows > 1 else ()
    if workload.concurrency is not None:
        workers = min(workload.concurrency, workload.streams or workload.concurrency)
        mode = ("--async", *streaming) if streaming else ()
        clients = ("--concurrency-range", str(workload.concurrency), "--max-threads", str(workers))
        return LoadPlan((*clients, *mode, *size), workers)
    workers = workload.streams or _RATE_THREADS
    common = ("--async", *streaming, "--max-threads", str(workers), *size)
    if workload.request_rate is not None and workload.burst == 1 and not workload.random:
        gap_ns = round(1e9 / workload.request_rate)
        rate = ("--request-rate-range", repr(workload.level), "--request-distribution", "constant")
        return LoadPlan((*rate, *common), workers, np.array([gap_ns]))
    gaps_us = _gaps_us(workload, span_s)
    path = directory / "intervals.txt"
    write_atomic(path, "\n".join(map(str, gaps_us.tolist())) + "\n")
    return LoadPlan(("--request-intervals", str(path), *common), workers, gaps_us * 1000)


def _gaps_us(workload: Workload, span_s: float) -> Integers:
    """Gaps for at least the run and what perf_analyzer adds to it."""
    count = min(math.ceil(workload.level * (1.2 * span_s + 1)) + 10 * workload.burst, _MOST_TIMES)
    times_us = np.rint(workload.times_s(count) * 1e6).astype(np.int64)
    return np.diff(times_us, prepend=0)
