"""Models beside each other on one machine, each with its own queue: requests go to the one of their length. Layer: sim,
above its engine's parts.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from perf.sim.config import BatcherConfig
from perf.sim.prediction import PERCENTILES, Prediction, StagePrediction
from perf.sim.service import ServiceModel
from perf.sim.state import Machine
from perf.sim.traffic import Arrivals, repeat
from tooling.errors import UsageError

_Floats = npt.NDArray[np.float64]
_FOREVER = float("inf")
_DONE_US = 1e-3  # far above what sums of floats lose, far below what is measured


@dataclass(slots=True)
class _Lane:
    """One model: its times in us by rows, who waits, who runs (work left in us, the requests)."""

    times_us: _Floats
    instances: int
    waiting: deque[int] = field(default_factory=deque)
    running: list[tuple[float, list[int]]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    busy_us: float = 0.0


def simulate_lanes(
    edges: Sequence[int],
    config: BatcherConfig,
    arrivals: Arrivals,
    service: ServiceModel,
    *,
    machine: Machine,
    warm_up: int = 0,
) -> Prediction:
    """What clients see where each edge is a model of its own with `config`'s batches and instances, without a delay.

    An idle instance takes what waits, up to a whole batch. All models share the machine: n executions at a time are
    slowed down as the measured n are, and above the measured numbers the work done in a second stays the same. Requests
    of one row. Raises UsageError for a length above the last edge.
    """
    lengths = repeat(np.asarray(arrivals.lengths), arrivals.count)
    if lengths.max() > edges[-1]:
        raise UsageError("a length is above the last edge", where="lanes", got=lengths.max(), expected=f"≤ {edges[-1]}")
    most = max(config.max_batch_size, 1)
    tables = service.table_ns(list(edges), most) / 1e3
    lanes = [_Lane(table, config.instance_count) for table in tables]
    run = _Run(lanes, np.searchsorted(np.asarray(edges), lengths), arrivals, service, most, machine)
    run.play()
    return run.predict(warm_up)


class _Run:
    def __init__(
        self,
        lanes: list[_Lane],
        places: npt.NDArray[np.int64],
        arrivals: Arrivals,
        service: ServiceModel,
        most: int,
        machine: Machine,
    ) -> None:
        self._lanes, self._places, self._most = lanes, places.tolist(), most
        self._slowdown = service.slowdown or (1.0,)
        self._overhead_us = float(machine.client_overhead_us)
        self._closed = arrivals.concurrency is not None
        first = np.zeros(arrivals.concurrency or 0) if arrivals.times_ns is None else arrivals.times_ns
        times = (first / 1e3).tolist()
        self._due = [(time, number) for number, time in enumerate(times[: arrivals.count])]
        self._issued = len(self._due)
        self._sent = np.zeros(arrivals.count)
        self._done = np.zeros(arrivals.count)

    def play(self) -> None:
        """Ends before arrivals at one moment; between events every execution advances at the pace of now."""
        now, left = 0.0, len(self._places)
        while left:
            pace = self._pace()
            end = now + min((work for lane in self._lanes for work, _ in lane.running), default=_FOREVER) * pace
            at = min(end, self._due[0][0] if self._due else _FOREVER)
            self._advance((at - now) / pace, at - now)
            now = at
            if at == end:
                left -= self._finish(now)
            else:
                _, number = heapq.heappop(self._due)
                self._sent[number] = now
                self._lanes[self._places[number]].waiting.append(number)
            self._start()

    def _pace(self) -> float:
        busy = sum(len(lane.running) for lane in self._lanes)
        known = self._slowdown
        return known[max(busy, 1) - 1] if busy <= len(known) else known[-1] * busy / len(known)

    def _advance(self, work: float, span: float) -> None:
        for lane in self._lanes:
            lane.busy_us += span * len(lane.running)
            lane.running = [(left - work, numbers) for left, numbers in lane.running]

    def _finish(self, now: float) -> int:
        """Answer the executions that are done; in a closed loop their clients send the next requests."""
        answered = 0
        for lane in self._lanes:
            done = [numbers for left, numbers in lane.running if left <= _DONE_US]
            lane.running = [(left, numbers) for left, numbers in lane.running if left > _DONE_US]
            for number in (number for numbers in done for number in numbers):
                answered += 1
                self._done[number] = now
                if self._closed and self._issued < len(self._places):
                    heapq.heappush(self._due, (now + self._overhead_us, self._issued))
                    self._issued += 1
        return answered

    def _start(self) -> None:
        for lane in self._lanes:
            while lane.waiting and len(lane.running) < lane.instances:
                numbers = [lane.waiting.popleft() for _ in range(min(self._most, len(lane.waiting)))]
                lane.running.append((float(lane.times_us[len(numbers)]), numbers))
                lane.sizes.append(len(numbers))

    def predict(self, warm_up: int) -> Prediction:
        latency = (self._done - self._sent)[warm_up:] + self._overhead_us
        span_us = self._done[warm_up:].max() - self._sent[warm_up] + self._overhead_us
        p50, p90, p95, p99 = (float(value) for value in np.percentile(latency, PERCENTILES))
        whole = max(self._done.max(), 1e-9)
        return Prediction(
            throughput_rps=float(len(latency) / span_us * 1e6),
            avg_us=float(latency.mean()),
            p50_us=p50,
            p90_us=p90,
            p95_us=p95,
            p99_us=p99,
            requests=len(latency),
            timed_out=0,
            refused=0,
            queue_us=None,
            queue_share=None,
            stages=tuple(_stage(lane, whole) for lane in self._lanes),
            seed=0,
        )


def _stage(lane: _Lane, whole_us: float) -> StagePrediction:
    rows, counts = np.unique(np.asarray(lane.sizes, dtype=np.int64), return_counts=True)
    return StagePrediction(
        execution_count=len(lane.sizes),
        inference_count=sum(lane.sizes),
        batch_histogram=dict(zip(rows.tolist(), counts.tolist(), strict=True)),
        utilisation=float(lane.busy_us / whole_us / lane.instances),
    )
