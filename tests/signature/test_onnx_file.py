"""The signature read from the file agrees with the session that ONNX Runtime makes of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tooling.errors import UsageError
from tooling.signature.onnx_file import read_onnx
from tooling.signature.spec import TensorSpec

_TYPES = {"tensor(float)": "TYPE_FP32", "tensor(int64)": "TYPE_INT64", "tensor(string)": "TYPE_STRING"}
_TYPES |= {"tensor(float16)": "TYPE_FP16", "tensor(double)": "TYPE_FP64", "tensor(bool)": "TYPE_BOOL"}
_TYPES |= {f"tensor({s}int{n})": f"TYPE_{s.upper()}INT{n}" for s in ("", "u") for n in (8, 16, 32, 64)}


def ints(name: str, *values: int):
    return numpy_helper.from_array(np.array(values), name)


def weights(name: str, *shape: int):
    return numpy_helper.from_array(np.ones(shape, dtype=np.float32), name)


def session_view(path: Path) -> tuple[list[TensorSpec], list[TensorSpec]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def specs(args, optional: bool = False) -> list[TensorSpec]:
        return [
            TensorSpec(a.name, _TYPES[a.type], tuple(d if isinstance(d, int) else -1 for d in a.shape), optional)
            for a in args
        ]

    inputs = specs(session.get_inputs()) + specs(session.get_overridable_initializers(), optional=True)
    return inputs, specs(session.get_outputs())


MODELS = {
    "plain": {
        "nodes": [("Relu", ["x"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 3])],
        "outputs": [("y", "FLOAT", ["b", 3])],
    },
    "a declared symbol that the weights make fixed": {
        "nodes": [("MatMul", ["x", "w"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 3])],
        "outputs": [("y", "FLOAT", ["b", "MatMuly_dim_1"])],
        "initializers": [weights("w", 3, 64)],
    },
    "weights too large to be kept": {
        "nodes": [("MatMul", ["x", "w"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 64])],
        "outputs": [("y", "FLOAT", ["b", "n"])],
        "initializers": [weights("w", 64, 640)],
    },
    "a declared length that the weights contradict": {
        "nodes": [("MatMul", ["x", "w"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 3])],
        "outputs": [("y", "FLOAT", ["b", 65])],
        "initializers": [weights("w", 3, 64)],
    },
    "an output without a declared shape": {
        "nodes": [("MatMul", ["x", "w"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 3])],
        "outputs": [("y", "FLOAT", None)],
        "initializers": [weights("w", 3, 64)],
    },
    "a shape that only the declaration knows": {
        "nodes": [("Reshape", ["x", "shape"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 3]), ("shape", "INT64", [2])],
        "outputs": [("y", "FLOAT", ["n", 7])],
    },
    "a shape computed from a constant": {
        "nodes": [("Reshape", ["x", "shape"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 6])],
        "outputs": [("y", "FLOAT", ["p", "q", "r"])],
        "initializers": [numpy_helper.from_array(np.array([-1, 2, 3]), "shape")],
    },
    "scalars and one axis": {
        "nodes": [("ReduceSum", ["x"], ["y"], {"keepdims": 0}), ("Identity", ["s"], ["t"], {})],
        "inputs": [("x", "FLOAT", ["b"]), ("s", "INT64", [])],
        "outputs": [("y", "FLOAT", []), ("t", "INT64", [])],
    },
    "an overridable initializer": {
        "nodes": [("Mul", ["x", "w"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 3]), ("w", "FLOAT", [1])],
        "outputs": [("y", "FLOAT", ["b", 3])],
        "initializers": [weights("w", 1)],
    },
    "initializers among the inputs of an old IR": {
        "nodes": [("Mul", ["x", "w"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 3]), ("w", "FLOAT", [1])],
        "outputs": [("y", "FLOAT", ["b", 3])],
        "initializers": [weights("w", 1)],
        "ir": 3,
    },
    "lengths that the optimiser computes": {
        "nodes": [
            ("Shape", ["x"], ["lengths"], {}),
            ("Gather", ["lengths", "first"], ["length"], {"axis": 0}),
            ("Unsqueeze", ["length", "axis"], ["batch"], {}),
            ("Concat", ["batch", "rest", "heads"], ["shape"], {"axis": 0}),
            ("Reshape", ["x", "shape"], ["y"], {}),
        ],
        "inputs": [("x", "FLOAT", ["b", "s", 384])],
        "outputs": [("y", "FLOAT", ["b", "p", "q", "r"])],
        "initializers": [
            numpy_helper.from_array(np.array(0), "first"),
            *(ints("axis", 0), ints("rest", -1), ints("heads", 12, 32)),
        ],
    },
    "lengths that it does not compute": {
        "nodes": [("Shape", ["w"], ["shape"], {}), ("Expand", ["x", "shape"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", 1]), ("w", "FLOAT", ["b", 5])],
        "outputs": [("y", "FLOAT", ["b", "n"])],
    },
    "operators that ONNX does not define": {
        "nodes": [
            ("FusedMatMul", ["x", "w"], ["m"], {"domain": "com.microsoft"}),
            ("Gelu", ["m"], ["y"], {"domain": "com.microsoft"}),
        ],
        "inputs": [("x", "FLOAT", ["b", 64])],
        "outputs": [("y", "FLOAT", None)],
        "initializers": [weights("w", 64, 640)],
    },
    "every axis free": {
        "nodes": [("Relu", ["x"], ["y"], {})],
        "inputs": [("x", "FLOAT", ["b", None])],
        "outputs": [("y", "FLOAT", [None, "z"])],
    },
}


@pytest.mark.parametrize("case", MODELS)
def test_signature_is_the_session_s_view(case, save):
    path = save(**MODELS[case])
    signature = read_onnx(path)
    inputs, outputs = session_view(path)
    assert (list(signature.inputs), list(signature.outputs)) == (inputs, outputs)
    assert (signature.opset, signature.ir_version) == (17, MODELS[case].get("ir", 8))


@pytest.mark.parametrize(
    ("case", "dims"),
    [("lengths that the optimiser computes", (-1, -1, 12, 32)), ("operators that ONNX does not define", (-1, 640))],
)
def test_the_session_knows_what_shape_inference_does_not(case, dims, save, monkeypatch):
    path = save(**MODELS[case])
    assert read_onnx(path).outputs[0].dims == dims
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as where it is not installed
    if MODELS[case]["outputs"][0][2] is None:
        with pytest.raises(UsageError, match="shape of output `y` is not known"):
            read_onnx(path)
    else:
        assert read_onnx(path).outputs[0].dims == (-1, -1, -1, -1)


def test_a_graph_that_no_session_takes_is_inferred(save, capfd):
    path = save(
        [("Relu", ["x"], ["y"], {}), ("Strange", ["x"], ["z"], {"domain": "my.own"})],
        [("x", "FLOAT", ["b", 3])],
        [("y", "FLOAT", ["b", "n"])],
    )
    assert read_onnx(path).outputs[0].dims == (-1, 3)
    assert capfd.readouterr() == ("", "")


_SERVED = ["BOOL", "FLOAT16", "FLOAT", "DOUBLE", "STRING", *(f"{s}INT{n}" for s in ("", "U") for n in (8, 16, 32, 64))]


@pytest.mark.parametrize("kind", _SERVED)
def test_every_served_type(kind, save):
    path = save([("Identity", ["x"], ["y"], {})], [("x", kind, ["b", 2])], [("y", kind, ["b", 2])])
    signature = read_onnx(path)
    assert session_view(path) == (list(signature.inputs), list(signature.outputs))


@pytest.mark.parametrize("kind", ["FLOAT8E5M2", "COMPLEX64", "FLOAT8E4M3FN", "INT4"])
def test_types_triton_does_not_serve_are_named(kind, save):
    path = save(
        [("Identity", ["x"], ["y"], {})], [("x", kind, [2]), ("z", kind, [2])], [("y", kind, [2])], ir=10, opset=21
    )
    with pytest.raises(UsageError) as caught:
        read_onnx(path)
    assert [p.got for p in caught.value.problems] == [kind, kind]
    assert "`x`" in str(caught.value) and "`z`" in str(caught.value)


def test_sequences_are_refused(save):
    path = save([("SequenceEmpty", [], ["y"], {})], [], [("y", None)])
    with pytest.raises(UsageError, match=r"output `y` has a type .*got sequence"):
        read_onnx(path)


def test_an_output_whose_rank_contradicts_the_graph_is_refused(save):
    path = save([("Relu", ["x"], ["y"], {})], [("x", "FLOAT", ["b", 3])], [("y", "FLOAT", ["b"])])
    assert session_view(path)[1][0].dims == ()  # ONNX Runtime drops the shape, so Triton would see a scalar
    with pytest.raises(UsageError, match="shape of output `y` is not known"):
        read_onnx(path)


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"", "the file is empty"),
        (b"<!DOCTYPE html><html></html>", "byte 0 cannot start"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        (helper.make_tensor("t", TensorProto.FLOAT, [1], [0.0]).SerializeToString(), "parsing message"),
        (
            helper.make_model(helper.make_graph([], "g", [], []), opset_imports=[]).SerializeToString(),
            "without outputs",
        ),
    ],
)
def test_files_that_are_no_model(content, got, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_onnx(path)
    (problem,) = caught.value.problems
    assert problem.where == str(path) and got in problem.got and problem.hint


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_onnx(tmp_path / "none.onnx")
