"""What the asyncio client makes of values before they leave, without a server."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import numpy as np
import pytest

from perf.client import Client, decode
from perf.client.wire import Tensor, array_of, from_bytes, to_bf16, to_bytes
from tooling.errors import ExternalError, UsageError


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
        ([[]], "INT64", [[]]),
        ([["ä", b"b"]], "BYTES", [["ä", b"b"]]),
    ],
)
def test_values_become_the_input_s_type(value: Any, datatype: str, expected: list[Any]) -> None:
    array = array_of(value, tensor(datatype), 0)
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
        ({"edges": (0, 16)}, "no length to pad to (got 0; expected 1 or more)"),
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
    with pytest.raises(UsageError, match="below 0"):
        asyncio.run(client.infer({"x": [[1]]}, priority=-1))


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
