"""What is asked of a setting, what came out for each, and which one is chosen. Layer: above compare and grid, pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from perf.compare import Verdict
from perf.grid import Candidate
from perf.measurement import Measurement
from tooling.config import knobs as knobs_of
from tooling.units import format_duration_us

Metric = Literal["throughput", "avg", "p50", "p90", "p95", "p99"]
State = Literal["default", "compared", "screened out", "failed", "not explored"]


@dataclass(frozen=True, slots=True)
class Objective:
    """What is made better, and the p99 latency a setting must not exceed (median over its runs), in microseconds."""

    metric: Metric = "throughput"
    max_p99_us: int | None = None

    def score(self, point: Measurement) -> float:
        """Larger is better: requests a second, or the inverse of a latency. Only for points that are ok."""
        if self.metric == "throughput":
            return point.throughput_rps or 0.0
        latency: float | None = getattr(point, f"{self.metric}_us")
        return 1e6 / latency if latency else 0.0

    def __str__(self) -> str:
        goal = "highest throughput" if self.metric == "throughput" else f"lowest {self.metric} latency"
        return goal if self.max_p99_us is None else f"{goal} with p99 ≤ {format_duration_us(self.max_p99_us)}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of one figure over several runs."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Figures:
    """Spreads over `runs` runs of one setting: requests a second, latencies in microseconds."""

    runs: int
    throughput_rps: Spread
    p50_us: Spread
    p99_us: Spread
    mean_batch: float | None

    @classmethod
    def of(cls, points: Sequence[Measurement]) -> Figures | None:
        """None when there is no run to summarise."""
        if not points:
            return None
        batches = [p.mean_batch for p in points if p.mean_batch]
        return cls(
            len(points),
            Spread.of([p.throughput_rps or 0.0 for p in points]),
            Spread.of([p.p50_us or 0.0 for p in points]),
            Spread.of([p.p99_us or 0.0 for p in points]),
            statistics.fmean(batches) if batches else None,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any] | None) -> Figures | None:
        """The figures of `asdict`, or none."""
        if data is None:
            return None
        spreads = {name: Spread(**value) for name, value in data.items() if isinstance(value, dict)}
        return cls(runs=data["runs"], mean_batch=data["mean_batch"], **spreads)


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting and what became of it. `screen_ratio` is the first rough gain over the default, `verdict` the paired
    comparison, `reason` why there is none; `admissible` is whether the p99 limit is kept, None while unknown;
    `against` are the figures of the default in the pairs of the comparison."""

    candidate: Candidate
    state: State
    figures: Figures | None = None
    screen_ratio: float | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    admissible: bool | None = None
    against: Figures | None = None

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        words = self.verdict.word if self.verdict else "as configured" if self.state == "default" else self.state
        return f"{words}; p99 over the limit" if self.admissible is False else words

    @property
    def gain(self) -> str:
        """How many times better than the default, with the interval where there is one."""
        if self.verdict:
            return str(self.verdict)
        return f"≈{self.screen_ratio:.2f}×" if self.screen_ratio is not None else ""

    def to_dict(self) -> dict[str, Any]:
        candidate = self.candidate
        return {
            "id": candidate.id,
            "label": candidate.label,
            "knobs": knobs_of.to_dict(candidate.knobs),
            "changed": list(candidate.changed),
            "state": self.state,
            "outcome": self.outcome,
            "figures": asdict(self.figures) if self.figures else None,
            "screen_ratio": self.screen_ratio,
            "verdict": self.verdict.to_dict() if self.verdict else None,
            "reason": self.reason,
            "admissible": self.admissible,
            "against": asdict(self.against) if self.against else None,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trial:
        return cls(
            Candidate(data["id"], knobs_of.from_dict(data["knobs"]), tuple(data["changed"])),
            data["state"],
            Figures.from_dict(data["figures"]),
            data["screen_ratio"],
            data["verdict"] and Verdict(**data["verdict"]),
            data["reason"],
            data["admissible"],
            Figures.from_dict(data["against"]),
        )


def within_limit(points: Sequence[Measurement], objective: Objective) -> bool | None:
    """Whether the median p99 keeps the limit; None without a limit or without runs."""
    figures = Figures.of(points)
    if objective.max_p99_us is None or figures is None:
        return None
    return figures.p99_us.median <= objective.max_p99_us


def choose(default: Trial, trials: Sequence[Trial]) -> Trial | None:
    """The setting to take: of those better than the default the best, and where others cannot be told from it (their
    intervals overlap) the one that changes fewest knobs; the default when none is better.

    A setting over the p99 limit is never taken. When the default itself is over it, any compared setting that keeps it
    competes. None when nothing keeps the limit.
    """
    must_leave = default.admissible is False
    able = [
        (t, t.verdict)
        for t in trials
        if t.verdict and t.admissible is not False and (must_leave or t.verdict.outcome == "better")
    ]
    if not able:
        return None if must_leave else default
    best = max((verdict for _, verdict in able), key=lambda v: v.ratio)
    equal = [(t, verdict) for t, verdict in able if verdict.overlaps(best)]
    return min(equal, key=lambda pair: (len(pair[0].candidate.changed), -pair[1].ratio))[0]
