"""What a guided search found beyond its choice: how far predictions held, the frontier, the knee, what was left out.
Layer: above guided, pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from perf.capacity import capacity
from perf.curve import Setting
from perf.grid import Candidate
from perf.guided import Guided
from perf.sweep import Expected, Sweep
from perf.workload import Workload
from tooling.config.knobs import Knobs

SHARES = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
"""Loads that the latency–throughput lines go through, as shares of the load asked."""
FIXED_WAIT_US = 50_000
"""How long a server that only sends whole batches waits for one, at most."""
NOT_EXPLORED = (
    "precisions, backends and parameters of the model that were not given with --also",
    "a model for each length bucket",
    "response cache, priorities, queue policies and the rate limiter: they stay as configured",
)


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything as plain JSON values, as it is stored and shown. Figures are predictions unless they say measured.

    `curve` has a row for each setting measured, `checks` one for each prediction that was measured, `frontier` the
    settings that no other beats in both throughput and p99, `cloud` what the others reach, `lines` the figures of a few
    settings over several loads, `baselines` what is not tuned, `buckets` what padding would give, `not_explored` what
    was not looked at, `capacity` what the chosen setting carries (perf.capacity).
    """

    simulated: int
    refits: int
    curve: list[dict[str, Any]]
    checks: list[dict[str, Any]]
    frontier: list[dict[str, Any]]
    cloud: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    baselines: list[dict[str, Any]]
    buckets: list[dict[str, Any]]
    knee: dict[str, Any]
    lengths: dict[str, int]
    not_explored: list[str]
    capacity: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user wants to know beside the choice: replicas for a rate, cost at a price a server and hour."""

    rate_rps: float | None = None
    price_per_hour: float | None = None


def findings(found: Guided, chosen: Candidate, wanted: Wanted | None = None) -> Findings:
    """What the simulator says around the chosen setting, with the curve as last corrected."""
    sweep, checks, refits = found.sweep, found.checks, found.refits
    wanted = wanted or Wanted()
    baselines = tuple(_baselines(sweep))
    shown = {one["name"]: candidate for candidate, one in baselines}
    if chosen.changed:
        shown = {"chosen": chosen, **shown}
    lengths = sweep.lengths
    return Findings(
        simulated=len(sweep.expected) + 1,
        refits=refits,
        curve=[_curve_row(sweep, setting) for setting in sweep.curve.settings],
        checks=[check.to_dict() for check in checks],
        frontier=[one.to_dict() for one in sweep.frontier()],
        cloud=_cloud(sweep),
        lines=[{"name": name, "points": _line(sweep, one)} for name, one in shown.items()],
        baselines=[row for _, row in baselines],
        buckets=[one.to_dict() for one in _buckets(sweep)],
        knee=knee(sweep, chosen.knobs),
        lengths={str(length): lengths.count(length) for length in sorted(set(lengths))},
        not_explored=list(_not_explored(sweep)),
        capacity=capacity(sweep, chosen, wanted.rate_rps, wanted.price_per_hour),
    )


def knee(sweep: Sweep, knobs: Knobs) -> dict[str, Any]:
    """The batch at which one more request costs more latency than it gains throughput, by the curve's typical length.

    With t(n) the time of n rows, throughput grows by the factor (n+1)/n · t(n)/t(n+1) and latency by t(n+1)/t(n); the
    knee is the first n for which the second is larger.
    """
    most = max(knobs.max_batch_size, 1)
    lengths = sorted(sweep.lengths)
    service, _ = sweep.service(sweep.setting(knobs))
    times = service.table_ns([lengths[len(lengths) // 2]], most + 1)[0]
    rows = next(
        (n for n in range(1, most + 1) if times[n + 1] / times[n] > (n + 1) / n * times[n] / times[n + 1]),
        most,
    )
    return {
        "rows": rows,
        "length": int(lengths[len(lengths) // 2]),
        "within_max_batch_size": rows < most,
        "ms": [round(int(time) / 1e6, 3) for time in times[1:]],
    }


def _cloud(sweep: Sweep) -> list[dict[str, Any]]:
    """Throughput and p99 of the settings simulated, those that come out alike once."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for one in sweep.expected:
        rate, p99_us = one.prediction.throughput_rps, one.prediction.p99_us
        if p99_us and not one.saturated:
            row = {"label": one.candidate.label, "throughput_rps": rate, "p99_us": p99_us}
            found.setdefault((round(50 * math.log(rate)), round(50 * math.log(p99_us))), row)
    return list(found.values())


def _curve_row(sweep: Sweep, setting: Setting) -> dict[str, Any]:
    series = sweep.curve.of(setting)
    return {
        "setting": str(setting),
        "points": [{"rows": rows, "length": length, "ms": ms} for (rows, length), ms in series.points.items()],
        "off": series.fit.worst,
        "slowdown": list(series.slowdown),
        "corrected": sweep.factors.get(setting, sweep.common),
    }


def _baselines(sweep: Sweep) -> Iterator[tuple[Candidate, dict[str, Any]]]:
    """What people start from: the config as it is, Triton's own defaults, no batching, whole batches only."""
    size = sweep.base.max_batch_size
    plain = Knobs(max_batch_size=size, dynamic_batching=size > 0, instance_kind=sweep.base.instance_kind)
    known = {"current config": sweep.base}
    if plain != sweep.base:
        known["Triton's defaults"] = plain
    if size > 1:
        known["no batching"] = replace(
            sweep.base, dynamic_batching=False, preferred_batch_size=(), max_queue_delay_us=0
        )
        known[f"only batches of {size}"] = replace(
            sweep.base, dynamic_batching=True, preferred_batch_size=(size,), max_queue_delay_us=FIXED_WAIT_US
        )
    for name, knobs in known.items():
        if sweep.setting(knobs) in sweep.curve.settings:
            one = Candidate(name, knobs)
            yield one, {"name": name, **sweep.play(one).to_dict()}


def _line(sweep: Sweep, one: Candidate) -> list[dict[str, Any]]:
    """Throughput and p99 of one setting as the load grows, until it falls behind."""
    points = []
    for workload in dict.fromkeys(_loads(sweep.workload)):
        found = sweep.play(one, workload)
        if found.saturated:
            break
        p = found.prediction
        points.append({"load": str(workload), "throughput_rps": p.throughput_rps, "p99_us": p.p99_us})
    return points


def _loads(workload: Workload) -> Iterator[Workload]:
    for share in SHARES:
        if workload.concurrency is not None:
            yield workload.model_copy(update={"concurrency": max(1, round(workload.concurrency * share))})
        elif workload.request_rate is not None:
            yield workload.model_copy(update={"request_rate": workload.request_rate * share})
        else:
            yield workload


def _buckets(sweep: Sweep) -> Iterable[Expected]:
    """The best setting for each choice of lengths to pad to, and the best without."""
    best: dict[tuple[int, ...], Expected] = {}
    for one in sweep.expected:
        edges = one.candidate.edges
        if edges not in best or sweep.merit(one) > sweep.merit(best[edges]):
            best[edges] = one
    return (best[edges] for edges in sorted(best, key=lambda e: len(e) or math.inf))


def _not_explored(sweep: Sweep) -> Iterator[str]:
    knobs = [one.knobs for one in sweep.tries] + [sweep.base]
    sizes = sorted({k.max_batch_size for k in knobs})
    delays = [k.max_queue_delay_us / 1000 for k in knobs]
    measured = max(rows for setting in sweep.curve.settings for rows, _ in sweep.curve.of(setting).points)
    yield f"batches above {sizes[-1]} rows, delays above {max(delays):g} ms"
    if sizes[-1] > measured:
        yield f"executions of more than {measured} rows were not measured: predictions go on in a straight line"
    splits, every_core = sorted({sweep.setting(k) for k in knobs}), "every core"
    yield f"other instances × threads than {', '.join(f'{i}×{t or every_core}' for i, t in splits)}"
    yield from NOT_EXPLORED
