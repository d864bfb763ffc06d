"""Tensors and signatures as plain values, independent of the file format they come from. Layer: signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: `data_type` is Triton's name (`TYPE_INT64`), `dims` the full shape with -1 for a free axis.

    `optional` marks an input that a request may leave out; of TensorRT's, `shape_tensor` one whose values are a shape,
    `non_linear` one whose bytes are in a vectorised format.
    """

    name: str
    data_type: str
    dims: Shape
    optional: bool = False
    shape_tensor: bool = False
    non_linear: bool = False

    @property
    def can_batch(self) -> bool:
        """Whether the first axis is free, which is what Triton stacks requests along (a shape tensor has none)."""
        return self.shape_tensor or (bool(self.dims) and self.dims[0] == -1)


@dataclass(frozen=True, slots=True)
class Profile:
    """An optimization profile of a TensorRT plan: the smallest, best and largest shape of each input."""

    smallest: Mapping[str, Shape]
    best: Mapping[str, Shape]
    largest: Mapping[str, Shape]

    @property
    def batches(self) -> tuple[int, int]:
        """The smallest and the largest batch that every input of this profile takes."""
        least = max((shape[0] for shape in self.smallest.values() if shape), default=1)
        return least, min((shape[0] for shape in self.largest.values() if shape), default=1)

    def spans(self, other: Profile) -> bool:
        """Whether every length that the other takes lies in this one too: of all inputs, on all axes but the first."""
        return all(
            self.smallest[name][axis] <= other.smallest[name][axis]
            and other.largest[name][axis] <= self.largest[name][axis]
            for name, shape in other.smallest.items()
            for axis in range(1, len(shape))
        )


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """What a model file takes and gives, and the Triton backend that serves it.

    `max_batch_size` is the largest batch the file itself allows (0: none), None where it sets no limit. `arguments`
    are the names under which a TorchScript `forward` takes its inputs. `built_with` is the TensorRT version of a plan,
    which newer ones run too if it is `version_compatible`.
    """

    path: Path
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int | None = None
    ir_version: int | None = None
    max_batch_size: int | None = None
    decoupled: bool = False
    arguments: tuple[str, ...] = ()
    profiles: tuple[Profile, ...] = ()
    built_with: str | None = None
    version_compatible: bool = False

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
        return not self.unbatchable and self.max_batch_size != 0
