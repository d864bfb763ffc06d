"""The simulator against queueing theory, at fixed seeds: confidence intervals from independent replications."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perf.sim import Arrivals, BatcherConfig, ServiceModel, Stage, Trace, run

REPLICATIONS = 12
REQUESTS = 60_000
WARM_UP = 10_000
# Student's t for 11 degrees of freedom and 99.9 %: with fixed seeds a test either always passes or always fails.
T = 4.437
SERVICE_MS = 1.0
EXPONENTIAL = tuple(-np.log1p(-(np.arange(20_000) + 0.5) / 20_000))


def traces(rate_rps: float, instances: int, spread: tuple[float, ...]) -> list[Trace]:
    service = ServiceModel.linear(SERVICE_MS, spread=spread)
    config = BatcherConfig(1, instance_count=instances)
    return [
        run([Stage(config, service)], Arrivals.poisson(rate_rps, REQUESTS, seed=seed), seed=1_000 + seed, compiled=True)
        for seed in range(REPLICATIONS)
    ]


def interval(values: list[float]) -> tuple[float, float]:
    half = T * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def waits_ms(runs: list[Trace]) -> tuple[float, float]:
    low, high = interval([float(trace.waited_ns[WARM_UP:].mean()) / 1e6 for trace in runs])
    assert high - low < 0.25 * (high + low) / 2  # narrow enough to tell
    return low, high


def erlang_c(servers: int, load: float) -> float:
    """The chance to wait in M/M/c with an offered load in erlangs."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_m_m_1(load: float) -> None:
    low, high = waits_ms(traces(load * 1_000, 1, EXPONENTIAL))
    assert low <= load / (1 - load) * SERVICE_MS <= high


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_m_d_1(load: float) -> None:
    low, high = waits_ms(traces(load * 1_000, 1, ()))
    assert low <= load / (2 * (1 - load)) * SERVICE_MS <= high


@pytest.mark.parametrize("servers", [2, 4])
def test_m_m_c(servers: int) -> None:
    load = 0.8 * servers
    low, high = waits_ms(traces(load * 1_000, servers, EXPONENTIAL))
    assert low <= erlang_c(servers, load) / (servers - load) * SERVICE_MS <= high


def test_m_m_1_latency_is_exponential() -> None:
    latency = np.concatenate([trace.latency_ns[WARM_UP:] for trace in traces(500, 1, EXPONENTIAL)]) / 1e6
    mean = SERVICE_MS / (1 - 0.5)
    for percent in (50, 90, 99):
        assert np.percentile(latency, percent) == pytest.approx(-mean * math.log(1 - percent / 100), rel=0.04)


def test_littles_law_with_batches() -> None:
    """Requests in the system, counted at random moments, are rate × time in the system."""
    apart = []
    config = BatcherConfig(8, max_queue_delay_us=2_000, instance_count=2)
    for seed in range(REPLICATIONS):
        arrivals = Arrivals.poisson(1_000, REQUESTS, seed=seed)
        trace = run([Stage(config, ServiceModel.linear(3.0, 0.5))], arrivals, compiled=True)
        sent, done = trace.sent_ns, np.sort(trace.sent_ns + trace.latency_ns)
        moments = np.random.default_rng(seed).uniform(sent[WARM_UP], sent[-1], 20_000)
        inside = np.searchsorted(sent, moments) - np.searchsorted(done, moments)
        rate = (REQUESTS - WARM_UP) / (sent[-1] - sent[WARM_UP])
        apart.append(float(inside.mean() - rate * trace.latency_ns[WARM_UP:].mean()))
    low, high = interval(apart)
    assert low <= 0 <= high
    assert high - low < 0.1


def test_utilisation_is_the_offered_load() -> None:
    for trace in traces(800, 1, ())[:2]:
        assert trace.predict(warm_up=WARM_UP).stages[0].utilisation == pytest.approx(0.8, rel=0.02)
