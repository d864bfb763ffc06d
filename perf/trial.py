"""What is asked of a setting, what came out for each, and which one is chosen. Layer: above compare and grid, pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from perf.compare import LOOKS, TIE_MARGIN, Verdict, judge, settle
from perf.grid import Candidate
from perf.measurement import Measurement
from perf.pooled import pooled_us
from perf.slo import METRICS, Slo
from tooling.config import knobs as knobs_of

MISSED = "limits not kept"
PADDING_GAIN = 1.05
"""What padding has to gain, surely: clients have to do it."""
State = Literal["default", "compared", "screened out", "failed", "not explored"]


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure of several runs and its range over them. `middle` is the median run's, of latency percentiles that of
    all requests together."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], pooled: float | None = None) -> Spread:
        return cls(statistics.median(values) if pooled is None else pooled, min(values), max(values))


@dataclass(frozen=True, slots=True)
class Figures:
    """Spreads over `runs` runs of one setting, of `requests` requests in all: requests a second, latencies in
    microseconds; the means of what a request spent in Triton's queue and computing, and of the joules it took, None
    where Triton did not tell."""

    runs: int
    throughput_rps: Spread
    avg_us: Spread
    p50_us: Spread
    p99_us: Spread
    mean_batch: float | None
    queue_us: float | None = None
    compute_us: float | None = None
    requests: int = 0
    energy_j: float | None = None

    @classmethod
    def of(cls, points: Sequence[Measurement]) -> Figures | None:
        """None when there is no run to summarise."""
        if not points:
            return None
        batches = [p.mean_batch for p in points if p.mean_batch]
        computed = [
            sum(us or 0.0 for us in (p.compute_input_us, p.compute_infer_us, p.compute_output_us)) for p in points
        ]
        queued = [p.queue_us for p in points if p.queue_us is not None]
        pooled = pooled_us(points)
        return cls(
            runs=len(points),
            throughput_rps=Spread.of([p.throughput_rps or 0.0 for p in points]),
            avg_us=Spread.of([p.avg_us or 0.0 for p in points]),
            p50_us=Spread.of([p.p50_us or 0.0 for p in points], pooled.get("p50_us")),
            p99_us=Spread.of([p.p99_us or 0.0 for p in points], pooled.get("p99_us")),
            mean_batch=statistics.fmean(batches) if batches else None,
            queue_us=statistics.fmean(queued) if queued else None,
            compute_us=statistics.fmean(computed) if any(computed) else None,
            requests=sum(p.requests or 0 for p in points),
            energy_j=statistics.fmean(energies) if (energies := [p.energy_j for p in points if p.energy_j]) else None,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any] | None) -> Figures | None:
        """The figures of `asdict`, or none."""
        if data is None:
            return None
        values: dict[str, Any] = {n: Spread(**value) if isinstance(value, dict) else value for n, value in data.items()}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting and what became of it. `screen_ratio` is the first rough gain over the default, `predicted_ratio`
    the one predicted before it was measured, `verdict` the paired comparison, `reason` why there is none; `admissible`
    is whether the limits are kept, None while unknown; `against` are the figures of the default in those pairs."""

    candidate: Candidate
    state: State
    figures: Figures | None = None
    screen_ratio: float | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    admissible: bool | None = None
    against: Figures | None = None
    predicted_ratio: float | None = None
    gains: tuple[float, ...] = field(default=(), compare=False)
    """The log ratios of the pairs, in the order of the rounds; not kept."""

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        words = self.verdict.word if self.verdict else "as configured" if self.state == "default" else self.state
        return f"{words}; {MISSED}" if self.admissible is False else words

    @property
    def gain(self) -> str:
        """How many times better than the default, with the interval where there is one."""
        if self.verdict:
            return str(self.verdict)
        if self.screen_ratio is not None:
            return f"≈{self.screen_ratio:.2f}×"
        return f"predicted {self.predicted_ratio:.2f}×" if self.predicted_ratio is not None else ""

    def to_dict(self) -> dict[str, Any]:
        candidate = self.candidate
        return {
            "id": candidate.id,
            "label": candidate.label,
            "knobs": knobs_of.to_dict(candidate.knobs),
            "changed": list(candidate.changed),
            "edges": list(candidate.edges),
            "form": candidate.form,
            "state": self.state,
            "outcome": self.outcome,
            "figures": asdict(self.figures) if self.figures else None,
            "screen_ratio": self.screen_ratio,
            "verdict": self.verdict.to_dict() if self.verdict else None,
            "reason": self.reason,
            "admissible": self.admissible,
            "against": asdict(self.against) if self.against else None,
            "predicted_ratio": self.predicted_ratio,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trial:
        return cls(
            Candidate(
                data["id"],
                knobs_of.from_dict(data["knobs"]),
                tuple(data["changed"]),
                tuple(data.get("edges", ())),
                data.get("form", ""),
            ),
            data["state"],
            Figures.from_dict(data["figures"]),
            data["screen_ratio"],
            data["verdict"] and Verdict(**data["verdict"]),
            data["reason"],
            data["admissible"],
            Figures.from_dict(data["against"]),
            data.get("predicted_ratio"),
        )


def within_limit(points: Sequence[Measurement], slo: Slo) -> bool | None:
    """Whether the runs taken together keep every limit; None without a limit or without runs."""
    if not slo.terms or not points:
        return None
    return slo.met(together(points))


def together(points: Sequence[Measurement]) -> dict[str, float]:
    """Each figure that may be limited and that all runs have: its median, or the percentile of all requests."""
    found = {}
    for metric in METRICS.values():
        values = [value for p in points if (value := getattr(p, metric.field, None)) is not None]
        if len(values) == len(points):
            found[metric.field] = statistics.median(values)
    return {**found, **pooled_us(points)}


def choose(default: Trial, trials: Sequence[Trial]) -> Trial | None:
    """The setting to take: of those better than the default the best, or one at most 3 % behind it that changes fewer
    knobs; the default when none is better. How wide an interval is does not count: an unsure figure is no better one.

    One that asks clients to pad their requests is taken only if it is surely better by 5 % than the best that does not.

    A setting that misses a limit is never taken. When the default itself misses one, any compared setting that keeps
    them competes. None when nothing keeps the limits.
    """
    must_leave = default.admissible is False
    able = [
        (t, t.verdict)
        for t in trials
        if t.verdict and t.admissible is not False and (must_leave or t.verdict.outcome == "better")
    ]
    if not able:
        return None if must_leave else default
    plain = max((pair for pair in able if not pair[0].candidate.edges), key=lambda pair: pair[1].ratio, default=None)
    able = [
        pair
        for pair in able
        if not (pair[0].candidate.edges and plain) or _surely_better(pair[0], plain[0], PADDING_GAIN)
    ]
    best = max(verdict.ratio for _, verdict in able)
    equal = [(t, verdict) for t, verdict in able if verdict.ratio * (1 + TIE_MARGIN) >= best]
    return min(equal, key=lambda pair: (len(pair[0].candidate.changed), -pair[1].ratio))[0]


def ties(chosen: Trial | None, trials: Sequence[Trial]) -> tuple[dict[str, Any], ...]:
    """Those that keep the limits and that the pairs do not tell apart from the one taken, with how many times as good
    they are."""
    found = []
    for one in trials:
        verdict = against(one, chosen) if chosen and one is not chosen and one.admissible is not False else None
        if verdict and verdict.outcome in ("tie", "undecided"):
            found.append({"id": one.candidate.id, "label": one.candidate.label, **settle(verdict).to_dict()})
    return tuple(found)


def against(one: Trial, other: Trial, handicap: float = 1.0) -> Verdict | None:
    """How many times better one is than the other, less a handicap, in the rounds up to the last look that both came
    to; None when they came to none."""
    rounds = max((look for look in LOOKS if look <= min(len(one.gains), len(other.gains))), default=0)
    pairs = zip(one.gains[:rounds], other.gains[:rounds], strict=True)
    return judge([a - b - math.log(handicap) for a, b in pairs]) if rounds else None


def _surely_better(one: Trial, other: Trial, by: float) -> bool:
    verdict = against(one, other, by)
    return verdict is not None and verdict.outcome == "better"
