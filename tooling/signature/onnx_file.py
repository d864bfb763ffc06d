"""The signature of an ONNX file, as ONNX Runtime's session will report it. Layer: signature."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tooling.errors import Problem, UsageError
from tooling.signature.onnx_session import session_outputs
from tooling.signature.onnx_wire import skeleton, unusable
from tooling.signature.spec import ModelSignature, TensorSpec

# ONNX element types that Triton's ONNX Runtime backend serves: BFLOAT16 since 26.03, as `check` knows.
_DATA_TYPES: Final = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FLOAT16": "TYPE_FP16",
    "BFLOAT16": "TYPE_BF16",
    "FLOAT": "TYPE_FP32",
    "DOUBLE": "TYPE_FP64",
    "STRING": "TYPE_STRING",
}
_OVERRIDABLE_SINCE_IR: Final = 4  # before, initializers among the graph inputs were constants

_Shape = tuple[int, ...] | None


def read_onnx(path: Path) -> ModelSignature:
    """The inputs and outputs of an ONNX file; weights are neither read nor held.

    Triton compares output dims exactly with what ONNX Runtime reports: the declared shape merged with the inferred one
    (a declared symbol that inference knows to be 384 is 384). So shape inference runs here too, and what it leaves open
    a session says, where ONNX Runtime is installed: its optimiser may know more.
    Raises UsageError for a file that is not a whole ONNX model or has tensors that Triton cannot serve, all at once.
    """
    from google.protobuf.message import DecodeError

    try:
        return signature_of(path, parse_onnx(path))
    except (DecodeError, ValueError) as error:  # other protobuf, undefined enum numbers, names that are not UTF-8
        raise unusable(path, str(error)) from error


def signature_of(path: Path, model: Any) -> ModelSignature:
    """The signature of a parsed file; `model` is used up. Raises UsageError as `read_onnx` does."""
    graph = model.graph
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    inputs = [v for v in graph.input if v.name not in constants or model.ir_version >= _OVERRIDABLE_SINCE_IR]
    _refuse_types(path, "input", inputs)
    outputs = _session_outputs(path, model)
    return ModelSignature(
        path=path,
        backend="onnxruntime",
        inputs=tuple(_spec(v, _shape(v) or (), optional=v.name in constants) for v in inputs),
        outputs=outputs,
        opset=next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None),
        ir_version=model.ir_version,
    )


def parse_onnx(path: Path) -> Any:
    """The model without the data of its large weights. Raises UsageError for a file that is not a whole ONNX model."""
    import onnx

    model = onnx.ModelProto.FromString(skeleton(path))
    missing = [
        name
        for name, there in (
            ("graph", model.HasField("graph")),
            ("outputs", bool(model.graph.output)),
            ("operator set", bool(model.opset_import)),
        )
        if not there
    ]
    if missing:
        raise unusable(path, f"a file without {' and '.join(missing)}")
    return model


def _session_outputs(path: Path, model: Any) -> tuple[TensorSpec, ...]:
    """Declared and inferred shapes merged; where they leave an axis open, as a session sees it. `model` is used up."""
    from onnx import shape_inference

    declared = list(model.graph.output)
    del model.graph.output[:]
    for value in declared:
        model.graph.output.add().name = value.name
    try:
        inferred = list(shape_inference.infer_shapes(model).graph.output)
    except shape_inference.InferenceError as error:
        raise UsageError("the ONNX graph contradicts itself", where=path, got=str(error)) from error
    typed = [a if a.HasField("type") else b for a, b in zip(declared, inferred, strict=True)]
    _refuse_types(path, "output", typed)
    merged = [_merge(_shape(a), _shape(b)) for a, b in zip(declared, inferred, strict=True)]
    shapes = merged
    if _leaves_open(model, inferred):
        del model.graph.output[:]
        model.graph.output.extend(declared)
        seen = session_outputs(path, model)
        shapes = [seen.get(value.name, shape) for value, shape in zip(declared, merged, strict=True)]
    unknown = [
        Problem(
            f"the shape of output `{value.name}` is not known",
            where=str(path),
            got="no shape in the file, or one that its own operators contradict",
            expected="a shape with a known number of axes (Triton would take the output for a scalar)",
            hint="export the model again with shapes",
        )
        for value, shape in zip(declared, shapes, strict=True)
        if shape is None
    ]
    if unknown:
        raise UsageError(problems=unknown)
    return tuple(_spec(value, shape or ()) for value, shape in zip(typed, shapes, strict=True))


def _leaves_open(model: Any, outputs: Iterable[Any]) -> bool:
    """Whether inference does not know an axis of an output: neither its length nor the input that it comes from."""
    axes = [dim for value in model.graph.input for dim in value.type.tensor_type.shape.dim]
    known = {dim.dim_param for dim in axes if dim.dim_param}
    return any(
        _shape(value) is None
        or any(not dim.HasField("dim_value") and dim.dim_param not in known for dim in value.type.tensor_type.shape.dim)
        for value in outputs
    )


def _merge(declared: _Shape, inferred: _Shape) -> _Shape:
    """What ONNX Runtime makes of the two: the more exact dim wins, contradicting dims are free, other ranks unknown."""
    if declared is None or inferred is None:
        return declared if inferred is None else inferred
    if len(declared) != len(inferred):
        return None
    return tuple(b if a == -1 else a if b in (-1, a) else -1 for a, b in zip(declared, inferred, strict=True))


def _shape(value: Any) -> _Shape:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else -1 for d in tensor.shape.dim)


def _type_name(value: Any) -> str:
    """`FLOAT` for a tensor of that element type, `sequence` or `map` or the like for anything else."""
    import onnx

    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return str(kind or "nothing").removesuffix("_type")
    return str(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type))


def _refuse_types(path: Path, what: str, values: Iterable[Any]) -> None:
    problems = [
        Problem(
            f"{what} `{value.name}` has a type that Triton's ONNX Runtime backend does not serve",
            where=str(path),
            got=_type_name(value),
            expected=f"a tensor of {', '.join(_DATA_TYPES)}",
            hint="cast it inside the graph, for example to FLOAT or FLOAT16",
        )
        for value in values
        if _type_name(value) not in _DATA_TYPES
    ]
    if problems:
        raise UsageError(problems=problems)


def _spec(value: Any, shape: tuple[int, ...], *, optional: bool = False) -> TensorSpec:
    return TensorSpec(value.name, _DATA_TYPES[_type_name(value)], shape, optional)
