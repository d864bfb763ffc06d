"""Tensors and signatures as plain values, independent of the file format they come from. Layer: signature."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: `data_type` is Triton's name (`TYPE_INT64`), `dims` the full shape with -1 for a free axis.

    `optional` marks an ONNX input that has a default value in the file (an overridable initializer).
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False

    @property
    def can_batch(self) -> bool:
        """Whether the first axis is free, which is what Triton stacks requests along."""
        return bool(self.dims) and self.dims[0] == -1


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """What a model file takes and gives, and the Triton backend that serves it."""

    path: Path
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int | None = None
    ir_version: int | None = None

    @property
    def required_inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(t for t in self.inputs if not t.optional)

    @property
    def unbatchable(self) -> tuple[TensorSpec, ...]:
        """The tensors that stand in the way of batching; Triton does not look at optional inputs here."""
        return tuple(t for t in (*self.required_inputs, *self.outputs) if not t.can_batch)

    @property
    def can_batch(self) -> bool:
        """Whether Triton may stack requests: every required input and every output has a free first axis."""
        return not self.unbatchable
