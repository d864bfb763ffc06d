"""Workloads and transports as options of perf_analyzer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perf.load import plan_load, window_ms
from perf.transport import Tls, Transport
from perf.workload import Workload
from tooling.errors import UsageError


def test_a_closed_loop_has_a_thread_for_each_client(tmp_path):
    plan = plan_load(Workload(concurrency=6), 1.0, tmp_path, rows=1)
    assert plan.options == ("--concurrency-range", "6", "--max-threads", "6")
    assert (plan.workers, plan.uneven, plan.planned_ns(3)) == (6, False, None)
    streams = plan_load(Workload(concurrency=6, streams=2), 1.0, tmp_path, rows=4)
    assert streams.options == ("--concurrency-range", "6", "--max-threads", "2", "--async", "--streaming", "-b", "4")


def test_an_even_rate_is_perf_analyzer_s_own(tmp_path):
    plan = plan_load(Workload(request_rate=40), 1.0, tmp_path, rows=1)
    assert plan.options[:4] == ("--request-rate-range", "40.0", "--request-distribution", "constant")
    assert "--async" in plan.options and not plan.uneven
    assert np.diff(plan.planned_ns(4)).tolist() == [25_000_000] * 3


@pytest.mark.parametrize(
    "workload",
    [
        Workload(request_rate=100, distribution="poisson", seed=5),
        Workload(request_rate=100, burst=7),
        Workload(timestamps=(0, 0.01, 0.05, 0.07)),
    ],
)
def test_other_times_go_through_a_file_of_gaps(tmp_path, workload):
    plan = plan_load(workload, 2.0, tmp_path, rows=1)
    file = Path(plan.options[plan.options.index("--request-intervals") + 1])
    gaps_us = np.array([int(line) for line in file.read_text().split()])
    assert gaps_us.sum() > 2_400_000, "enough for the run, so that perf_analyzer does not start again"
    planned = plan.planned_ns(1)
    assert planned is not None and (planned == np.cumsum(gaps_us) * 1000).all()
    assert planned / 1e9 == pytest.approx(workload.times_s(len(gaps_us)), abs=1e-6)
    longer = plan.planned_ns(2 * len(gaps_us))
    assert longer is not None and len(longer) == 2 * len(gaps_us)


def test_a_run_lasts_as_long_as_the_workload_says():
    assert window_ms(Workload(concurrency=1)) is None
    assert window_ms(Workload(concurrency=1, duration_s=3.6)) == 1000
    assert window_ms(Workload(timestamps=(0, 9))) == 5000
    assert window_ms(Workload(timestamps=(0, 900))) == round(60 / 3.6 * 1000)


@pytest.fixture
def pem(tmp_path) -> Path:
    path = tmp_path / "a b.pem"
    path.write_text("")
    return path


def test_each_transport_has_its_options(pem):
    assert Transport().options("h:1") == ("-u", "h:1", "-i", "grpc")
    way = Transport("http", headers=(("Authorization", "Bearer a:b"),), tls=Tls(ca=pem, verify=False))
    assert way.options("https://h:1/") == (
        *("-u", "https://h:1", "-i", "http", "-H", "Authorization:Bearer a:b"),
        *("--ssl-https-ca-certificates-file", str(pem)),
        *("--ssl-https-verify-peer", "0", "--ssl-https-verify-host", "0"),
    )
    way = Transport("grpc", tls=Tls(pem, pem, pem), shared_memory=True, output_bytes=64)
    assert way.options("h:1")[4:] == (
        *("--ssl-grpc-use-ssl", "--ssl-grpc-root-certifications-file", str(pem)),
        *("--ssl-grpc-certificate-chain-file", str(pem), "--ssl-grpc-private-key-file", str(pem)),
        *("--shared-memory", "system", "--output-shared-memory-size", "64"),
    )


@pytest.mark.parametrize(
    "transport",
    [
        Transport(headers=(("a:b", "c"),)),
        Transport(headers=(("", "c"),)),
        Transport(headers=(("a", "b\nc"),)),
        Transport(tls=Tls(ca=Path("/nowhere.pem"))),
        Transport(tls=Tls(verify=False)),
        Transport("http", tls=Tls(certificate=Path(__file__))),
    ],
)
def test_what_perf_analyzer_would_choke_on_is_refused(transport):
    with pytest.raises(UsageError):
        transport.options("h:1")
