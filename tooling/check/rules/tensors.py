"""Rules about inputs and outputs that need no model file: names, types, dims, reshape. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

from tooling.check.finding import Evidence, Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load
from tooling.config.proto import enum_text, pb

_SOURCE: Final = "ValidateModelIOConfig (core)"
_DIMS_TEXT: Final = "must be integer >= 1, or -1 to indicate a variable-size dimension"
_LARGEST: Final = 2**63 - 1


def _example(tensor: str, before: str = "max_batch_size: 8") -> str:
    return f'{before}\ninput {{ {tensor} }}\noutput {{ name: "y" data_type: TYPE_FP32 dims: [ 8 ] }}'


NO_NAME = load(
    "tensor-without-name",
    "An input or output has no name.",
    "Requests give tensors by name; so does the backend.",
    _example("data_type: TYPE_FP32 dims: [ 8 ]"),
    _SOURCE,
)
NO_TYPE = load(
    "tensor-without-type",
    "An input or output has no data_type.",
    "The type of a tensor is never guessed from the model once the tensor is listed.",
    _example('name: "x" dims: [ 8 ]'),
    _SOURCE,
)
NO_DIMS = load(
    "tensor-without-dims",
    "An input or output has no dims.",
    "dims may not be empty: a value for each request is `dims: [ 1 ]`, with `reshape { }` where the model has only the "
    "batch axis.",
    _example('name: "x" data_type: TYPE_FP32'),
    _SOURCE,
)
SCALAR_RESHAPE = load(
    "reshape-empty-without-batching",
    "An empty reshape makes a scalar, which only a batching model has.",
    "With `max_batch_size: 0` the reshaped tensor would have no axis at all.",
    _example('name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { }', "max_batch_size: 0"),
    _SOURCE,
)
DIMS = load(
    "dims-out-of-range",
    "A dimension is 0 or below -1.",
    "A dimension is a length of 1 or more, or -1 for any length.",
    _example('name: "x" data_type: TYPE_FP32 dims: [ 0 ]'),
    _SOURCE,
)
RESHAPE_DIMS = load(
    "reshape-out-of-range",
    "A dimension of a reshape is 0 or below -1.",
    "A dimension is a length of 1 or more, or -1 for any length.",
    _example('name: "x" data_type: TYPE_FP32 dims: [ 8 ] reshape { shape: [ 0 ] }'),
    _SOURCE,
)
OVERFLOW = load(
    "element-count-overflow",
    "The element count of a tensor is beyond 64 bits.",
    "Since 26.03 Triton refuses it; before, the count wraps around.",
    _example(
        'name: "x" data_type: TYPE_FP32 dims: [ 4294967296, 4294967296 ] reshape { shape: [ 4294967296, 4294967296 ] }'
    )
    + "\n--- options\n--release 26.03",
    "GetElementCount (core)",
    evidence=Evidence.READ,
    since="26.03",
)
RESHAPE_SIZE = load(
    "reshape-other-size",
    "dims and reshape hold another number of elements.",
    "A reshape moves no data. Between axes of any length the products must match piece by piece: [2, 4, -1, 6] may "
    "become "
    "[8, -1, 1, 6]. An empty reshape is for dims of one element.",
    _example('name: "x" data_type: TYPE_FP32 dims: [ 8 ] reshape { shape: [ 2, 5 ] }'),
    _SOURCE,
)
RESHAPE_FREE = load(
    "reshape-other-free-axes",
    "dims and reshape have another number of -1.",
    "Triton could not tell which length goes where.",
    _example('name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: [ -1 ] }'),
    _SOURCE,
)
FORMAT = load(
    "image-format-dims",
    "FORMAT_NHWC and FORMAT_NCHW are for three dims.",
    "Height, width and channels; the batch axis is left out.",
    _example('name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 8 ]'),
    _SOURCE,
)
SHAPE_TENSOR = load(
    "shape-tensor-outside-tensorrt",
    "is_shape_tensor is for TensorRT plans only.",
    "Shape tensors are a notion of TensorRT engines.",
    _example('name: "x" data_type: TYPE_FP32 dims: [ 8 ] is_shape_tensor: true'),
    _SOURCE,
)
NON_LINEAR = load(
    "non-linear-format-outside-tensorrt",
    "is_non_linear_format_io is for TensorRT plans only.",
    "Other backends take linear memory.",
    _example('name: "x" data_type: TYPE_FP32 dims: [ 8 ] is_non_linear_format_io: true'),
    _SOURCE,
)
NON_LINEAR_DIMS = load(
    "non-linear-format-dims",
    "A non-linear format is for three dims.",
    "Vectorised formats are defined for images: C, H and W.",
    'platform: "tensorrt_plan"\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] is_non_linear_format_io: true }',
    _SOURCE,
    evidence=Evidence.READ,
)
TWICE = advice(
    "tensor-twice",
    "A tensor is listed twice.",
    "The core takes the first and says nothing; backends count both, and ONNX Runtime's then refuses the number of "
    "inputs.",
    'backend: "python"\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'input { name: "x" data_type: TYPE_INT32 dims: [ 4 ] }\n--- 1/model.onnx\nabsent\n--- 1/model.py\nclass '
    "TritonPythonModel:\n    def execute(self, requests):\n        return []",
    "ValidateModelIOConfig (core) looks at no names",
    evidence=Evidence.RUN,
)
RULES = (
    *(NO_NAME, NO_TYPE, NO_DIMS, SCALAR_RESHAPE, DIMS, RESHAPE_DIMS, OVERFLOW, RESHAPE_SIZE, RESHAPE_FREE, FORMAT),
    *(SHAPE_TENSOR, NON_LINEAR, NON_LINEAR_DIMS, TWICE),
)


def tensors(model: Model) -> Iterator[Finding]:
    """Inputs, then outputs, in the order Triton looks at them."""
    config = model.completed
    for what, listed in (("input", config.input), ("output", config.output)):
        for index, tensor in enumerate(listed):
            yield from _tensor(model, what, index, tensor)


def duplicates(model: Model) -> Iterator[Finding]:
    """Names that stand twice, about which the server says nothing. TensorRT's backend does."""
    if model.config.backend == "tensorrt":
        return
    for what, listed in (("input", model.completed.input), ("output", model.completed.output)):
        seen: set[str] = set()
        for index, tensor in enumerate(listed):
            if tensor.name and tensor.name in seen:
                yield model.find(
                    TWICE, f"{what} {tensor.name} is listed twice; the first entry counts", what, index, hint="keep one"
                )
            seen.add(tensor.name)


def _tensor(model: Model, what: str, index: int, tensor: Any) -> Iterator[Finding]:
    """One tensor; a rule that another one rests on comes first."""
    suffix = f" for {model.config.name}"
    start = f"model {what} "
    if not tensor.name:
        yield model.find(
            NO_NAME, f"{what} {index} has no name", what, index, says=f"{start}must specify 'name'{suffix}"
        )
    named = f"{start}'{tensor.name}' "
    if tensor.data_type == pb().TYPE_INVALID:
        known = _declared(model, what, tensor.name)
        yield model.find(
            NO_TYPE,
            f"{what} {tensor.name} has no data_type",
            what,
            index,
            says=f"{named}must specify 'data_type'{suffix}",
            hint=f"data_type: {known.data_type}" if known else None,
            fix=(f"{what}[{index}].data_type={known.data_type}",) if known else (),
        )
    if not tensor.dims:
        yield model.find(
            NO_DIMS,
            f"{what} {tensor.name} has no dims",
            what,
            index,
            says=f"{named}must specify 'dims'{suffix}",
            hint="a value for each request is `dims: [ 1 ]`",
        )
    yield from _shapes(model, what, index, tensor)
    yield from _formats(model, what, index, tensor)


def _declared(model: Model, what: str, name: str) -> Any:
    """The tensor of this name in the model file, if there is one to read."""
    if model.signature is None:
        return None
    listed = model.signature.inputs if what == "input" else model.signature.outputs
    return next((tensor for tensor in listed if tensor.name == name), None)


def _shapes(model: Model, what: str, index: int, tensor: Any) -> Iterator[Finding]:
    suffix, named = f" for {model.config.name}", f"model {what} '{tensor.name}' "
    dims, batching = list(tensor.dims), model.completed.max_batch_size != 0
    reshape = list(tensor.reshape.shape) if tensor.HasField("reshape") else None
    if reshape == [] and not batching:
        yield model.find(
            SCALAR_RESHAPE,
            f"{what} {tensor.name}: an empty reshape needs batching, and max_batch_size is 0",
            what,
            index,
            "reshape",
            says=f"{named}cannot have empty reshape for non-batching model as scalar tensors are not supported{suffix}",
            hint="take the reshape out",
            fix=(f"-{what}[{index}].reshape",),
        )
    for axis, dim in enumerate(dims):
        if dim < 1 and dim != -1:
            yield model.find(
                DIMS,
                f"{what} {tensor.name}: dims {dims} holds {dim}",
                what,
                index,
                "dims",
                axis,
                says=f"{named}dimension {_DIMS_TEXT}{suffix}",
                hint="-1 is any length",
            )
    if reshape is None:
        return
    for axis, dim in enumerate(reshape):
        if dim < 1 and dim != -1:
            yield model.find(
                RESHAPE_DIMS,
                f"{what} {tensor.name}: reshape {reshape} holds {dim}",
                what,
                index,
                "reshape",
                "shape",
                axis,
                says=f"{named}reshape dimensions {_DIMS_TEXT}{suffix}",
            )
    if dims and all(dim > 0 or dim == -1 for dim in (*dims, *reshape)) and (reshape or batching):
        yield from _reshape(model, what, index, tensor, dims, reshape)


def _reshape(
    model: Model, what: str, index: int, tensor: Any, dims: list[int], reshape: list[int]
) -> Iterator[Finding]:
    """Whether the reshape keeps the elements; the values are sound by now."""
    where, named = (what, index, "reshape"), f"model {what} '{tensor.name}' "
    suffix = f" for {model.config.name}"
    pair = f"{what} {tensor.name}: dims {dims} and reshape {reshape}"
    if OVERFLOW.holds_for(model.target.release.tag):
        for kind, shape in (("dims", dims), ("reshape", reshape)):
            if -1 not in shape and prod(shape) > _LARGEST:
                yield model.find(
                    OVERFLOW,
                    f"{what} {tensor.name}: {kind} {shape} has more elements than 64 bits count",
                    *where,
                    says=f"element count for tensor '{tensor.name} {kind}' exceeds maximum size of {_LARGEST}{suffix}",
                )
                return
    same_size = _count(dims) == _count(reshape) or (not reshape and _count(dims) == 1)
    if same_size and dims.count(-1) != reshape.count(-1):
        yield model.find(
            RESHAPE_FREE,
            f"{pair} have another number of -1",
            *where,
            says=f"{named}has different number of variable-size dimensions for dims and reshape{suffix}",
        )
    elif not same_size or (-1 in dims and _pieces(dims) != _pieces(reshape)):
        yield model.find(
            RESHAPE_SIZE,
            f"{pair} hold another number of elements",
            *where,
            says=f"{named}has different size for dims and reshape{suffix}",
        )


def _count(shape: Sequence[int]) -> int:
    """Triton's element count: -1 with an axis of any length, 0 without an axis, in 64 bits."""
    if -1 in shape:
        return -1
    return prod(shape) & (2**64 - 1) if shape else 0


def _pieces(shape: Sequence[int]) -> list[int]:
    """Element counts of the runs between the axes of any length."""
    pieces = [1]
    for dim in shape:
        if dim == -1:
            pieces.append(1)
        else:
            pieces[-1] *= dim
    return pieces


def _formats(model: Model, what: str, index: int, tensor: Any) -> Iterator[Finding]:
    suffix, tensorrt = f" for {model.config.name}", model.config.platform == "tensorrt_plan"
    if what == "input" and tensor.format != pb().ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
        yield model.find(
            FORMAT,
            f"input {tensor.name}: {enum_text(pb().ModelInput.Format, tensor.format)} needs 3 dims, and there are "
            f"{len(tensor.dims)}",
            what,
            index,
            "format",
            says=f"model input NHWC/NCHW require 3 dims{suffix}",
        )
    if tensor.is_shape_tensor and not tensorrt:
        yield model.find(
            SHAPE_TENSOR,
            f"{what} {tensor.name}: is_shape_tensor is for TensorRT plans only",
            what,
            index,
            "is_shape_tensor",
            says=f"shape tensors are only supported for TensorRT platform{suffix}",
            fix=(f"-{what}[{index}].is_shape_tensor",),
        )
    if tensor.is_non_linear_format_io and not tensorrt:
        yield model.find(
            NON_LINEAR,
            f"{what} {tensor.name}: is_non_linear_format_io is for TensorRT plans only",
            what,
            index,
            "is_non_linear_format_io",
            says=f"Non-linear IO format is only supported for the TensorRT platform{suffix}",
            fix=(f"-{what}[{index}].is_non_linear_format_io",),
        )
    elif tensor.is_non_linear_format_io and len(tensor.dims) != 3:
        yield model.find(
            NON_LINEAR_DIMS,
            f"{what} {tensor.name}: a non-linear format needs 3 dims",
            what,
            index,
            "dims",
            says=f"Non-linear IO format {what} requires 3 dims{suffix}",
        )
