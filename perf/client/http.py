"""Requests to a Triton server in its binary HTTP protocol, encoded once and sent often. Layer: bottom of perf.

perf_analyzer measures servers; this client is for what it does not do: points of a few tenths of a second, and requests
at given times.
"""

from __future__ import annotations

import base64
import itertools
import json
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from perf.client.wire import from_bf16, to_bf16
from tooling.errors import BUSY, ExternalError, Refused

Integers = npt.NDArray[np.int64]
_CODES = {
    "TYPE_BOOL": "?",
    **{f"TYPE_INT{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"TYPE_UINT{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"TYPE_FP{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}


class Exchange(NamedTuple):
    """What a client saw: when each request left, counted from the start of the run, and how long its answer took."""

    sent_ns: Integers
    latency_ns: Integers
    span_ns: int


def encode(model: str, tensors: Mapping[str, Mapping[str, Any]], data_types: Mapping[str, str]) -> bytes:
    """A whole HTTP request for one inference, with binary tensors and a binary answer.

    `tensors` are those of perf.input_data: {name: {"content" or "b64", "shape"}}; `data_types` are Triton's TYPE_…
    """
    raw = {name: _raw(tensor, data_types[name]) for name, tensor in tensors.items()}
    inputs = [
        {
            "name": name,
            "datatype": data_types[name].removeprefix("TYPE_").replace("STRING", "BYTES"),
            "shape": list(tensor["shape"]),
            "parameters": {"binary_data_size": len(raw[name])},
        }
        for name, tensor in tensors.items()
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([head, *raw.values()])
    lines = [
        f"POST /v2/models/{quote(model)}/infer HTTP/1.1",
        "Host: triton",
        f"Content-Length: {len(body)}",
        f"Inference-Header-Content-Length: {len(head)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def decode(body: bytes) -> tuple[str, dict[str, npt.NDArray[Any]]]:
    """The version that answered and its outputs, from the body of an answer to a request of `encode`."""
    head, at = json.JSONDecoder().raw_decode(body.decode("latin-1"))  # a byte a letter: binary follows the JSON
    outputs = {}
    for tensor in head["outputs"]:
        size = int(tensor["parameters"]["binary_data_size"])
        outputs[str(tensor["name"])] = _array(body[at : at + size], tensor["datatype"]).reshape(tensor["shape"])
        at += size
    return str(head["model_version"]), outputs


def _array(raw: bytes, datatype: str) -> npt.NDArray[Any]:
    """Values of a tensor; of bfloat16, which numpy does not have, as float32."""
    if datatype == "BF16":
        return from_bf16(raw)
    if datatype != "BYTES":
        return np.frombuffer(raw, np.dtype(_CODES[f"TYPE_{datatype}"]))
    words, at = [], 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        words.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return np.array(words, dtype=object)


def _raw(tensor: Mapping[str, Any], data_type: str) -> bytes:
    if "b64" in tensor:
        return base64.b64decode(tensor["b64"])
    content = tensor["content"]
    if data_type == "TYPE_STRING":
        return b"".join(struct.pack("<I", len(word)) + word for word in (str(value).encode() for value in content))
    if data_type == "TYPE_BF16":
        return to_bf16(np.asarray(content, np.float32))
    return np.asarray(content, dtype=_CODES[data_type]).tobytes()


class Connection:
    """One kept-alive connection; a context manager. Parsed by hand: http.client takes as long as a small model."""

    def __init__(self, url: str, timeout_s: float) -> None:
        host, _, port = url.rpartition(":")
        self._url, self._timeout_s = url, timeout_s
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
        except OSError as error:
            raise self._lost(error) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()

    def send(self, request: bytes) -> bytes:
        """The body of the answer. Raises Refused with the server's own words, ExternalError when it is gone."""
        try:
            self._socket.sendall(request)
            status = self._file.readline().split(None, 2)
            length = 0
            while line := self._file.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = self._file.read(length)
        except OSError as error:
            raise self._lost(error) from error
        if len(status) < 2:
            raise self._lost("the connection was closed")
        if status[1] != b"200":
            raise Refused(_reason(body), where=f"Triton, inference at {self._url}")
        return body

    def _lost(self, why: object) -> ExternalError:
        hint = "its log tells more"
        if isinstance(why, TimeoutError):
            why, hint = f"nothing for {self._timeout_s:g} s", f"{hint}; {BUSY}"
        return ExternalError("the server does not answer", where=self._url, got=why, hint=hint)


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()


def closed_loop(
    url: str, requests: Sequence[bytes], *, clients: int, seconds: float, least: int = 1, timeout_s: float = 60
) -> Exchange:
    """`clients` that each wait for their answer, for `seconds` and until `least` requests were sent.

    They send `requests` in turn, again from the start at the end. Raises as Connection does.
    """
    return _drive(url, requests, clients, lambda n, now_s: 0.0 if n < least or now_s < seconds else None, timeout_s)


def open_loop(
    url: str, requests: Sequence[bytes], times_s: Sequence[float], *, connections: int = 64, timeout_s: float = 60
) -> Exchange:
    """Send a request at each of `times_s`, whether or not earlier ones are answered (up to `connections` in flight).

    `requests` go in turn, again from the start at the end. Raises as Connection does.
    """
    return _drive(url, requests, connections, lambda n, _: times_s[n] if n < len(times_s) else None, timeout_s)


def _drive(
    url: str, requests: Sequence[bytes], workers: int, due: Callable[[int, float], float | None], timeout_s: float
) -> Exchange:
    """Workers that take the next number, wait until it is due, and send; one that is not due ends its worker."""
    numbers = itertools.count()
    sent: dict[int, int] = {}
    latency: dict[int, int] = {}
    with ExitStack() as stack:
        connections = [stack.enter_context(Connection(url, timeout_s)) for _ in range(workers)]
        begin = time.perf_counter_ns()

        def work(connection: Connection) -> None:
            for number in numbers:
                at_s = due(number, (time.perf_counter_ns() - begin) / 1e9)
                if at_s is None:
                    return
                time.sleep(max(0.0, at_s - (time.perf_counter_ns() - begin) / 1e9))
                start = time.perf_counter_ns()
                connection.send(requests[number % len(requests)])
                latency[number], sent[number] = time.perf_counter_ns() - start, start - begin

        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(work, connection) for connection in connections]:
                done.result()
        span_ns = time.perf_counter_ns() - begin
    order = sorted(sent)
    return Exchange(_column(sent, order), _column(latency, order), span_ns)


def _column(values: Mapping[int, int], order: Sequence[int]) -> Integers:
    return np.array([values[number] for number in order], dtype=np.int64)
