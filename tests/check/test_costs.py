"""What `tritune check` costs on a large repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = 500
MOST_S = 10  # 4 on a calm machine: a busy one makes processor time longer too
MOST_KIB = 300 * 1024
MEASURED = """
import sys, time
from pathlib import Path
from tooling.cli import main
code = main(sys.argv[1:])
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]  # ru_maxrss holds the parent's too
print(peak, time.process_time(), file=sys.stderr)
sys.exit(code)
"""
CONFIG = """platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 60 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 60 ] }
dynamic_batching { max_queue_delay_microseconds: 100 }
instance_group { count: 1 kind: KIND_CPU }
"""


def _write_layers(path: Path, layers: int = 60) -> None:
    """A model of about 0.9 MB: so many layers of 60 × 60."""
    from onnx import TensorProto, helper, save

    nodes, weights = [], []
    for number in range(layers):
        last = f"r{number - 1}" if number else "x"
        weights.append(helper.make_tensor(f"w{number}", TensorProto.FLOAT, [60, 60], bytes(4 * 60 * 60), raw=True))
        nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"m{number}"]))
        nodes.append(helper.make_node("Relu", [f"m{number}"], [f"r{number}" if number < layers - 1 else "y"]))
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 60]) for name in "xy"]
    graph = helper.make_graph(nodes, "layers", shapes[:1], shapes[1:], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.long
def test_five_hundred_models_take_seconds_and_little_memory(tmp_path: Path) -> None:
    """CPU time on one core, the start of the program included."""
    _write_layers(tmp_path / "model.onnx")
    for number in range(MODELS):
        version = tmp_path / "repository" / f"model{number}" / "1"
        version.mkdir(parents=True)
        os.link(tmp_path / "model.onnx", version / "model.onnx")
        (version.parent / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    command = [sys.executable, "-c", MEASURED, "check", tmp_path / "repository"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{MODELS} models judged for Triton 24.10: nothing to complain about" in done.stdout
    peak_kib, seconds = map(float, done.stderr.split())
    assert peak_kib < MOST_KIB
    assert seconds < MOST_S
