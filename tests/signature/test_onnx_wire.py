"""The weightless copy is the model but for its weights, and damage of any kind ends in one usage error."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from tooling.errors import UsageError
from tooling.signature.onnx_file import read_onnx
from tooling.signature.onnx_wire import skeleton


@pytest.fixture
def model_file(save):
    """A model with a small constant (kept) and weights in each way ONNX can store them (dropped)."""
    large = [numpy_helper.from_array(np.ones((40, 40), dtype=np.float32), "raw")]
    large += [
        onnx.helper.make_tensor(kind, getattr(onnx.TensorProto, kind), [5000], [300] * 5000)
        for kind in ("FLOAT", "INT32", "INT64", "DOUBLE", "UINT64")
    ]
    large += [onnx.helper.make_tensor("STRING", onnx.TensorProto.STRING, [600], [b"weights"] * 600)]
    return save(
        [("Reshape", ["x", "shape"], ["y"], {})],
        [("x", "FLOAT", ["b", 6])],
        [("y", "FLOAT", ["b", "p", "q"])],
        [numpy_helper.from_array(np.array([-1, 2, 3]), "shape"), *large],
    )


def test_only_the_data_of_large_tensors_is_missing(model_file):
    expected = onnx.load(model_file)
    for tensor in expected.graph.initializer:
        if tensor.name != "shape":
            for field in ("raw", "float", "int32", "int64", "double", "uint64", "string"):
                tensor.ClearField(f"{field}_data")
    cut = skeleton(model_file)
    assert onnx.ModelProto.FromString(cut) == expected
    assert len(cut) < 1_000 < 100_000 < model_file.stat().st_size


def test_every_truncation_is_a_usage_error(save):
    path = save([("Relu", ["x"], ["y"], {})], [("x", "FLOAT", ["b", 3])], [("y", "FLOAT", ["b", 3])])
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError):
            read_onnx(path)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_damaged_bytes_give_a_signature_or_a_usage_error(changes, save):
    path = save([("Relu", ["x"], ["y"], {})], [("x", "FLOAT", ["b", 3])], [("y", "FLOAT", ["b", 3])])
    content = bytearray(path.read_bytes())
    for position, byte in changes:
        content[position % len(content)] = byte
    path.write_bytes(content)
    with contextlib.suppress(UsageError):
        read_onnx(path)
