"""What the asyncio client makes of values before they leave, without a server."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from typing import Any

import numpy as np
import pytest

from perf.client import Client, Connection, Split, decode
from perf.client.aio import _Model
from perf.client.wire import Tensor, array_of, from_bytes, to_bf16, to_bytes
from tooling.errors import BUSY, ExternalError, UsageError


def tensor(datatype: str) -> Tensor:
    return Tensor.of(datatype, (-1, -1))


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        ([[1, 2], [3]], "INT64", [[1, 2], [3, 0]]),
        ([[1, 2], [3]], "FP32", [[1.0, 2.0], [3.0, 0.0]]),
        ([[1, 0]], "BOOL", [[True, False]]),
        ([[300]], "INT32", [[300]]),
        (np.array([[7]], np.int64), "UINT8", [[7]]),
        (np.array([[1.5]]), "FP16", [[1.5]]),
        ([[math.inf, 65504]], "FP16", [[math.inf, 65504]]),
        ([[]], "INT64", [[]]),
        ([["ä", b"b"]], "BYTES", [["ä", b"b"]]),
        ([["a", "b"], ["c"]], "BYTES", [["a", "b"], ["c", ""]]),
    ],
)
def test_values_become_the_input_s_type(value: Any, datatype: str, expected: list[Any]) -> None:
    array = array_of(value, tensor(datatype), "" if datatype == "BYTES" else 0)
    assert (array.tolist(), array.dtype) == (expected, tensor(datatype).dtype or np.dtype(object))


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        ([[1.5]], "INT64"),
        (np.array([[1.5]], np.float32), "INT32"),
        ([[300]], "UINT8"),
        ([[-1]], "UINT64"),
        (np.array([[2**40]]), "INT32"),
        ([[2**70]], "INT64"),
        ([[2]], "BOOL"),
        ([["one"]], "INT64"),
        ([[[1], [2, 3]]], "INT64"),
        (5, "INT64"),
        (None, "FP32"),
        ("a text", "BYTES"),
        ([["a", 5]], "BYTES"),
        ([[["a"], ["b", "c"]]], "BYTES"),
        (np.array([[7]]), "BYTES"),
        ([[1e300]], "FP32"),
        ([[70_000]], "FP16"),
        (np.ma.masked_equal([[1, 2]], 2), "INT64"),
    ],
)
def test_values_that_the_type_does_not_hold_are_refused(value: Any, datatype: str) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        array_of(value, tensor(datatype), 0)


def test_bfloat16_is_the_nearest_there_and_the_same_back() -> None:
    bf16 = tensor("BF16")
    values = np.array([[1.0, -2.5, 1 + 2**-8, 1 + 3 * 2**-8, 3.38e38, math.inf, math.nan]], np.float32)
    back = from_bytes(to_bytes(values, bf16), bf16)
    assert back[:4].tolist() == [1.0, -2.5, 1.0, 1 + 2**-6], "halfway goes to the even one"
    assert back[4] == pytest.approx(3.38e38, rel=2**-8)
    assert (back[5], math.isnan(back[6]), len(to_bytes(values, bf16))) == (math.inf, True, 14)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "localhost"}, "not HOST:PORT (got `localhost`; expected the gRPC endpoint"),
        ({"url": "localhost:99999"}, "not HOST:PORT"),
        ({"edges": (0, 16)}, "no length to pad to (got 0; expected whole numbers of 1 or more)"),
        ({"edges": 16}, "`edges`: no lengths to pad to (got 16;"),
        ({"edges": (16, "32")}, "`edges`: no count (got '32'; expected a whole number of 0 or more)"),
        ({"edges": (16.5,)}, "`edges`: no count (got 16.5;"),
        ({"attempts": "3"}, "`attempts`: no count (got '3';"),
    ],
)
def test_a_client_that_cannot_work_is_not_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        Client(**{"url": "localhost:8001", "model": "m", **options})
    assert said in str(raised.value)


def test_a_client_that_is_not_open_says_so() -> None:
    client = Client("localhost:8001", "m")
    with pytest.raises(UsageError, match="the client is not open") as raised:
        asyncio.run(client.infer({"x": [[1]]}))
    assert "async with" in str(raised.value.problems[0].hint)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"priority": -1}, "`priority`: no count (got -1; expected a whole number of 0 or more)"),
        ({"priority": 1.5}, "`priority`: no count (got 1.5;"),
        ({"queue_timeout_us": 2**63}, "`queue_timeout_us`: no count"),
        ({"timeout_s": math.nan}, "`timeout_s`: no time (got nan; expected seconds, or None for no deadline)"),
        ({"timeout_s": math.inf}, "`timeout_s`: no time (got inf;"),
    ],
)
def test_what_a_request_cannot_ask_for_is_told(how: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        asyncio.run(Client("localhost:8001", "m").infer({"x": [[1]]}, **how))
    assert said in str(raised.value)


def test_answers_are_cut_back_only_where_an_input_was_padded() -> None:
    """Without a free axis among the inputs, an output that happens to be as long as an edge is left as it is."""
    client = Client("localhost:8001", "m", edges=(4,))
    fixed, free = Tensor.of("FP32", (-1, 4)), Tensor.of("FP32", (-1, -1))
    request = client._request({"x": np.ones((1, 4), np.float32)}, _Model({"x": fixed}, {"y": free}))
    assert request[2] == request[3]
    request = client._request({"x": np.ones((1, 3), np.float32)}, _Model({"x": free}, {"y": free}))
    assert (request[0], *request[2:]) == ((("x", "FP32", (1, 4)),), 3, 4)


def test_answers_of_bfloat16_over_http_are_numbers() -> None:
    output = {"name": "y", "datatype": "BF16", "shape": [2], "parameters": {"binary_data_size": 4}}
    head = json.dumps({"model_version": "3", "outputs": [output]}).encode()
    version, outputs = decode(head + to_bf16(np.array([1.5, -2.0], np.float32)))
    assert (version, outputs["y"].tolist(), outputs["y"].dtype) == ("3", [1.5, -2.0], np.float32)


def test_where_nobody_answers_the_endpoint_is_named() -> None:
    async def ask() -> None:
        async with Client("127.0.0.1:1", "m") as client:
            await client.infer({"x": [[1]]}, timeout_s=20)

    with pytest.raises(ExternalError, match=r"`m` at 127\.0\.0\.1:1") as raised:
        asyncio.run(ask())
    assert "the gRPC endpoint of a Triton server, such as localhost:8001" in str(raised.value.problems[0].hint)


def test_any_key_keeps_its_side_of_a_trial() -> None:
    split = Split("m", "m.next", 50)
    for key in (17, "größe", "\ud800"):
        assert split.choose(key) == split.choose(key)


def test_a_server_that_says_nothing_is_told_with_the_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        with Connection(url, 0.2) as connection, pytest.raises(ExternalError, match=r"nothing for 0\.2 s") as raised:
            connection.send(b"")
    assert BUSY in str(raised.value.problems[0].hint)


def test_an_address_of_ipv6_is_no_name() -> None:
    with pytest.raises(ExternalError) as raised:
        Connection("[::1]:1", 1)
    assert not isinstance(raised.value.__cause__, socket.gaierror)
