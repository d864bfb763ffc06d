"""How much traffic a setting carries within its limits, how many replicas a rate takes, and what it costs. Layer: above
sweep, pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perf.grid import Candidate
from perf.slo import METRICS, Slo
from perf.sweep import BEHIND, Expected, Sweep
from perf.workload import Workload

HEADROOM = 0.8
"""Without a latency limit a server is planned to be this busy: at its limit every queue grows without end."""
_STEPS = 8
_MOST_CLIENTS = 1024


def capacity(
    sweep: Sweep, one: Candidate, wanted_rps: float | None = None, per_hour: float | None = None
) -> dict[str, Any]:
    """What one server carries with this setting, predicted: requests a second that arrive at random, and how long one
    then waits in the queue on average; clients that each wait for their answer; and from that replicas for `wanted_rps`
    and the cost of a million requests at a price of `per_hour` for a server.

    Limits are those on latency; without one the rate is 80 % of the highest that is answered, and clients are not
    limited.
    """
    limits = Slo(tuple(term for term in sweep.slo.terms if METRICS[term.metric].kind == "duration"))
    limited = replace(sweep, slo=limits)
    top = limited.play(one, _clients(sweep.workload, _busy(sweep, one))).prediction.throughput_rps

    def carries(rate: float) -> bool:
        return _kept(limited, limited.play(one, _rate(sweep.workload, rate)))

    rate = _bisected(carries, top) if limits.terms else HEADROOM * top
    return {
        "requests_per_s": rate,
        "highest_requests_per_s": top,
        "requests_per_s_per_core": rate / sweep.cores,
        "queue_us": limited.play(one, _rate(sweep.workload, rate)).prediction.queue_us if rate else None,
        "clients": _most_clients(limited, one) if limits.terms else None,
        "limits": [str(term) for term in limits.terms],
        "wanted_requests_per_s": wanted_rps,
        "replicas": math.ceil(wanted_rps / rate) if wanted_rps and rate else None,
        "price_per_hour": per_hour,
        "cost_per_million": cost_per_million(rate, per_hour) if per_hour else None,
    }


def cost_per_million(rate_rps: float, per_hour: float) -> float | None:
    """What a million requests cost on a server that answers `rate_rps`; None when it answers nothing."""
    return per_hour / (rate_rps * 3600) * 1e6 if rate_rps > 0 else None


def _kept(sweep: Sweep, found: Expected) -> bool:
    return not found.saturated and sweep.slo.met(found.prediction) is True


def _bisected(carries: Callable[[float], bool], top: float) -> float:
    """The highest rate that is carried, within 1 %; 0 when not even a hundredth of the highest is."""
    low, high = 0.0, top / BEHIND
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if carries(middle) else (low, middle)
    return low


def _most_clients(sweep: Sweep, one: Candidate) -> int:
    """The largest number of clients whose latency stays within the limits; latency grows with their number."""
    high = 1
    while high <= _MOST_CLIENTS and _kept(sweep, sweep.play(one, _clients(sweep.workload, high))):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if _kept(sweep, sweep.play(one, _clients(sweep.workload, middle))):
            low = middle
        else:
            high = middle
    return low


def _busy(sweep: Sweep, one: Candidate) -> int:
    """Clients enough to keep every instance busy with full batches."""
    setting = sweep.setting(one.knobs)
    return min(
        _MOST_CLIENTS, max(2 * setting.instances * max(one.knobs.max_batch_size, 1), sweep.workload.concurrency or 1)
    )


def _clients(workload: Workload, count: int) -> Workload:
    return Workload(concurrency=count, lengths=workload.lengths, seed=workload.seed)


def _rate(workload: Workload, rate: float) -> Workload:
    return Workload(request_rate=max(rate, 1e-3), distribution="poisson", lengths=workload.lengths, seed=workload.seed)
