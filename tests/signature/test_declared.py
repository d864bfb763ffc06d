"""Tensors written by hand: every part is checked, and all faults are told at once."""

from __future__ import annotations

import pytest

from tooling.errors import UsageError
from tooling.signature.declared import data_type, declare, parse_tensor
from tooling.signature.spec import TensorSpec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("x:FP32:-1,3", TensorSpec("x", "TYPE_FP32", (-1, 3))),
        ("x:0:int64:4", TensorSpec("x:0", "TYPE_INT64", (4,))),
        ("text:BYTES:-1,1", TensorSpec("text", "TYPE_STRING", (-1, 1))),
        ("scalar:TYPE_BOOL:", TensorSpec("scalar", "TYPE_BOOL", ())),
    ],
)
def test_a_tensor(text, spec):
    assert parse_tensor(text, "--input") == spec


@pytest.mark.parametrize("text", ["x", "x:FP32", ":FP32:1", "x:FP32:0", "x:FP32:-2", "x:FP32:1,,2", "x:FP32:1x2"])
def test_no_tensor(text):
    with pytest.raises(UsageError, match="--input: not a "):
        parse_tensor(text, "--input")


def test_a_type_is_suggested():
    with pytest.raises(UsageError) as caught:
        data_type("INT46", "here")
    assert caught.value.problems[0].hint == "did you mean `TYPE_INT64`?"


def test_all_faults_at_once():
    with pytest.raises(UsageError) as caught:
        declare(["a:FP32:1", "b:FLOAT:1"], ["c", "d:FP32:0"])
    assert [p.where for p in caught.value.problems] == ["--input", "--output-tensor", "--output-tensor"]
