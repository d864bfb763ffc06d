"""The description of traffic."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from perf.workload import Workload


def test_a_closed_loop():
    workload = Workload(concurrency=4, lengths=(3, 5))
    assert (workload.mode, workload.level, str(workload)) == ("concurrency", 4, "4 clients")
    assert str(Workload(concurrency=1)) == "1 client"


def test_an_open_loop():
    workload = Workload(request_rate=12.5, distribution="poisson")
    assert (workload.mode, workload.level, str(workload)) == ("request_rate", 12.5, "12.5 requests/s (poisson)")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"concurrency": 1, "request_rate": 2.0},
        {"concurrency": 0},
        {"request_rate": 0.0},
        {"concurrency": 1, "lengths": (3, 0)},
        {"concurrency": 1, "distribution": "bursty"},
        {"concurrency": 1, "lenghts": (3,)},
    ],
)
def test_what_is_no_traffic(fields):
    with pytest.raises(ValidationError):
        Workload(**fields)


def test_it_survives_json():
    workload = Workload(request_rate=3.25, lengths=(9, 4), seed=7)
    assert Workload.model_validate_json(workload.model_dump_json()) == workload
