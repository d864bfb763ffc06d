"""What a canary file may say, and when answers are the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.rollout.canary import Canary, difference
from tooling.config.render import parse
from tooling.errors import UsageError

CONFIG = parse(
    """
    backend: "onnxruntime"
    max_batch_size: 8
    input [ { name: "x" data_type: TYPE_INT64 dims: [ 2 ] } ]
    output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "label" data_type: TYPE_STRING dims: [ 1 ] } ]
    """,
    "config.pbtxt",
)
REQUEST = {"x": {"content": [1, 2]}}


def read(tmp_path: Path, answers: Any, requests: int = 1) -> Canary:
    path = tmp_path / "canary.json"
    path.write_text(json.dumps({"data": [REQUEST] * requests, "validation_data": answers}))
    return Canary.read(path, CONFIG)


def test_answers_are_numbers_or_texts_with_a_shape_or_in_one_row(tmp_path: Path) -> None:
    told = [{"y": {"content": [1, 2.5], "shape": [1, 2]}, "label": {"content": ["größe"]}}, {"y": [1, True]}]
    first, second = read(tmp_path, told, 2).answers
    assert first["y"].tolist() == [[1, 2.5]]
    assert first["label"].tolist() == ["größe".encode()]
    assert second["y"].tolist() == [1, 1]
    assert read(tmp_path, None).answers == ()


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([{}], "validation_data[0]: no answer (got {}; expected an object"),
        ([5], "validation_data[0]: no answer (got 5;"),
        ([{"z": {"content": [1]}}], "validation_data[0]: the model has no output `z` (expected one of y, label)"),
        ([{"y": {"content": ["a", "b"]}}], "`y`: not a flat list of numbers"),
        ([{"y": {"content": [1, None]}}], "`y`: not a flat list of numbers"),
        ([{"y": {"content": [[1], [2, 3]]}}], "`y`: not a flat list of numbers"),
        ([{"label": {"content": [1]}}], "`label`: not a flat list of texts"),
        ([{"y": {"b64": "AAAA"}}], "`y`: an output without `content`, a list of values"),
        ([{"y": 7}], "`y`: an output without `content`"),
        ([{"y": {"content": [1, 2], "shape": [3]}}], "`y`: 2 values and shape [3]"),
        ([{"y": {"content": [1, 2], "shape": ["2"]}}], "`y`: not a shape"),
        ([{"y": [1, 2]}, {"y": [1, 2]}], "`validation_data` does not go with `data`"),
        ([], "`validation_data` does not go with `data`"),
    ],
)
def test_what_is_no_answer_of_this_model_is_told(tmp_path: Path, answers: Any, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, answers)
    assert said in str(raised.value)


def test_each_wrong_answer_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read(tmp_path, [{}, {"y": ["a"]}], 2)
    assert len(raised.value.problems) == 2


def compared(wanted: Any, found: Any) -> Any:
    return difference([{"y": np.asarray(wanted)}], [{"y": np.asarray(found)}])


@pytest.mark.parametrize(
    ("wanted", "found", "error", "where"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0, "`y` of request 0"),
        ([1.0, 4.0], [1.0, 4.4], 0.1, "`y` of request 0"),
        ([0.1, 0.2], [0.1, 0.3], 0.1, "`y` of request 0"),
        ([1.0, -math.inf], [1.5, -math.inf], 0.5, "`y` of request 0"),
        ([1.0, math.nan], [1.0, math.nan], 0, "`y` of request 0"),
        ([1.0, 2.0], [1.0, math.nan], math.inf, "`y` of request 0: element 1 is nan, not 2"),
        ([1.0, math.nan], [1.0, 2.0], math.inf, "`y` of request 0: element 1 is 2, not nan"),
        ([1.0, -math.inf], [1.0, -65504.0], math.inf, "`y` of request 0: element 1 is -65504, not -inf"),
        ([1, 2], [1, 3], math.inf, "`y` of request 0: element 1 is 3, not 2"),
        ([1.0, 2.0], [1, 2], 0, "`y` of request 0"),
        (np.array([b"a"], object), [0.5], math.inf, "`y` of request 0: element 0 is 0.5, not b'a'"),
        ([0.5], np.array([b"a"], object), math.inf, "`y` of request 0: element 0 is b'a', not 0.5"),
        ([1.0, 2.0, 3.0], [1.0, 2.0], math.inf, "`y` of request 0: shape [2], not [3]"),
        ([[1.0, 2.0, 3.0]], [[1.0], [2.0], [3.0]], 0, "`y` of request 0"),
        (np.ones((1, 2, 3)), np.ones((1, 3, 2)), math.inf, "`y` of request 0: shape [1, 3, 2], not [1, 2, 3]"),
        (np.ones(6), np.ones((1, 3, 2)), 0, "`y` of request 0"),
        ([], np.ones(0, np.float32), 0, "`y` of request 0"),
    ],
)
def test_answers_differ_by_their_numbers_and_by_what_is_none(wanted: Any, found: Any, error: float, where: str) -> None:
    got = compared(wanted, found)
    assert got.error == pytest.approx(error)
    assert got.where == where


def test_the_words_for_a_difference() -> None:
    assert (
        compared([1.0], [1.5]).text(0.02, "those") == "off from those by at most 0.5 (limit 0.02) at `y` of request 0"
    )
    other = compared([1.0, math.nan], [math.nan, math.nan])
    assert other.text(0.02, "those") == (
        "other than those: `y` of request 0: element 0 is nan, not 1; 1 elements are NaN in both"
    )
    assert difference([{"y": np.ones(1)}], [{"z": np.ones(1)}]).where == "`y` of request 0: there is no such output"
