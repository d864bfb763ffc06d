"""What a setting carries, how many replicas a rate takes, what a million requests cost; the knee."""

from __future__ import annotations

from typing import Any

import pytest

from perf.capacity import HEADROOM, capacity, cost_per_million
from perf.curve import Setting
from perf.findings import knee
from perf.grid import Candidate
from tooling.config.knobs import Knobs

ROW_MS, FIXED_MS = 2.0, 8.0
ONE = Candidate("default", Knobs(max_batch_size=8, instance_count=1))


def test_without_a_limit_the_rate_keeps_its_distance_from_the_highest(machine: Any) -> None:
    found = capacity(machine(), ONE)
    assert found["highest_requests_per_s"] == pytest.approx(8 / (FIXED_MS + 8 * ROW_MS) * 1e3, rel=0.05)
    assert found["requests_per_s"] == pytest.approx(HEADROOM * found["highest_requests_per_s"])
    assert found["requests_per_s_per_core"] == pytest.approx(found["requests_per_s"] / 2)
    assert found["clients"] is None


def test_the_queue_at_that_rate_grows_with_it(machine: Any) -> None:
    """Requests that may take longer wait longer, and none waits as long as it may take."""
    loose, tight = (capacity(machine(slo), ONE)["queue_us"] for slo in ("p99<90ms", "p99<40ms"))
    assert 0 < tight < loose < 90_000


def test_limits_bound_rate_and_clients_and_tighter_ones_bound_them_more(machine: Any) -> None:
    loose, tight = (capacity(machine(slo), ONE) for slo in ("p99<60ms", "p99<30ms"))
    assert 0 < tight["requests_per_s"] < loose["requests_per_s"] <= loose["highest_requests_per_s"] / 0.97
    assert 1 <= tight["clients"] < loose["clients"]
    assert tight["limits"] == ["p99<30ms"]


def test_a_limit_below_one_execution_carries_nothing(machine: Any) -> None:
    found = capacity(machine("p99<1ms"), ONE, wanted_rps=10, per_hour=1)
    assert found["requests_per_s"] < 3
    assert found["clients"] == 0


def test_replicas_and_cost_follow_from_the_rate(machine: Any) -> None:
    found = capacity(machine(), ONE, wanted_rps=1_000, per_hour=0.9)
    rate = found["requests_per_s"]
    assert found["replicas"] == -(-1_000 // rate)
    assert found["cost_per_million"] == pytest.approx(0.9 / 3600 / rate * 1e6)
    assert cost_per_million(100, 0.36) == pytest.approx(1.0)
    assert cost_per_million(0, 1) is None


@pytest.mark.parametrize(("fixed_ms", "row_ms", "rows"), [(0.001, 5, 1), (8, 2, 4), (30, 1, 8), (100, 0.01, 8)])
def test_the_knee_is_where_one_more_row_costs_more_than_it_gains(
    machine: Any, fixed_ms: float, row_ms: float, rows: int
) -> None:
    """For t = a + c·n, gains and costs balance at n ≈ a / c: (n+1)/n = (t(n+1)/t(n))²."""
    found = knee(machine(fixed_ms=fixed_ms, row_ms=row_ms), ONE.knobs)
    assert found["rows"] == pytest.approx(rows, abs=1)
    assert found["within_max_batch_size"] == (rows < 8)
    assert len(found["ms"]) == 9


def test_the_setting_is_that_of_the_config(machine: Any) -> None:
    assert machine().setting(ONE.knobs) == Setting(1, 2)
