"""Small ONNX models and one embedded server for the tests of the onnxruntime backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def write_onnx() -> Callable[..., Path]:
    """Write a model: `write_onnx(path, [(op, inputs, output)], inputs={name: [type, *dims]}, outputs={…})`."""
    from onnx import TensorProto, helper, save

    types = {
        "FP32": TensorProto.FLOAT,
        "FP16": TensorProto.FLOAT16,
        "INT32": TensorProto.INT32,
        "INT64": TensorProto.INT64,
        "STRING": TensorProto.STRING,
    }

    def values(tensors: Mapping[str, Sequence[Any]]) -> list[Any]:
        return [helper.make_tensor_value_info(name, types[kind], dims) for name, (kind, *dims) in tensors.items()]

    def write(
        path: Path,
        nodes: Sequence[tuple[str, Sequence[str], str]],
        inputs: Mapping[str, Sequence[Any]],
        outputs: Mapping[str, Sequence[Any]],
        opset: int = 17,
        ir_version: int = 8,
    ) -> Path:
        graph = helper.make_graph(
            [helper.make_node(op, list(sources), [target]) for op, sources, target in nodes],
            "graph",
            values(inputs),
            values(outputs),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
        path.parent.mkdir(parents=True, exist_ok=True)
        save(model, path)
        return path

    return write


@pytest.fixture(scope="session")
def add_and_multiply(write_onnx: Callable[..., Path]) -> Callable[..., Path]:
    """Write a model of the recorded verdicts: the sum and the product of two inputs, or both passed through."""

    def write(path: Path, inputs: Mapping[str, Sequence[Any]], outputs: Mapping[str, Sequence[Any]]) -> Path:
        if "sum" in outputs:
            nodes = [("Add", list(inputs), "sum"), ("Mul", list(inputs), "prod")]
        else:
            nodes = [("Identity", ["x"], "y"), ("Identity", ["n"], "cnt")]
        return write_onnx(path, nodes, inputs, outputs)

    return write


@pytest.fixture
def backend_modules(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import one of the backend's own modules the way the stub does: from its directory, by its bare name."""
    import importlib

    from tooling.runtime.location import BACKENDS_SOURCE

    monkeypatch.syspath_prepend(str(BACKENDS_SOURCE / "onnxruntime"))
    return importlib.import_module
