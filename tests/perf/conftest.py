"""Fixtures for tests of what is predicted from a curve."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perf.curve import Batch, CurveRun, ServiceCurve
from perf.grid import Candidate, Grid, wide
from perf.slo import Slo
from perf.sweep import Sweep
from perf.workload import Workload
from tooling.config.knobs import Knobs, apply
from tooling.config.proto import pb

ONE = Candidate("default", Knobs(max_batch_size=8, instance_count=1))


@pytest.fixture
def machine() -> Callable[..., Sweep]:
    """One instance on two cores whose executions take `fixed_ms` + `row_ms` for each row."""

    def make(slo: str = "throughput", fixed_ms: float = 8.0, row_ms: float = 2.0, **grid: Any) -> Sweep:
        def run(rows: int) -> CurveRun:
            us = 1e3 * (fixed_ms + row_ms * rows)
            batch = Batch(rows=rows, executions=8, compute_us=us)
            facts: dict[str, Any] = {"threads": 2, "instances": 1, "clients": 1, "lengths": (16,)}
            sent = [n * us for n in range(8)]
            return CurveRun(**facts, rows=rows, sent_us=sent, latency_us=[us] * 8, batches=[batch])

        config = pb().ModelConfig(name="m", max_batch_size=8)
        config.input.add(name="x", data_type=pb().TYPE_FP32, dims=[4])
        curve = ServiceCurve(
            tool={},
            server={},
            host={"cores": 2, "cpu": "a"},
            model={"name": "m"},
            started="2025-01-01",
            wall_s=1.0,
            lengths=(16,),
            runs=(run(1), run(8)),
        )
        load = Workload(concurrency=8, lengths=(16,))
        tries = wide(ONE.knobs, Grid(**grid), 2) if grid else ()
        return Sweep(apply(ONE.knobs, config), ONE.knobs, curve, load, Slo.parse(slo), tries, requests=600)

    return make


LAYERED = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 64 ] } ]
dynamic_batching { }
"""


@pytest.fixture
def layered() -> Callable[[Path, int], Path]:
    """Writes a model directory with so many wide layers."""
    return write_model


def write_model(directory: Path, wide_layers: int) -> Path:
    """FP32 [-1, 64] through layers of 1500 x 1500: nine megabytes of weights each."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    sizes = [64, *[1500] * wide_layers, 64]
    weights, nodes = [], []
    for number, shape in enumerate(pairwise(sizes)):
        weights.append(numpy_helper.from_array(np.full(shape, 1e-3, dtype=np.float32), f"w{number}"))
        nodes.append(helper.make_node("MatMul", [f"x{number}" if number else "x", f"w{number}"], [f"x{number + 1}"]))
    nodes[-1].output[0] = "y"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 64]) for name in "xy")
    graph = helper.make_graph(nodes, "layers", [x], [y], weights)
    (directory / "1").mkdir(parents=True)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), directory / "1/model.onnx"
    )
    (directory / "config.pbtxt").write_text(LAYERED)
    return directory
