"""What every setting would give, simulated on a measured curve, and the few that are worth measuring. Layer: above
curve and grid, pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from perf.buckets import pad, plan_buckets
from perf.curve import ServiceCurve, Setting
from perf.grid import BASE, Candidate, candidate
from perf.sim import Arrivals, BatcherConfig, Machine, Prediction, ServiceModel, simulate
from perf.slo import METRICS, Slo, Term, figure
from perf.workload import Workload
from tooling.config import knobs as knobs_of
from tooling.config.knobs import Knobs, apply

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

REQUESTS = 20_000
"""Fewer are played where numba is missing: plain Python takes about a second for as many."""
PLAIN_REQUESTS = 2_000
ALIKE = 0.05
"""Predictions this near are one: the simpler setting stands for them."""
NEARLY = 1.25
"""A limit that the prediction misses by less than this factor may still be kept: p99 is predicted within 20 %."""
HOPELESS = 0.75
"""A prediction below this share of the best is not worth a measurement."""
BEHIND = 0.97
"""A server that answers less than this share of what is sent falls behind."""
MOST_EDGES = 4
PREFERRED = (2, 4, 8, 16, 32)
HELPS = 1.05
"""Preferred sizes, padding and a second look stay out unless they are predicted to gain as much."""


class Group(NamedTuple):
    """What a prediction may get wrong as a whole: a split with merging or not, waiting or not, padding or not."""

    setting: Setting
    merged: bool
    waits: bool
    padded: bool


@dataclass(frozen=True, slots=True)
class Expected:
    """One setting and what is predicted for it; `saturated` when it falls behind the rate asked."""

    candidate: Candidate
    prediction: Prediction
    saturated: bool

    def to_dict(self) -> dict[str, Any]:
        p, one = self.prediction, self.candidate
        figures = {name: getattr(p, name) for name in FIGURES}
        stage = p.stages[0]
        return {
            "id": one.id,
            "label": one.label,
            "knobs": knobs_of.to_dict(one.knobs),
            "edges": list(one.edges),
            "saturated": self.saturated,
            "busy": stage.utilisation,
            "batch_histogram": {str(rows): count for rows, count in stage.batch_histogram.items()},
            **figures,
        }


FIGURES = ("throughput_rps", "avg_us", "p50_us", "p90_us", "p95_us", "p99_us", "queue_us", "mean_batch")


@dataclass(frozen=True)
class Sweep:
    """A model on one machine: its curve, config and traffic, and every setting played on them.

    `factors` correct the curve where measurements disagreed with it: how many times longer executions take, by
    setting; `common` holds for settings that were not measured.
    """

    config: ModelConfig
    base: Knobs
    curve: ServiceCurve
    workload: Workload
    slo: Slo
    tries: tuple[Candidate, ...]
    factors: Mapping[Setting, float] = field(default_factory=dict)
    common: float = 1.0
    requests: int = REQUESTS

    @property
    def cores(self) -> int:
        return int(self.curve.host["cores"])

    def setting(self, knobs: Knobs) -> Setting:
        return self.curve.setting(knobs)

    def group(self, one: Candidate) -> Group:
        merged = one.knobs.dynamic_batching and one.knobs.max_batch_size > 1
        waits = merged and one.knobs.max_queue_delay_us > 0
        return Group(self.setting(one.knobs), merged, waits, padded=bool(one.edges))

    @cached_property
    def default(self) -> Expected:
        """The current config."""
        return self.play(Candidate(BASE, self.base))

    @cached_property
    def expected(self) -> tuple[Expected, ...]:
        """Every setting of the grid; then padding where it could pay, and preferred sizes where they do."""
        found = [self.play(one) for one in self.tries]
        found += self._padded(found)
        found += self._preferred(found)
        return tuple(found)

    def play(self, one: Candidate, workload: Workload | None = None) -> Expected:
        """The prediction for one setting, under the traffic or another one.

        What cannot differ is played once: larger batches than the traffic fills, delays where nothing is merged.
        """
        knobs = one.knobs
        merged = knobs.dynamic_batching and knobs.max_batch_size > 1
        waiting = (knobs.max_queue_delay_us, knobs.preferred_batch_size) if merged else None
        alike = (self.setting(knobs), one.edges, waiting, workload)
        size = min(knobs.max_batch_size, self._full.get(alike, knobs.max_batch_size)) if merged else 0
        if (alike, size) not in self._played:
            found = self._play(one, workload)
            rows = max(found.prediction.stages[0].batch_histogram, default=1)
            if merged and rows < size:
                self._full[alike] = size = rows + 1
            self._played[alike, size] = found
        return replace(self._played[alike, size], candidate=one)

    @cached_property
    def _played(self) -> dict[Any, Expected]:
        return {}

    @cached_property
    def _full(self) -> dict[Any, int]:
        """The smallest batch that is never filled."""
        return {}

    def _play(self, one: Candidate, workload: Workload | None) -> Expected:
        traffic = workload or self.workload
        service, machine = self.service(self.setting(one.knobs))
        arrivals = self._arrivals(traffic)
        if one.edges:
            arrivals = arrivals.with_lengths(pad(arrivals.lengths, one.edges))
        batcher = self.batcher(one.knobs)
        warm = self.requests // 10
        prediction = simulate(batcher, arrivals, service, machine=machine, warm_up=warm, seed=0)
        return Expected(one, prediction, _behind(arrivals, warm, prediction))

    def batcher(self, knobs: Knobs) -> BatcherConfig:
        instances = self.setting(knobs).instances
        return BatcherConfig.from_model_config(apply(knobs, self.config), instance_count=instances)

    def service(self, setting: Setting) -> tuple[ServiceModel, Machine]:
        """The measured service times, corrected, and the machine around them."""
        if setting not in self._services:
            self.curve.of(setting)  # raises, with what was measured
        service, machine = self._services[setting]
        factor = self.factors.get(setting, self.common)
        times = tuple(tuple(time * factor for time in row) for row in service.times_ms)
        return replace(service, times_ms=times), machine

    def merit(self, found: Expected) -> tuple[float, float]:
        """How good a prediction is, larger is better: whether the limits are kept, then the score."""
        terms = [_excess(term, found.prediction) for term in self.slo.terms]
        excess = max([value for value in terms if value is not None], default=0.0)
        if found.saturated or excess > NEARLY:
            return -1.0 if found.saturated else 0.0, -max(excess, 1.0)
        return (1.0 if excess > 1 else 2.0), self.slo.objective.score(found.prediction) or 0.0

    def gain(self, found: Expected) -> float:
        """How many times better than the current config a setting is predicted to be."""
        ours, base = (self.slo.objective.score(one.prediction) or 0.0 for one in (found, self.default))
        return ours / base if ours and base else 1.0

    def finalists(
        self, most: int, without: Iterable[Group] = (), better_than: float = -math.inf
    ) -> tuple[Expected, ...]:
        """The best of each group, best groups first: those worth measuring, at most `most`.

        Of settings predicted alike the simplest stands for the group, and groups that share instances and threads with
        a better one that is predicted alike, or only waits, come last: they are right or wrong together. Groups in
        `without` are left out, and those whose score is not above `better_than`.
        """
        ranked = self.best(without)
        if not ranked:
            return ()
        top_tier, top = max(self.merit(one) for one in [*ranked, self.default] if not one.candidate.edges)
        floor = max(HOPELESS * top if top_tier > 0 else -math.inf, better_than)
        paying = top_tier, improved(top)
        ranked = [one for one in ranked if not one.candidate.edges or self.merit(one) > paying]
        able = [one for one in ranked if self.merit(one)[0] >= min(top_tier, 1.0) and self.merit(one)[1] > floor]
        again = [one for place, one in enumerate(able) if any(self._like(one, other) for other in able[:place])]
        return tuple([*(one for one in able if one not in again), *again][:most])

    def _like(self, one: Expected, better: Expected) -> bool:
        """Whether two settings of the same instances and threads are predicted alike, or differ by a delay only."""
        (tier, score), (other_tier, other_score) = self.merit(one), self.merit(better)
        group, other = self.group(one.candidate), self.group(better.candidate)
        alike = tier == other_tier and abs(score - other_score) <= ALIKE * abs(other_score)
        only_waits = group._replace(waits=other.waits) == other
        return group.setting == other.setting and (alike or only_waits)

    def best(self, without: Iterable[Group] = ()) -> list[Expected]:
        """The best setting of each group, best groups first; the current config is never among them."""
        skipped = set(without)
        groups: dict[Group, list[Expected]] = {}
        for found in self.expected:
            if found.candidate.changed and self.group(found.candidate) not in skipped:
                groups.setdefault(self.group(found.candidate), []).append(found)
        those = [self.simplest(members) for key, members in groups.items() if self._worth(key, groups)]
        return sorted(those, key=self.merit, reverse=True)

    def _worth(self, key: Group, groups: Mapping[Group, Sequence[Expected]]) -> bool:
        """Whether a group that waits is predicted to gain by it; any other group is worth a look."""
        at_once = groups.get(key._replace(waits=False))
        if not key.waits or not at_once:
            return True
        (tier, score), (other_tier, other_score) = (max(map(self.merit, found)) for found in (groups[key], at_once))
        return tier > other_tier or (tier == other_tier and score > other_score + ALIKE * abs(other_score))

    def simplest(self, members: Sequence[Expected]) -> Expected:
        """The best, or what is predicted as good with fewer changes, a shorter delay, a smaller batch."""
        tier, score = max(map(self.merit, members))
        near = score * (1 - ALIKE) if score > 0 else score * (1 + ALIKE)
        alike = [m for m in members if self.merit(m)[0] == tier and self.merit(m)[1] >= near]
        return min(alike, key=lambda m: (*_effort(m.candidate), -self.merit(m)[1]))

    def frontier(self, points: Sequence[Expected] | None = None) -> tuple[Expected, ...]:
        """The settings that no other beats in both throughput and p99, by rising throughput."""
        known = [p for p in points or (self.default, *self.expected) if p.prediction.p99_us and not p.saturated]
        best: list[Expected] = []
        for one in sorted(
            known, key=lambda p: (-p.prediction.throughput_rps, p.prediction.p99_us, len(p.candidate.id))
        ):
            if not best or (one.prediction.p99_us or 0) < (best[-1].prediction.p99_us or 0) * (1 - ALIKE):
                best.append(one)
        return tuple(reversed(best))

    def refitted(self, seen: Mapping[Candidate, float]) -> Sweep:
        """The same with executions as long as measured mean latencies (in us) tell; for each candidate one."""
        factors: dict[Setting, list[float]] = {}
        for one, avg_us in seen.items():
            factors.setdefault(self.setting(one.knobs), []).append(self._factor(one, avg_us))
        found = {setting: statistics.geometric_mean(values) for setting, values in factors.items()}
        common = statistics.geometric_mean(found.values()) if found else 1.0
        return replace(self, factors={**self.factors, **found}, common=common)

    def in_form(self, one: Candidate, avg_us: float) -> Sweep:
        """The same for another form of the model, all of whose executions take longer or shorter than this one's by
        what the mean latency of `one` tells."""
        setting = self.setting(one.knobs)
        ratio = self._factor(one, avg_us) / self.factors.get(setting, self.common)
        factors = {known: ratio * factor for known, factor in self.factors.items()}
        return replace(self, factors=factors, common=ratio * self.common)

    def _factor(self, one: Candidate, avg_us: float) -> float:
        """How many times longer executions take than the curve says, by bisection on the mean latency."""
        low, high = 0.25, 4.0
        setting = self.setting(one.knobs)
        for _ in range(9):
            middle = math.sqrt(low * high)
            trial = replace(self, factors={setting: middle})
            if (trial.play(one).prediction.avg_us or math.inf) < avg_us:
                low = middle
            else:
                high = middle
        return math.sqrt(low * high)

    def _padded(self, found: Sequence[Expected]) -> Iterator[Expected]:
        """The best merging setting of each split with its requests padded to few lengths."""
        lengths = self.lengths
        if len(set(lengths)) < 2:
            return
        histogram = {length: lengths.count(length) for length in set(lengths)}
        merging = [f for f in found if f.candidate.knobs.dynamic_batching and f.candidate.knobs.max_batch_size > 1]
        for setting, members in _by(merging, lambda f: self.setting(f.candidate.knobs)).items():
            service, _ = self.service(setting)
            widest = max(f.candidate.knobs.max_batch_size for f in members)
            plans = plan_buckets(
                histogram, service, max_batch_size=widest, instances=setting.instances, max_edges=MOST_EDGES
            )
            best = max(members, key=self.merit).candidate.knobs
            plain = replace(best, max_batch_size=widest, max_queue_delay_us=0)
            for plan in plans:
                for knobs in dict.fromkeys((plain, best)) if not plan.free else ():
                    yield self.play(candidate(self.base, knobs, plan.edges))

    def _preferred(self, found: Sequence[Expected]) -> Iterator[Expected]:
        """Preferred sizes for the best delayed setting of each split, where they gain: they end a wait early."""
        delayed = [
            f for f in found if f.candidate.knobs.max_queue_delay_us and not f.candidate.knobs.preferred_batch_size
        ]
        for members in _by(delayed, lambda f: self.group(f.candidate)).values():
            best = max(members, key=self.merit)
            knobs = best.candidate.knobs
            for size in PREFERRED:
                if size < knobs.max_batch_size:
                    one = replace(knobs, preferred_batch_size=(size,))
                    played = self.play(candidate(self.base, one, best.candidate.edges))
                    tier, score = self.merit(best)
                    if self.merit(played)[0] > tier or self.merit(played) > (tier, improved(score)):
                        yield played

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.workload.lengths or self.curve.lengths

    def _arrivals(self, workload: Workload) -> Arrivals:
        lengths = workload.lengths or self.curve.lengths
        return Arrivals.of(workload.model_copy(update={"lengths": lengths}), self.requests)

    @cached_property
    def _services(self) -> dict[Setting, tuple[ServiceModel, Machine]]:
        series = {setting: self.curve.of(setting) for setting in self.curve.settings}
        return {setting: (one.service(), one.machine()) for setting, one in series.items()}


def improved(score: float) -> float:
    """What a score must exceed to be a gain of HELPS: larger is better, and scores of missed limits are negative."""
    return score * HELPS if score > 0 else score / HELPS


def requests_to_play() -> int:
    """How many requests a prediction stands on, going by whether numba is here."""
    from importlib.util import find_spec

    return REQUESTS if find_spec("numba") else PLAIN_REQUESTS


def _behind(arrivals: Arrivals, warm_up: int, prediction: Prediction) -> bool:
    """Whether fewer are answered than came, going by the times they did come at."""
    times = arrivals.times_ns
    if times is None:
        return False
    span_s = float(times[-1] - times[warm_up]) / 1e9
    return span_s > 0 and prediction.throughput_rps < BEHIND * (len(times) - 1 - warm_up) / span_s


def _excess(term: Term, prediction: Prediction) -> float | None:
    """By which factor a limit is missed; 1 or less when it is kept, None for what is not predicted."""
    value = figure(term.metric, prediction)
    if value is None:
        return None
    ratio = value / term.limit if METRICS[term.metric].better == "lower" else term.limit / max(value, 1e-9)
    return ratio if ratio != 1 or term.met_by(value) else ratio * (1 + 1e-9)


def _effort(one: Candidate) -> tuple[int, int, int, bool, int]:
    """What makes a setting less simple: padding, changes, waiting, another batch size."""
    knobs = one.knobs
    return (
        len(one.edges),
        len(one.changed),
        knobs.max_queue_delay_us,
        "max_batch_size" in one.changed,
        knobs.max_batch_size,
    )


def _by(members: Iterable[Expected], key: Callable[[Expected], Any]) -> dict[Any, list[Expected]]:
    groups: dict[Any, list[Expected]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return groups
