"""What a simulated run says: figures like those of a measurement, but never one. Layer: sim, pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from perf.sim import memory as at
from perf.sim.state import Layout

Integers = npt.NDArray[np.int64]
PERCENTILES = (50, 90, 95, 99)


class Executions(NamedTuple):
    """Start, duration, rows and number of requests of each execution, in order of start."""

    start_ns: Integers
    span_ns: Integers
    rows: Integers
    requests: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrediction:
    """One model of the run: its executions, the rows in them (`batch_histogram`: rows → executions), and how busy
    its instances were (`utilisation`, 0 to 1)."""

    execution_count: int
    inference_count: int
    batch_histogram: dict[int, int]
    utilisation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A simulated point. Latencies are the mean and percentiles of answered requests as the client sees them, in
    microseconds; `queue_us` is the mean time in schedulers' queues, `queue_share` its part of `avg_us`. Latencies are
    None when no request was answered. Names are those of a Measurement, in which a Prediction is never stored.
    """

    throughput_rps: float
    avg_us: float | None
    p50_us: float | None
    p90_us: float | None
    p95_us: float | None
    p99_us: float | None
    requests: int
    timed_out: int
    refused: int
    queue_us: float | None
    queue_share: float | None
    stages: tuple[StagePrediction, ...]
    seed: int

    @property
    def execution_count(self) -> int:
        return sum(s.execution_count for s in self.stages)

    @property
    def inference_count(self) -> int:
        return sum(s.inference_count for s in self.stages)

    @property
    def mean_batch(self) -> float | None:
        """Mean rows of an execution."""
        return self.inference_count / self.execution_count if self.execution_count else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "stages": [asdict(s) for s in self.stages]}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Every request and every execution of a run, in order, as arrays of integers; times in ns."""

    layout: Layout
    instances: tuple[int, ...]
    client_overhead_ns: int
    seed: int

    @property
    def sent_ns(self) -> Integers:
        return self.layout.requests[:, at.SENT]

    @property
    def latency_ns(self) -> Integers:
        """From sending a request to its answer, as the client sees it."""
        return self.layout.requests[:, at.DONE] - (self.sent_ns - self.client_overhead_ns)

    @property
    def waited_ns(self) -> Integers:
        """Time in the queues of all stages."""
        return self.layout.requests[:, at.WAITED]

    @property
    def status(self) -> Integers:
        """memory.ANSWERED, TIMED_OUT or REFUSED."""
        return self.layout.requests[:, at.STATUS]

    def executions(self, stage: int = 0) -> Executions:
        """What one model executed."""
        return Executions(*self.layout.executed(stage))

    def ran(self, stage: int = 0) -> Integers:
        """Per request, the number of its execution in `executions(stage)`; NONE if it had none."""
        return self.layout.ran(stage)

    def predict(self, *, warm_up: int = 0) -> Prediction:
        """The figures, without the first `warm_up` requests and without the executions that began before them."""
        # One pass over the records: their columns lie far apart.
        sent, done, status, waited = self.layout.requests[warm_up:, [at.SENT, at.DONE, at.STATUS, at.WAITED]].T
        latency = done - sent + self.client_overhead_ns
        begin, end = int(sent[0]), int(done.max()) + self.client_overhead_ns
        answered = status == at.ANSWERED
        timed_out = refused = 0
        if not answered.all():
            latency, waited = latency[answered], waited[answered]
            timed_out, refused = (int((status == word).sum()) for word in (at.TIMED_OUT, at.REFUSED))
        average = float(latency.mean()) / 1e3 if len(latency) else None
        queue = float(waited.mean()) / 1e3 if len(latency) else None
        p50, p90, p95, p99 = _percentiles_us(latency)
        return Prediction(
            throughput_rps=len(latency) / max(1, end - begin) * 1e9,
            avg_us=average,
            p50_us=p50,
            p90_us=p90,
            p95_us=p95,
            p99_us=p99,
            requests=len(latency),
            timed_out=timed_out,
            refused=refused,
            queue_us=queue,
            queue_share=None if average is None or queue is None else queue / max(average, 1e-3),
            stages=tuple(self._stage(s, begin, end) for s in range(len(self.instances))),
            seed=self.seed,
        )

    def _stage(self, s: int, begin: int, end: int) -> StagePrediction:
        executions = self.executions(s)
        first = int(np.searchsorted(executions.start_ns, begin))
        rows = executions.rows[first:]
        counts = np.bincount(rows)
        return StagePrediction(
            execution_count=len(rows),
            inference_count=int(rows.sum()),
            batch_histogram={int(n): int(counts[n]) for n in np.flatnonzero(counts)},
            utilisation=float(executions.span_ns[first:].sum()) / max(1, end - begin) / self.instances[s],
        )


def _percentiles_us(latency: Integers) -> list[float] | list[None]:
    """The sorted latency at floor(p/100·(n−1) + 0.5), as perf_analyzer reads percentiles."""
    if not len(latency):
        return [None] * len(PERCENTILES)
    places = [int(p / 100 * (len(latency) - 1) + 0.5) for p in PERCENTILES]
    ordered = np.partition(latency, places)
    return [float(ordered[place]) / 1e3 for place in places]
