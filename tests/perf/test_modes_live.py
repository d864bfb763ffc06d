"""Every load mode and transport with the real perf_analyzer: what was asked is what the server got."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf.analyzer import PerfAnalyzer, find_perf_analyzer
from perf.input_data import write_input_data
from perf.measurement import Measurement
from perf.profile_export import read_requests
from perf.transport import Tls, Transport
from perf.workload import Workload
from tooling.server import EmbeddedServer
from tooling.signature.spec import ModelSignature, TensorSpec

pytestmark = pytest.mark.live

ECHO = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.003)
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor)]) for tensor in tensors]
"""
STREAM = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, x = request.get_response_sender(), pb_utils.get_input_tensor_by_name(request, "x")
            for _ in range(4):
                time.sleep(0.004)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """
backend: "python" max_batch_size: {most}
input [ {{ name: "x" data_type: TYPE_{kind} dims: [ {dims} ] }} ]
output [ {{ name: "y" data_type: TYPE_{kind} dims: [ {dims} ] }} ]
{more}
"""
MODELS = {
    "echo": (ECHO, CONFIG.format(most=8, kind="INT64", dims=-1, more="dynamic_batching { }")),
    "stream": (
        STREAM,
        CONFIG.format(most=0, kind="INT64", dims=1, more="model_transaction_policy { decoupled: true }"),
    ),
    "rows": (ECHO, CONFIG.format(most=0, kind="INT64", dims="-1, -1", more="")),
    "text": (ECHO, CONFIG.format(most=8, kind="STRING", dims=1, more="")),
    "half": (ECHO, CONFIG.format(most=8, kind="FP16", dims=-1, more="")),
    "flags": (ECHO, CONFIG.format(most=8, kind="BOOL", dims=-1, more="")),
    "narrow": (
        ECHO.replace("0.003", "0.1"),
        CONFIG.format(
            most=1, kind="INT64", dims=1, more="dynamic_batching { default_queue_policy { max_queue_size: 2 } }"
        ),
    ),
}
SPECS = {
    "echo": TensorSpec("x", "TYPE_INT64", (-1, -1)),
    "stream": TensorSpec("x", "TYPE_INT64", (1,)),
    "rows": TensorSpec("x", "TYPE_INT64", (-1, -1)),
    "text": TensorSpec("x", "TYPE_STRING", (-1, 1)),
    "half": TensorSpec("x", "TYPE_FP16", (-1, -1)),
    "flags": TensorSpec("x", "TYPE_BOOL", (-1, -1)),
    "narrow": TensorSpec("x", "TYPE_INT64", (-1, 1)),
}
WITHOUT_BATCHING = ("stream", "rows")


class Bench:
    def __init__(self, server: EmbeddedServer, analyzer: PerfAnalyzer, root: Path) -> None:
        self.server, self.analyzer, self.root = server, analyzer, root

    def measure(
        self,
        workload: Workload,
        model: str = "echo",
        *,
        transport: Transport | None = None,
        url: str = "",
        window_ms: int | None = 200,
    ) -> Measurement:
        """One point; windows that a busy host leaves empty are made longer."""
        for _ in range(2):
            point = self._measure(workload, model, transport, url, window_ms)
            if point.status != "no_samples" or window_ms is None:
                return point
            window_ms *= 6
        return point

    def _measure(
        self, workload: Workload, model: str, transport: Transport | None, url: str, window_ms: int | None
    ) -> Measurement:
        transport, batching = transport or Transport(), model not in WITHOUT_BATCHING
        signature = ModelSignature(Path("model.py"), "python", (SPECS[model],), ())
        data = write_input_data(self.root / "in.json", signature, workload, batching=batching, vocab_size=1000)
        own = self.server.http_url if transport.protocol == "http" else self.server.grpc_url
        return self.analyzer.measure(
            model,
            url or own,
            workload,
            data.path,
            raw_dir=self.root / "raw",
            window_ms=window_ms,
            transport=transport,
            batching=batching,
            server_pid=self.server.pid,
            statistics=lambda: self.server.stats(model),
            metrics=self.server.metrics,
        )

    def sent_ms(self) -> list[float]:
        """When each request of the last run left, from the first."""
        sent = read_requests(self.root / "raw" / "requests.csv").sent_ns
        return list((sent - sent[0]) / 1e6)


@pytest.fixture(scope="module")
def bench(runtime, tmp_path_factory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("modes")
    for name, (code, config) in MODELS.items():
        (root / "repository" / name / "1").mkdir(parents=True)
        (root / "repository" / name / "1" / "model.py").write_text(code)
        (root / "repository" / name / "config.pbtxt").write_text(config)
    with EmbeddedServer(root / "repository", runtime) as server:
        for name in MODELS:
            server.load(name)
        yield Bench(server, find_perf_analyzer(runtime), root)


def ok(point: Measurement) -> Measurement:
    assert point.status == "ok", point.message
    assert not any("elements were" in warning for warning in point.warnings), "the declared mix was sent"
    assert point.failed == 0 and sum(point.batch_histogram.values()) > 0
    assert point.server_us is not None and point.queue_us is not None
    return point


@pytest.mark.long
@pytest.mark.parametrize("transport", [Transport("grpc"), Transport("http", headers=(("traceparent", "00-a-b-01"),))])
@pytest.mark.parametrize("shared", [False, True])
def test_a_closed_loop_over_each_transport(bench, transport, shared):
    way = Transport(transport.protocol, transport.headers, shared_memory=shared)
    point = ok(bench.measure(Workload(concurrency=3, lengths=(2, 3, 5)), transport=way))
    assert point.throughput_rps is not None and point.planned_p99_us is None


def test_bursts_leave_together(bench):
    point = ok(bench.measure(Workload(request_rate=50, burst=5, lengths=(2,))))
    sent = bench.sent_ms()
    groups = [sent[i : i + 5] for i in range(0, len(sent) - 5, 5)]
    together = sum(group[-1] - group[0] < 25 for group in groups)
    assert together > len(groups) / 2
    assert point.planned_avg_us is not None and point.planned_avg_us >= point.avg_us - 1


def test_a_trace_leaves_at_its_times_with_its_lengths(bench):
    times = (0.0, 0.05, 0.25, 0.3, 0.45, 0.6)
    trace = Workload(timestamps=times, lengths=(2, 9, 2, 9, 9, 2), duration_s=1.4)
    point = ok(bench.measure(trace, window_ms=None))
    planned = trace.times_s(len(bench.sent_ms())) * 1000
    late = [at - plan for at, plan in zip(bench.sent_ms(), planned, strict=True)]
    assert sorted(abs(delay) for delay in late)[len(late) // 2] < 15
    assert point.load["value"] == pytest.approx(trace.level)


def test_streams_of_a_decoupled_model(bench):
    point = ok(bench.measure(Workload(concurrency=2, streams=2), "stream"))
    assert point.responses_per_request == pytest.approx(4, rel=0.01)
    assert point.ttft_p50_us < point.p50_us
    assert 3_500 < point.itl_p50_us < 20_000
    assert point.tokens_per_s == pytest.approx(4 * point.throughput_rps, rel=0.35)
    assert ok(bench.measure(Workload(request_rate=15, streams=1), "stream")).planned_p50_us is not None


def test_a_decoupled_model_without_a_stream_is_told(bench):
    point = bench.measure(Workload(concurrency=1), "stream")
    assert point.status == "bad_input"
    assert "Decoupled models must be run with" in point.message
    assert "streams" in point.hint


def test_rows_of_a_request(bench):
    stacked = ok(bench.measure(Workload(concurrency=2, lengths=(3,), batch=4)))
    assert stacked.rows == 4 and set(stacked.batch_histogram) <= {4, 8}
    assert stacked.inference_count == pytest.approx(4 * stacked.requests, rel=0.15)
    mixed = ok(bench.measure(Workload(concurrency=2, lengths=(3, 6), batch={1: 1, 4: 1}), "rows"))
    assert mixed.rows == 1


@pytest.mark.long
@pytest.mark.parametrize("model", ["text", "half", "flags"])
def test_each_encoding_reaches_the_model(bench, model):
    ok(bench.measure(Workload(concurrency=2, lengths=(2, 3), texts=("one", "two words")), model))


def test_rejected_requests_are_counted_and_told(bench):
    point = bench.measure(Workload(concurrency=8, lengths=(1,)), "narrow")
    assert point.status == "request_failed"
    assert "a request was rejected: " in point.message and "Exceeds maximum queue size" in point.message
    assert 1 <= point.rejected == point.failed == sum(point.failures.values())
    assert "queue policy" in point.hint


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("tls")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
    files = ["-keyout", root / "key.pem", "-out", root / "cert.pem"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files], check=True, stderr=-3
    )
    return root / "cert.pem", root / "key.pem"


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_over_tls(bench, certificate, protocol):
    """A proxy that ends TLS before the server's plain port, as in front of many servers."""
    cert, key = certificate
    behind = bench.server.http_url if protocol == "http" else bench.server.grpc_url
    with tls_proxy(cert, key, behind) as port:
        way = Transport(protocol, tls=Tls(ca=cert))
        ok(bench.measure(Workload(concurrency=2, lengths=(2,)), transport=way, url=f"localhost:{port}"))
        blind = bench.measure(
            Workload(concurrency=1, lengths=(2,)), transport=Transport(protocol), url=f"127.0.0.1:{port}"
        )
        assert blind.status == "unreachable"
    point = bench.measure(Workload(concurrency=1, lengths=(2,)), transport=way)
    assert point.status == "unreachable"
    assert "TLS" in point.hint


class tls_proxy:
    """Plain bytes behind, TLS in front; HTTP/2 is agreed on where the client asks for it."""

    def __init__(self, cert: Path, key: Path, behind: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(cert, key)
        self._context.set_alpn_protocols(["h2", "http/1.1"])
        host, _, port = behind.rpartition(":")
        self._behind = host, int(port)
        self._open: list[socket.socket] = []

    def __enter__(self) -> int:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open.append(self._listener)
        threading.Thread(target=self._accept, daemon=True).start()
        return int(self._listener.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            front, back = self._context.wrap_socket(plain, server_side=True), socket.create_connection(self._behind)
        except OSError:
            plain.close()
            return
        self._open += [front, back]
        for source, sink in ((front, back), (back, front)):
            threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
