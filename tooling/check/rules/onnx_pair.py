"""A config beside the ONNX model it is for, and the examples that rules about the two share. Layer: check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tooling.check.model import Model
from tooling.signature.onnx_graph import OnnxGraph
from tooling.signature.spec import ModelSignature

SOURCE: Final = "ModelInstanceState of the onnxruntime backend"
X: Final = 'name: "x" data_type: TYPE_FP32 dims: [ 8 ]'
Y: Final = 'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }'


def example(tensor: str, model: str = "", before: str = "max_batch_size: 8", output: str = Y) -> str:
    """A config with one input, and the ONNX model it is for where that is not the usual one."""
    text = f"{before}\ninput {{ {tensor} }}\n{output}"
    return f"{text}\n--- 1/model.onnx\n{model}" if model else text


@dataclass(frozen=True, slots=True)
class Pair:
    """A config and the model it is compared with."""

    model: Model
    graph: OnnxGraph
    signature: ModelSignature

    @property
    def config(self) -> Any:
        return self.model.completed

    @property
    def name(self) -> str:
        return str(self.model.config.name)

    @property
    def top(self) -> int:
        return int(self.config.max_batch_size)
