"""The client: the bytes it sends, when it sends them, and what it makes of answers that are none."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from perf.client import closed_loop, encode, open_loop
from tooling.errors import ExternalError, Refused

REQUEST = encode("m", {"x": {"content": [1.0, 2.0], "shape": [1, 2]}}, {"x": "TYPE_FP32"})


class Stub(ThreadingHTTPServer):
    """An HTTP/1.1 server that answers `status` and `answer` after `seconds`, and keeps what it got."""

    daemon_threads = True
    request_queue_size = 64
    status, answer, seconds = 200, b"binary \r\n answer", 0.0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        stub = self.server
        with stub.lock:
            stub.got.append((self.path, dict(self.headers), body))
            stub.in_flight += 1
            stub.most_in_flight = max(stub.most_in_flight, stub.in_flight)
        time.sleep(stub.seconds)
        with stub.lock:
            stub.in_flight -= 1
        if stub.status == 0:
            self.close_connection = True
            return
        with suppress(BrokenPipeError):  # the client gave up
            self.send_response(stub.status)
            self.send_header("Content-Length", str(len(stub.answer)))
            self.end_headers()
            self.wfile.write(stub.answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_request_is_triton_s_binary_protocol(stub: Stub) -> None:
    tensors = {
        "ids": {"content": [7, 8], "shape": [1, 2]},
        "text": {"content": ["ab", "é"], "shape": [2]},
        "half": {"b64": "AAA=", "shape": [1]},
    }
    types = {"ids": "TYPE_INT64", "text": "TYPE_STRING", "half": "TYPE_BF16"}
    closed_loop(stub.url, [encode("a model", tensors, types)], clients=1, seconds=0)
    ((path, headers, body),) = stub.got
    assert path == "/v2/models/a%20model/infer"
    size = int(headers["Inference-Header-Content-Length"])
    head, raw = json.loads(body[:size]), body[size:]
    assert [(i["name"], i["datatype"], i["shape"]) for i in head["inputs"]] == [
        ("ids", "INT64", [1, 2]),
        ("text", "BYTES", [2]),
        ("half", "BF16", [1]),
    ]
    assert head["parameters"] == {"binary_data_output": True}
    assert raw == struct.pack("<2q", 7, 8) + b"\2\0\0\0ab\2\0\0\0\xc3\xa9" + b"\0\0"
    assert sum(i["parameters"]["binary_data_size"] for i in head["inputs"]) == len(raw)


@pytest.mark.parametrize(
    ("data_type", "size"), [("TYPE_BOOL", 1), ("TYPE_UINT8", 1), ("TYPE_INT16", 2), ("TYPE_FP16", 2), ("TYPE_FP64", 8)]
)
def test_every_type_takes_its_size(data_type: str, size: int) -> None:
    request = encode("m", {"x": {"content": [1, 0, 1], "shape": [1, 3]}}, {"x": data_type})
    assert b'"binary_data_size": %d}' % (3 * size) in request


def test_clients_of_a_closed_loop_wait_for_their_answers(stub: Stub) -> None:
    stub.seconds = 0.02
    seen = closed_loop(stub.url, [REQUEST], clients=3, seconds=0.2)
    assert stub.most_in_flight == 3
    assert len(seen.sent_ns) == len(seen.latency_ns) == len(stub.got)
    assert (seen.latency_ns >= 20e6).all()
    assert seen.span_ns >= 0.2e9


def test_a_closed_loop_sends_the_least_it_was_asked_for(stub: Stub) -> None:
    assert len(closed_loop(stub.url, [REQUEST], clients=4, seconds=0, least=10).sent_ns) == 10


def test_an_open_loop_sends_on_time_whatever_the_answers(stub: Stub) -> None:
    stub.seconds = 0.2
    times_s = [0.05, 0.06, 0.1]
    seen = open_loop(stub.url, [REQUEST], times_s)
    assert stub.most_in_flight == 3
    late_s = seen.sent_ns / 1e9 - times_s
    assert (late_s >= 0).all()
    assert np.median(late_s) < 0.02


def test_the_server_s_own_words_are_told(stub: Stub) -> None:
    stub.status, stub.answer = 400, b'{"error": "unexpected shape"}'
    with pytest.raises(Refused, match="unexpected shape"):
        closed_loop(stub.url, [REQUEST], clients=1, seconds=0)
    stub.answer = b"<html>no</html>"
    with pytest.raises(Refused, match="<html>no</html>"):
        closed_loop(stub.url, [REQUEST], clients=1, seconds=0)


def test_a_server_that_is_gone_is_an_error(stub: Stub) -> None:
    with pytest.raises(ExternalError, match="does not answer"):
        closed_loop("127.0.0.1:1", [REQUEST], clients=1, seconds=0)
    stub.status = 0
    with pytest.raises(ExternalError, match="connection was closed"):
        closed_loop(stub.url, [REQUEST], clients=2, seconds=5)


def test_a_server_that_hangs_is_an_error(stub: Stub) -> None:
    stub.seconds = 0.5
    with pytest.raises(ExternalError, match=r"does not answer \(got nothing for 0\.1 s"):
        closed_loop(stub.url, [REQUEST], clients=1, seconds=0, timeout_s=0.1)
