"""How texts of many lengths become batches: every way to pad, judged on the service curve; the simplest good one wins.
Layer: above buckets, pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perf.buckets import BucketPlan, Integers, judge, pad, plan_buckets
from perf.sim import Arrivals, BatcherConfig, Machine, Prediction, ServiceModel, simulate
from perf.sim.engine import IDEAL
from perf.sim.lanes import simulate_lanes
from tooling.console import table

MARGIN = 0.03
"""A simpler way is taken when the best one is not ahead by more: predictions are no better than that."""
MOST_EDGES = 8
MOST_MODELS = 4
REQUESTS = 4_000
_WARM_UP = 300
# Lengths times rows: what computing costs where nothing else does, for edges without a measured curve.
PROPORTIONAL = ServiceModel((1, 2), (1, 2), ((1.0, 2.0), (2.0, 4.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to pad, and what is predicted of it: `padding` is `none`, `buckets`, `merged` or `models`;
    `padding_share` is the part of the computed tokens that is padding."""

    padding: str
    edges: tuple[int, ...]
    padding_share: float
    prediction: Prediction

    @property
    def throughput_rps(self) -> float:
        return self.prediction.throughput_rps

    @property
    def label(self) -> str:
        edges = " ".join(map(str, self.edges))
        labels = {
            "none": "free lengths",
            "buckets": f"padded to {edges}",
            "merged": "padded in the merged batch",
            "models": f"a model each for {edges}",
        }
        return labels[self.padding]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        p = self.prediction
        return {
            "padding": self.padding,
            "edges": list(self.edges),
            "padding_share": self.padding_share,
            "throughput_rps": p.throughput_rps,
            "p50_us": p.p50_us,
            "p99_us": p.p99_us,
            "mean_batch": p.mean_batch,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """All ways that were judged, simplest first, and the one to take."""

    ways: tuple[Way, ...]
    chosen: Way

    def text(self) -> str:
        rows = [
            [
                f"{'→ ' if way is self.chosen else '  '}{way.label}",
                f"{way.padding_share:.0%}",
                f"{way.throughput_rps:.1f}",
                f"{(way.prediction.p99_us or 0) / 1e3:.1f}",
                f"{way.prediction.mean_batch or 0:.2f}",
            ]
            for way in self.ways
        ]
        return table(["predicted", "padding", "requests/s", "p99 ms", "mean batch"], rows)


def choose_padding(
    lengths: Sequence[int],
    service: ServiceModel,
    config: BatcherConfig,
    *,
    concurrency: int,
    bucket_instances: int = 1,
    machine: Machine = IDEAL,
    seed: int = 0,
) -> Choice:
    """Judge every way to pad requests of these token lengths, for clients that each wait for their answer.

    `config` is the model's batcher with its instances; a model for one bucket has `bucket_instances`. The most requests
    a second win; of what comes within 3 % of that, the simplest: free lengths, then buckets in one model (few before
    many), padding in the merged batch, and a model for each bucket. The lengths are drawn at random from those given.
    Raises UsageError for no lengths.
    """
    plans = plan_buckets(
        Counter(lengths),
        service,
        max_batch_size=max(1, config.max_batch_size),
        instances=config.instance_count,
        max_edges=MOST_EDGES,
    )
    sample = np.random.default_rng(seed).choice(np.asarray(lengths), REQUESTS)
    arrivals = Arrivals.closed(concurrency, REQUESTS, lengths=sample)
    ways = [_one_model(plan, arrivals, service, config, machine, seed) for plan in (plans[-1], *plans[:-1])]
    ways.append(_merged(arrivals, service, config, machine, seed))
    each = replace(config, instance_count=bucket_instances)
    ways += _models(lengths, arrivals, service, each, machine)
    best = max(way.throughput_rps for way in ways)
    return Choice(tuple(ways), next(way for way in ways if way.throughput_rps >= (1 - MARGIN) * best))


def choose_edges(
    lengths: Sequence[int], service: ServiceModel | None, config: BatcherConfig, *, own_queues: bool
) -> tuple[int, ...]:
    """The edges of the most throughput in a full queue; without a service curve four, those that pad least."""
    most = MOST_MODELS if own_queues or service is None else MOST_EDGES
    plans = plan_buckets(
        Counter(lengths),
        service or PROPORTIONAL,
        max_batch_size=max(1, config.max_batch_size),
        instances=config.instance_count,
        max_edges=most,
        own_queues=own_queues or service is None,
    )
    return max((plan for plan in plans if len(plan.edges) <= most), key=lambda plan: plan.throughput_rps).edges


def _one_model(
    plan: BucketPlan, arrivals: Arrivals, service: ServiceModel, config: BatcherConfig, machine: Machine, seed: int
) -> Way:
    prediction = judge(
        plan, replace(config, shape_checked=True), arrivals, service, machine=machine, warm_up=_WARM_UP, seed=seed
    )
    edges = () if plan.free else plan.edges
    return Way(
        padding="buckets" if edges else "none",
        edges=edges,
        padding_share=plan.padding_waste,
        prediction=prediction,
    )


def _merged(arrivals: Arrivals, service: ServiceModel, config: BatcherConfig, machine: Machine, seed: int) -> Way:
    """Any requests share a batch, which takes as long as its longest one makes it."""
    together = replace(config, shape_checked=False)
    prediction = simulate(together, arrivals, service, machine=machine, warm_up=_WARM_UP, seed=seed)
    share = _merged_share(np.asarray(arrivals.lengths), prediction.stages[0].batch_histogram)
    return Way(padding="merged", edges=(), padding_share=share, prediction=prediction)


def _merged_share(lengths: Integers, histogram: Mapping[int, int]) -> float:
    """The padding in batches of these sizes, of requests that follow each other."""
    real, padded, begin = 0, 0, 0
    for rows, count in histogram.items():
        end = begin + rows * count
        batches = lengths[np.arange(begin, end) % len(lengths)].reshape(count, rows)
        real, padded, begin = real + int(batches.sum()), padded + rows * int(batches.max(axis=1).sum()), end
    return 1 - real / padded


def _models(
    lengths: Sequence[int], arrivals: Arrivals, service: ServiceModel, config: BatcherConfig, machine: Machine
) -> list[Way]:
    """Two to four models."""
    plans = plan_buckets(
        Counter(lengths), service, max_batch_size=max(1, config.max_batch_size), max_edges=MOST_MODELS, own_queues=True
    )
    ways = []
    for plan in plans[1:-1]:
        prediction = simulate_lanes(plan.edges, config, arrivals, service, machine=machine, warm_up=_WARM_UP)
        ways.append(Way(padding="models", edges=plan.edges, padding_share=plan.padding_waste, prediction=prediction))
    return ways


def padding_share(lengths: Sequence[int], edges: Sequence[int]) -> float:
    """The part of the computed tokens that is padding when each length is padded to the next edge."""
    return 1 - sum(lengths) / sum(pad(lengths, edges))
