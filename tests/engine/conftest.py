"""ONNX files of encoders, made on the spot, and requests to build engines from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.engine.profiles import ShapeRange, profiles_of
from export.engine.request import EngineRequest, check_source
from tooling.releases import release_named

FREE = ["batch", "seq"]
IDS = (("input_ids", "INT64", FREE), ("attention_mask", "INT64", FREE))


@pytest.fixture
def encoder(tmp_path: Path) -> Callable[..., Path]:
    """`encoder(inputs, weights=, largest=, operator=, domain=, external=)` → path of an ONNX file."""
    from onnx import TensorProto, helper, numpy_helper

    def save(
        inputs: tuple[tuple[str, str, list[Any]], ...] = (
            ("input_ids", "INT64", FREE),
            ("attention_mask", "INT64", FREE),
        ),
        *,
        weights: str = "FLOAT",
        largest: float = 1,
        operator: str = "Identity",
        domain: str = "",
        external: bool = False,
    ) -> Path:
        import numpy as np

        kinds = {"FLOAT": np.float32, "FLOAT16": np.float16}
        values = np.ones((64, 4), kinds[weights])
        values[3, 1] = largest
        table = numpy_helper.from_array(values, "table")
        if external:
            table.ClearField("raw_data")
            table.data_location = TensorProto.EXTERNAL
            table.external_data.add(key="location", value="model.onnx.data")
            table.external_data.add(key="length", value=str(64 * 4 * 4))
        nodes = [helper.make_node("Gather", ["table", inputs[0][0]], ["rows"], axis=0)]
        nodes.append(helper.make_node(operator, ["rows"], ["embeddings"], domain=domain))
        shape = [*inputs[0][2], 4]
        graph = helper.make_graph(
            nodes,
            "encoder",
            [helper.make_tensor_value_info(name, getattr(TensorProto, kind), dims) for name, kind, dims in inputs],
            [helper.make_tensor_value_info("embeddings", getattr(TensorProto, weights), shape)],
            [table],
        )
        opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
        path = tmp_path / "model.onnx"
        path.write_bytes(helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString())
        return path

    return save


@pytest.fixture
def request_for(encoder: Callable[..., Path], tmp_path: Path) -> Callable[..., EngineRequest]:
    """`request_for(release, edges=(128,), weights="FLOAT", **fields)` → a request for an encoder of two inputs."""

    def make(release: str, edges: tuple[int, ...] = (128,), weights: str = "FLOAT", **fields: Any) -> EngineRequest:
        graph = check_source(encoder(weights=weights))
        assert graph.signature is not None
        profiles = profiles_of(graph.signature, ShapeRange(max_batch=8, edges=edges, opt_batch=4))
        plan = tmp_path / "repository" / "enc" / "1" / "model.plan"
        return EngineRequest(graph, plan, profiles, release_named(release), **fields)

    return make
