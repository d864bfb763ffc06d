"""Small ONNX files made on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """`save(nodes, inputs, outputs, initializers=(), ir=8)` → path of an ONNX file; tensors are (name, type, shape)."""
    from onnx import TensorProto, helper

    def value(name: str, kind: str | None = "FLOAT", shape: list | None = None):
        if kind is None:
            return helper.make_empty_tensor_value_info(name)
        return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)

    def build(nodes, inputs, outputs, initializers=(), ir: int = 8, opset: int = 17) -> Path:
        graph = helper.make_graph(
            [helper.make_node(op, ins, outs, **attributes) for op, ins, outs, attributes in nodes],
            "graph",
            [value(*t) for t in inputs],
            [value(*t) for t in outputs],
            list(initializers),
        )
        domains = {"": opset} | {n.domain: 1 for n in graph.node if n.domain}
        opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
        model = helper.make_model(graph, ir_version=ir, opset_imports=opsets)
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return build
