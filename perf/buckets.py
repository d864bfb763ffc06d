"""Length buckets: the edges that requests are padded to, chosen exactly, judged by simulation. Layer: above sim, pure.

Triton batches only requests of equal shape, in the order of arrival. Padding to few edges makes shapes equal and costs
computation; many edges pad less and break more batches. Which wins depends on how the service time grows with rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perf.sim import Arrivals, BatcherConfig, Machine, Prediction, ServiceModel, simulate
from perf.sim.engine import IDEAL
from tooling.errors import UsageError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_Batches = Callable[[Floats, int], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPlan:
    """One choice of edges and what to expect of it when the queue is never empty.

    `edges` are the lengths after padding, ascending; `free` marks the plan that pads nothing. `padding_waste` is the
    share of computed tokens that are padding, `batchability` the chance that a request has the shape of the one before
    it, `mean_batch` the rows of a batch, `throughput_rps` that of all instances together.
    """

    edges: tuple[int, ...]
    free: bool
    padding_waste: float
    batchability: float
    mean_batch: float
    throughput_rps: float


def plan_buckets(
    histogram: Mapping[int, int],
    service: ServiceModel,
    *,
    max_batch_size: int,
    instances: int = 1,
    max_edges: int = 8,
    own_queues: bool = False,
) -> tuple[BucketPlan, ...]:
    """The best edges for each number of edges from 1 to `max_edges`, and free lengths as the last plan.

    `histogram` is {length: requests}; requests are taken to be independent draws from it. Edges are lengths that
    occur, and the largest is always one. Exact: dynamic programming over the edges, with the expected cost of each
    bucket in closed form. With `own_queues` each bucket is a model of its own, whose batches no other length breaks.
    Raises UsageError for an empty histogram or sizes below 1.
    """
    counts = {length: count for length, count in sorted(histogram.items()) if count > 0}
    if not counts or min(counts) < 1 or min(max_batch_size, instances, max_edges) < 1:
        raise UsageError(
            "no buckets can be planned",
            where="buckets",
            got=f"{len(counts)} lengths, max_batch_size {max_batch_size}, {instances} instances, {max_edges} edges",
            expected="lengths of at least 1 with requests, and numbers of at least 1",
        )
    lengths = np.fromiter(counts, dtype=np.int64)
    share = np.fromiter(counts.values(), dtype=float) / sum(counts.values())
    slowdown = service.slowdown[min(instances, len(service.slowdown)) - 1] if service.slowdown else 1.0
    times = service.table_ns(lengths.tolist(), max_batch_size) * slowdown / instances / 1e9
    batches = _whole_batches if own_queues else _batches
    cost = _bucket_costs(share, times, batches)
    chosen = [*_best_edges(cost, min(max_edges, len(lengths) - 1)), tuple(range(len(lengths)))]
    return tuple(_plan(edges, lengths, share, times, batches) for edges in chosen)


def pad(lengths: Sequence[int] | Integers, edges: Sequence[int]) -> list[int]:
    """Each length padded to the next edge. Raises UsageError for a length above the last edge."""
    if len(lengths) and max(lengths) > edges[-1]:
        raise UsageError(
            "a length is above the last edge", where="buckets", got=max(lengths), expected=f"≤ {edges[-1]}"
        )
    places = np.searchsorted(np.asarray(edges), np.asarray(lengths))
    return [int(edge) for edge in np.asarray(edges)[places]]


def judge(
    plan: BucketPlan,
    config: BatcherConfig,
    arrivals: Arrivals,
    service: ServiceModel,
    *,
    machine: Machine = IDEAL,
    warm_up: int = 0,
    seed: int = 0,
) -> Prediction:
    """What the clients would see with their requests padded to the plan's edges."""
    padded = arrivals.with_lengths(pad(arrivals.lengths, plan.edges))
    return simulate(config, padded, service, machine=machine, warm_up=warm_up, seed=seed)


def _bucket_costs(share: Floats, times: Floats, batches: _Batches) -> Floats:
    """[first, last]: expected seconds a request of the stream, for a bucket of the lengths first to last.

    `times[edge, rows]`. In a full queue a bucket's batches are its runs of requests, cut at the largest batch. A run
    begins with chance p(1−p) at a request and has r requests with chance p^(r−1)(1−p).
    """
    count = len(share)
    below = np.concatenate([[0.0], np.cumsum(share)])
    cost = np.full((count, count), np.inf)
    for last in range(count):
        p = np.minimum(below[last + 1] - below[: last + 1], 1.0)
        cost[: last + 1, last] = batches(p, times.shape[1] - 1) @ times[last, 1:]
    return cost


def _batches(p: Floats, most: int) -> Floats:
    """[share, rows − 1]: batches of this many rows a request of the stream, for buckets with these shares."""
    p = p[:, None]
    whole = p >= 1 - 1e-12
    p = np.where(whole, 0.5, p)  # any number below 1: the row is replaced below
    rows = np.arange(1, most + 1)
    runs = p * (1 - p) / (1 - p**most)
    batches = np.where(rows < most, runs * (1 - p) * p ** (rows - 1.0), runs * p ** (most - 1.0))
    return np.where(whole, np.where(rows == most, 1 / most, 0.0), batches)


def _whole_batches(p: Floats, most: int) -> Floats:
    """The same where every bucket has a queue of its own, which is never empty: nothing but largest batches."""
    return np.where(np.arange(1, most + 1) == most, p[:, None] / most, 0.0)


def _best_edges(cost: Floats, most: int) -> list[tuple[int, ...]]:
    """For each number of edges up to `most`, the edges (as places of lengths) of the least total cost."""
    count = len(cost)
    best = cost[0].copy()  # of the lengths up to a place, in one bucket
    before: list[Integers] = []
    found = []
    for number in range(1, most + 1):
        edges = [count - 1]
        for choice in reversed(before):
            edges.append(int(choice[edges[-1]]))
        found.append(tuple(reversed(edges)))
        if number < most:
            options = np.full((count, count), np.inf)  # [place of the edge before, place of the last edge]
            options[:-1] = best[:-1, None] + cost[1:]
            before.append(options.argmin(axis=0))
            best = options.min(axis=0)
    return found


def _plan(places: tuple[int, ...], lengths: Integers, share: Floats, times: Floats, batches_of: _Batches) -> BucketPlan:
    edges = lengths[list(places)]
    owner = np.searchsorted(edges, lengths)
    p = np.bincount(owner, weights=share, minlength=len(edges)).astype(float)
    batches = batches_of(p, times.shape[1] - 1)
    seconds = float((batches * times[list(places), 1:]).sum())
    return BucketPlan(
        edges=tuple(edges.tolist()),
        free=len(places) == len(lengths),
        padding_waste=1 - float((share * lengths).sum() / (share * edges[owner]).sum()),
        batchability=float((p**2).sum()),
        mean_batch=1 / float(batches.sum()),
        throughput_rps=1 / seconds,
    )
