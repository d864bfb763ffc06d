"""A user's own requests: what perf_analyzer would crash on, hang on or refuse is told first."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from perf.input_check import Expected, check_input_data, expected_inputs
from perf.input_data import write_input_data
from perf.workload import Workload
from tooling.errors import UsageError

IDS, MASK = Expected("ids", "TYPE_INT64", (-1,)), Expected("mask", "TYPE_INT64", (-1,), optional=True)


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def ids(*values: int, **more: Any) -> dict[str, Any]:
    return {"ids": {"content": list(values), "shape": [len(values)], **more}}


@pytest.fixture
def check(tmp_path):
    def run(content: object, *inputs: Expected, rows: int = 1) -> int:
        path = tmp_path / "requests.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return check_input_data(path, inputs or (IDS, MASK), rows=rows)

    return run


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "requests.json:1:1: not JSON"),
        (b'{"data": [', "requests.json:1:11: not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"data": ["\xff"]}', "not"),
        ([], "there is no `data`"),
        ({}, "there is no `data`"),
        ({"data": []}, "`data` holds no requests (got an empty list"),
        ({"data": {}}, "`data` holds no requests (got a mapping"),
        ({"data": None}, "`data` holds no requests (got nothing"),
        ({"data": [1]}, "`data` is not a list of steps (got a list with a number"),
        ({"data": [ids(1), 1]}, "a list with a mapping, a number"),
        ({"data": [ids(1), [ids(1)]]}, "a list with a list, a mapping"),
        ({"data": [[ids(1)], [1]]}, "`data` is not a list of steps"),
        ({"data": [[ids(1)], []]}, "a stream without a step"),
        ({"data": [{}]}, "the input `ids` is missing (got nothing"),
        ({"data": [{**ids(1), "idz": [1]}]}, "the model has no input `idz`"),
        ({"data": [{"ids": [1, 2]}]}, "a tensor with a free axis needs its shape"),
        ({"data": [{"ids": {"content": [1], "shapes": [1]}}]}, "not a tensor (got content, shapes"),
        ({"data": [{"ids": {"shape": [1]}}]}, "not a tensor"),
        ({"data": [ids(1, shape=[1, 1])]}, "shape [1,1] has one axis too many for dims [-1]"),
        ({"data": [ids(1, shape=[])]}, "shape [] has one axis too few for dims [-1]"),
        ({"data": [ids(1, shape=[1.0])]}, "not a shape (got [1.0]"),
        ({"data": [ids(1, shape="1")]}, "not a shape"),
        ({"data": [ids(1, shape=[-1])]}, "not a shape"),
        ({"data": [ids(1, shape=[2])]}, "values and shape differ (got 1; expected 2 for [2])"),
        ({"data": [{"ids": {"content": [[1, 2]], "shape": [2]}}]}, "a nested list"),
        ({"data": [{"ids": {"content": 1, "shape": [1]}}]}, "not a list of values"),
        ({"data": [{"ids": {"content": [1.5], "shape": [1]}}]}, "not a value of this type (got 1.5"),
        ({"data": [{"ids": {"content": [True], "shape": [1]}}]}, "not a value of this type (got true"),
        ({"data": [{"ids": {"content": [None], "shape": [1]}}]}, "not a value of this type (got null"),
        ({"data": [{"ids": {"content": [2**63], "shape": [1]}}]}, "not a value of this type"),
        ({"data": [{"ids": {"b64": "?", "shape": [1]}}]}, "not base64"),
        ({"data": [{"ids": {"b64": 3, "shape": [1]}}]}, "not base64"),
        ({"data": [{"ids": {"b64": b64(b"1234"), "shape": [1]}}]}, "bytes and shape differ (got 4; expected 8)"),
        ({"data": [ids(1)], "validation_data": []}, "`validation_data` does not go with `data`"),
    ],
)
def test_malformed_data_is_refused_with_its_place(check, content, what):
    with pytest.raises(UsageError) as refused:
        check(content)
    assert what in str(refused.value.problems[0])


@pytest.mark.parametrize(
    ("data_type", "value", "what"),
    [
        ("TYPE_FP32", 1, "FP32: numbers with a decimal point"),
        ("TYPE_FP64", "1.0", "FP64: numbers with a decimal point"),
        ("TYPE_BOOL", 1, "BOOL: true or false"),
        ("TYPE_UINT8", 256, "UINT8: whole numbers from 0 to 255"),
        ("TYPE_STRING", 3, "STRING: texts"),
        ("TYPE_FP16", 1.0, "FP16 cannot be written out"),
        ("TYPE_BF16", 1.0, "BF16 cannot be written out"),
    ],
)
def test_each_type_wants_its_own_kind_of_value(check, data_type, value, what):
    with pytest.raises(UsageError) as refused:
        check({"data": [{"x": [value]}]}, Expected("x", data_type, (1,)))
    assert what in str(refused.value)


def test_a_string_is_one_element_and_no_list(check):
    text = Expected("text", "TYPE_STRING", (1,))
    assert check({"data": [{"text": ["a long one"]}]}, text) == 1
    with pytest.raises(UsageError, match="not a list of values"):
        check({"data": [{"text": "a"}]}, text)
    assert check({"data": [{"text": {"b64": b64(b"\x02\0\0\0ab")}}]}, text) == 1
    for raw in (b"ab", b"\x03\0\0\0ab", b"\x01\0\0\0a\x01\0\0\0b"):
        with pytest.raises(UsageError, match="not strings"):
            check({"data": [{"text": {"b64": b64(raw)}}]}, text)


def test_what_perf_analyzer_takes_passes(check):
    assert check({"data": [ids(1, 2), {**ids(3), "mask": {"content": [1], "shape": [1]}}], "model": 3}) == 2
    assert check({"data": [[ids(1)], [ids(2), ids(3)]]}) == 3
    assert check({"data": [{"x": {"b64": b64(b"\0\0"), "shape": [1]}}]}, Expected("x", "TYPE_FP16", (-1,))) == 1
    assert check({"data": [{"x": {"content": {"b64": b64(b"\0\0")}, "shape": [1]}}]}, Expected("x", "TYPE_BF16", (1,)))
    assert check(b'{"data": [{"x": [NaN, 1e5]}]}', Expected("x", "TYPE_FP32", (2,))) == 1


def test_stacked_rows_need_one_shape(check):
    assert check({"data": [ids(1, 2), ids(3, 4)]}, rows=4) == 2
    with pytest.raises(UsageError, match="cannot be stacked into requests of 4"):
        check({"data": [ids(1, 2), ids(3)]}, rows=4)


def test_a_hint_names_the_batch_axis(check):
    with pytest.raises(UsageError) as refused:
        check({"data": [ids(*range(8), shape=[1, 8])]})
    assert "shape [1,8] has one axis too many for dims [-1]" in str(refused.value)
    assert "leave the batch axis out" in (refused.value.problems[0].hint or "")


def test_many_problems_are_cut_short(check):
    with pytest.raises(UsageError) as refused:
        check({"data": [{}] * 1000})
    assert len(refused.value.problems) == 21


def test_what_tritune_writes_itself_passes(minilm_repository, tmp_path):
    from tooling.repository import read_config
    from tooling.signature.onnx_file import read_onnx

    model = minilm_repository / "minilm"
    workload = Workload(concurrency=2, lengths=(5, 9))
    written = write_input_data(
        tmp_path / "in.json", read_onnx(model / "1" / "model.onnx"), workload, model / "tokenizer"
    )
    assert check_input_data(written.path, expected_inputs(read_config(model))) == written.steps
