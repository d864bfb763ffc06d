"""Rules about shapes in a config and in its ONNX model. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tooling.check.finding import Finding
from tooling.check.rules.kinds import load
from tooling.check.rules.onnx_pair import SOURCE, Pair, X, example
from tooling.check.wording import shape_text, shapes_differ
from tooling.signature.spec import TensorSpec

_BATCH_NAMES: Final = ("batch", "batch_size", "b", "n", "bs", "batchsize")

SCALAR = load(
    "scalar-dims",
    "A scalar of the model is `dims: [ 1 ]` without batching.",
    "dims cannot be empty, and there is only one element.",
    example(
        'name: "x" data_type: TYPE_FP32 dims: [ 2 ]',
        "x: FP32 [] -> y: FP32 []",
        "max_batch_size: 0",
        'output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }',
    ),
    SOURCE,
)
FIRST_AXIS = load(
    "first-axis-fixed",
    "With max_batch_size, the first axis of a tensor must be free.",
    "Triton stacks requests along it. This holds for max_batch_size 1 too; only 0 switches it off. A reshape changes "
    "the axes "
    "behind the batch axis only.",
    example(X, "x: FP32 [1, 8] -> y: FP32 [1, 8]"),
    SOURCE,
)
RANK = load(
    "tensor-rank",
    "A tensor has another number of axes in the config than in the model.",
    "With max_batch_size dims leave the batch axis out, with 0 they include it. A tensor with nothing but the batch "
    "axis is "
    "`dims: [ 1 ]` and `reshape { }`.",
    example('name: "x" data_type: TYPE_FP32 dims: [ 8, 1 ]'),
    SOURCE,
)
DIMS = load(
    "tensor-dims",
    "A dim of the config does not fit the model's.",
    "An input may be narrower than the model (-1 in the model takes any number) and never wider. An output must be "
    "repeated "
    "exactly as ONNX Runtime reports it, -1 included: what its own inference knows to be 384 is 384.",
    example('name: "x" data_type: TYPE_FP32 dims: [ -1 ]'),
    SOURCE,
)
RAGGED = load(
    "ragged-rank",
    "A ragged input must have one free axis in the model.",
    "With allow_ragged_batch the requests' elements are put one behind the other into a tensor of one axis.",
    example('name: "x" data_type: TYPE_FP32 dims: [ 8 ] allow_ragged_batch: true'),
    SOURCE,
)
RULES = (SCALAR, FIRST_AXIS, RANK, DIMS, RAGGED)


def dims_of(pair: Pair, what: str, index: int, tensor: Any, spec: TensorSpec) -> Iterator[Finding]:
    """Whether the dims of one tensor, or what its reshape makes of them, are the model's."""
    reshaped = tensor.HasField("reshape")
    dims = list(tensor.reshape.shape if reshaped else tensor.dims)
    if not tensor.dims:
        return
    if not spec.dims:
        if any(dim != 1 for dim in dims):
            yield pair.model.find(
                SCALAR,
                f"{what} {tensor.name} is a scalar in the model, and dims are {dims}",
                what,
                index,
                "dims",
                says=f"unable to load model '{pair.name}', scalar tensor '{tensor.name}', should only provide 1 in "
                "the model configuration when the model doesn't support batching. Model configuration provided: "
                f"{shape_text(dims)}.",
                hint="dims: [ 1 ]",
            )
    elif pair.top > 0 and spec.dims[0] != -1:
        yield _first_axis(pair, what, index, tensor, spec)
    else:
        full = [-1, *dims] if pair.top > 0 else dims
        if len(full) != len(spec.dims) or any(
            have != want and (have != -1 or what == "output") for have, want in zip(spec.dims, full, strict=True)
        ):
            yield _shape_differs(pair, what, index, tensor, spec, full)


def _first_axis(pair: Pair, what: str, index: int, tensor: Any, spec: TensorSpec) -> Finding:
    first = spec.dims[0]
    text = f"{what} {tensor.name}: first dimension is {first}, must be dynamic (-1) for max_batch_size: {pair.top}"
    text += f" (axis 0 is {first} in {shape_text(spec.dims)})"
    if pair.top == 1:
        text += "; max_batch_size: 1 still requires a dynamic first axis"
    if tensor.HasField("reshape"):
        text += "; reshape does not replace a dynamic batch axis"
    axes = pair.graph.axes.get(tensor.name, ())
    batch = next((axis for axis, name in enumerate(axes) if axis and name and name.lower() in _BATCH_NAMES), None)
    hint = "export with a dynamic first axis, or use max_batch_size: 0 and whole shapes"
    if batch is not None:
        hint = f"symbolic axis named like a batch found at axis {batch}: transpose at export (batch_first)"
    return pair.model.find(
        FIRST_AXIS,
        text,
        what,
        index,
        says=f"model '{pair.name}', tensor '{tensor.name}': for the model to support batching the shape should have "
        "at least 1 "
        f"dimension and the first dimension must be -1; but shape expected by the model is {shape_text(spec.dims)}",
        hint=hint,
    )


def _shape_differs(pair: Pair, what: str, index: int, tensor: Any, spec: TensorSpec, full: Sequence[int]) -> Finding:
    name, ranks = tensor.name, (len(spec.dims), len(full))
    right = list(spec.dims[1:] if pair.top > 0 else spec.dims)
    says = shapes_differ(pair.name, name, spec.dims, full, batching=pair.top > 0)
    where, fix = (what, index, "dims"), ("" if tensor.HasField("reshape") else f"{what}[{index}].dims={right}")
    if ranks[0] == ranks[1]:
        axis = next(i for i, (have, want) in enumerate(zip(spec.dims, full, strict=True)) if have != want)
        fixed = "sequence length is fixed: " if spec.dims[axis] > 0 and axis == 1 else ""
        exactly = "; an output must be repeated exactly" if what == "output" else ""
        return pair.model.find(
            DIMS,
            f"{what} {name} axis {axis}: model {spec.dims[axis]}, config {full[axis]}{exactly}",
            *where,
            says=says,
            hint=f"{fixed}write dims: {right}, or export with a dynamic axis"
            if spec.dims[axis] > 0
            else f"write dims: {right}",
            fix=(fix,) if fix else (),
        )
    if pair.top == 0:
        text = f"{what} {name}: model has {ranks[0]} dimensions, config gives {ranks[1]}"
        text += "; max_batch_size is 0, dims must include the batch axis" if ranks[0] > ranks[1] else ""
        hint = f"dims: {right}" + (", or max_batch_size: 8" if pair.signature.can_batch else "")
    else:
        text = f"{what} {name}: model rank {ranks[0]}, config rank {ranks[1]} (with the batch axis)"
        hint = f"dims: {right}"
        if not right:
            hint, fix = "use reshape: dims: [ 1 ] reshape { shape: [ ] }", f"{what}[{index}].reshape={{}}"
    return pair.model.find(
        RANK, text, *where, says=says, hint=hint, fix=(fix,) if fix and (right or list(tensor.dims) == [1]) else ()
    )
