"""The real perf_analyzer against the real server: one point of each kind, and every way a run can fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf.analyzer import PerfAnalyzer, find_perf_analyzer
from perf.input_data import write_input_data
from perf.lengths import sentence_lengths
from perf.measurement import Measurement
from perf.transport import Transport
from perf.workload import Workload
from tooling.server import EmbeddedServer
from tooling.signature.onnx_file import read_onnx

pytestmark = pytest.mark.live


class Bench:
    """A running server with `minilm`, the perf_analyzer, and a place for files."""

    def __init__(self, server: EmbeddedServer, repository: Path, analyzer: PerfAnalyzer, root: Path) -> None:
        self.server, self.analyzer, self.root = server, analyzer, root
        self.signature = read_onnx(repository / "minilm" / "1" / "model.onnx")
        self.tokenizer = repository / "minilm" / "tokenizer"
        self.lengths = sentence_lengths(self.tokenizer)
        self._points = 0

    def requests(self, workload: Workload) -> Path:
        return write_input_data(self.root / "requests.json", self.signature, workload, self.tokenizer).path

    def measure(self, requests: Path | None = None, model: str = "minilm", url: str = "", **options) -> Measurement:
        load = {key: options.pop(key) for key in ("concurrency", "request_rate", "distribution") if key in options}
        workload = Workload(lengths=self.lengths, **load)
        self._points += 1
        return self.analyzer.measure(
            model,
            url or self.server.grpc_url,
            workload,
            requests or self.requests(workload),
            raw_dir=self.root / f"point {self._points}",
            server_pid=self.server.pid,
            **options,
        )

    def one_request(self, *ids: int) -> Path:
        tensors = {"input_ids": list(ids), "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids)}
        step = {name: {"content": content, "shape": [len(ids)]} for name, content in tensors.items()}
        path = self.root / "one.json"
        path.write_text(json.dumps({"data": [step]}))
        return path


@pytest.fixture(scope="module")
def analyzer(runtime) -> PerfAnalyzer:
    return find_perf_analyzer(runtime)


@pytest.fixture(scope="module")
def bench(minilm_repository, runtime, analyzer, tmp_path_factory) -> Iterator[Bench]:
    with EmbeddedServer(minilm_repository, runtime) as server:
        server.load("minilm")
        made = Bench(server, minilm_repository, analyzer, tmp_path_factory.mktemp("bench"))
        made.measure(concurrency=1)
        yield made


def test_a_closed_loop_obeys_little_s_law(bench):
    point = bench.measure(concurrency=4)
    assert point.status == "ok", point.message
    in_flight = point.throughput_rps * point.avg_us / 1e6
    assert in_flight == pytest.approx(4, rel=0.1 + in_flight / point.requests)
    assert point.p50_us <= point.p90_us <= point.p95_us <= point.p99_us
    assert len(point.windows_rps) == 3
    assert 1 <= point.mean_batch <= 4
    assert point.compute_infer_us > 0
    assert 0 <= point.foreign_cores <= len(os.sched_getaffinity(0))


def test_the_files_of_a_point_are_kept_and_a_second_run_replaces_them(bench):
    raw = bench.root / "kept"
    measure = bench.analyzer.measure
    requests, load = bench.one_request(101, 102), Workload(concurrency=1)
    first, second = (
        measure(model, bench.server.grpc_url, load, requests, raw_dir=raw, window_ms=100)
        for model in ("minilm", "nosuch")
    )
    assert (first.status, second.status) == ("ok", "model_unknown")
    assert {file.name for file in raw.iterdir()} == {"stdout.txt", "stderr.txt", "meta.json"}
    assert Measurement.from_dict(json.loads((raw / "meta.json").read_text())) == second


def test_over_http(bench):
    point = bench.measure(concurrency=2, url=bench.server.http_url, transport=Transport("http"), window_ms=200)
    assert point.status == "ok", point.message


@pytest.fixture(scope="module")
def easy_rps(bench) -> float:
    """A rate far below what the server can do here, whatever else this machine does."""
    return max(1.0, round(bench.measure(concurrency=2).throughput_rps / 8, 1))


def test_an_open_loop_below_capacity(bench, easy_rps):
    point = bench.measure(request_rate=easy_rps, window_ms=1_500)
    assert point.status == "ok", point.message
    assert point.throughput_rps == pytest.approx(easy_rps, rel=0.2)
    assert point.load == {"mode": "request_rate", "value": easy_rps}


def test_random_times_are_those_of_the_seed(bench, easy_rps):
    point = bench.measure(request_rate=easy_rps, distribution="poisson", window_ms=1_500)
    assert point.status == "ok", point.message
    gaps_us = [int(line) for line in Path(point.raw_dir, "intervals.txt").read_text().split()]
    planned = Workload(request_rate=easy_rps, distribution="poisson").times_s(len(gaps_us))
    assert sum(gaps_us[:10]) == pytest.approx(1e6 * planned[9], abs=1)
    assert point.planned_p99_us >= point.p99_us - 1


@pytest.mark.long
def test_an_open_loop_above_capacity(bench):
    point = bench.measure(request_rate=300.0, window_ms=500)  # one request of a slow host has to fit
    assert point.status == "saturated"
    assert "300 requests/s asked" in point.message


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_no_server_at_the_address(bench, protocol):
    point = bench.measure(concurrency=1, url="127.0.0.1:1", transport=Transport(protocol))
    assert point.status == "unreachable"
    assert "minilm at 127.0.0.1:1: no server answers: " in point.message


def test_the_port_of_the_other_protocol(bench):
    assert bench.measure(concurrency=1, url=bench.server.http_url, transport=Transport("grpc")).status == "unreachable"
    assert bench.measure(concurrency=1, url=bench.server.grpc_url, transport=Transport("http")).status == "unreachable"


def test_a_model_that_is_not_served(bench):
    point = bench.measure(concurrency=1, model="nosuch")
    assert point.status == "model_unknown"
    assert "'nosuch' is not found" in point.message


@pytest.mark.long
@pytest.mark.parametrize("load", [{"concurrency": 8}, {"request_rate": 20.0}])
def test_ids_outside_the_vocabulary_give_the_server_s_own_words(bench, load):
    point = bench.measure(bench.one_request(101, 99999, 102), **load)
    assert point.status == "request_failed"
    assert "idx=99999 must be within the inclusive range [-30522,30521]" in point.message
    assert "vocabulary" in point.hint
    assert bench.server.alive()


def test_input_data_of_the_wrong_shape(bench):
    requests = bench.one_request(101, 102)
    requests.write_text(requests.read_text().replace("[2]", "[1,2]"))
    point = bench.measure(requests, concurrency=1)
    assert point.status == "bad_input"
    assert "supplied shape of [1,2]" in point.message


@pytest.mark.long
def test_input_data_that_kills_perf_analyzer(bench):
    requests = bench.root / "deadly.json"
    requests.write_text('{"data": [1]}')
    point = bench.measure(requests, concurrency=1)
    assert (point.status, "SIGSEGV" in point.message) == ("crashed", True)


def test_a_window_shorter_than_the_latency(bench):
    assert bench.measure(concurrency=1, window_ms=1).status == "no_samples"


def test_a_perf_analyzer_that_went_away(bench):
    lost = PerfAnalyzer(("/no/such/perf_analyzer",), bench.analyzer.env, "2.51.0", "PATH")
    load = Workload(concurrency=1)
    point = lost.measure("minilm", bench.server.grpc_url, load, bench.root / "none.json", raw_dir=bench.root / "lost")
    assert (point.status, "cannot be started" in point.message) == ("missing", True)


@pytest.mark.long
def test_a_server_that_stops_answering(bench):
    stop = threading.Timer(0.5, os.kill, (bench.server.pid, signal.SIGSTOP))
    stop.start()
    try:
        point = bench.measure(concurrency=2, deadline_s=2)
    finally:
        os.kill(bench.server.pid, signal.SIGCONT)
    assert point.status == "hung"
    assert 2 <= point.wall_s < 10
    assert "within 2 s" in point.message


SCRIPT = """
import sys
from pathlib import Path
from perf.analyzer import find_perf_analyzer
from perf.workload import Workload
from tooling.runtime import find_runtime
url, requests, raw = sys.argv[1:]
find_perf_analyzer(find_runtime()).measure(
    "minilm", url, Workload(concurrency=1), Path(requests), raw_dir=Path(raw), window_ms=10_000
)
"""


def test_ctrl_c_leaves_no_perf_analyzer(bench):
    raw = bench.root / "interrupted"
    command = [sys.executable, "-c", SCRIPT, bench.server.grpc_url, str(bench.one_request(101, 102)), str(raw)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        for _ in range(100):
            if (raw / "stdout.txt").is_file() and "Request concurrency" in (raw / "stdout.txt").read_text():
                break
            time.sleep(0.1)
        else:
            pytest.fail("the measurement did not start")
        [child] = children(program.pid)
        program.send_signal(signal.SIGINT)
        _, stderr = program.communicate(timeout=10)
    assert "KeyboardInterrupt" in stderr
    assert not Path(f"/proc/{child}").exists()


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
def test_a_server_that_dies_meanwhile(minilm_repository, runtime, analyzer, tmp_path):
    with EmbeddedServer(minilm_repository, runtime) as server:
        server.load("minilm")
        bench = Bench(server, minilm_repository, analyzer, tmp_path)
        threading.Timer(0.5, os.kill, (server.pid, signal.SIGKILL)).start()
        point = bench.measure(concurrency=1)
    assert point.status == "unreachable"
    assert "the server went away" in point.message
