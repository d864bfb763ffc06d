"""What an ONNX file says beside its signature: versions, operators, outside data, lookups. Layer: signature."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tooling.errors import Problem, UsageError
from tooling.signature.onnx_file import parse_onnx, signature_of
from tooling.signature.onnx_wire import unusable
from tooling.signature.spec import ModelSignature

_DIFFERENT_TYPES: Final = re.compile(
    r"\(op_type:(\w+)[^)]*\): \[TypeInferenceError\] "
    r"Inferred elem type differs from existing elem type: \((\d+)\) vs \((\d+)\)"
)
_SAME_VALUES: Final = ("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten")


@dataclass(frozen=True, slots=True)
class OutsideData:
    """Weights kept in another file: its path relative to the ONNX file, and how many bytes it must have."""

    location: str
    bytes_needed: int


@dataclass(frozen=True, slots=True)
class Contradiction:
    """An operator whose output is declared with another type than it has; ONNX Runtime refuses the file."""

    operator: str
    node: str
    output: str
    is_type: str
    declared: str


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """One ONNX file. Without a `signature`, `problems` say why.

    `opsets` are by domain ("" is ai.onnx), `axes` the axis names of each input and output, `operators` (domain, type)
    those that are no functions of the file, `weight_types` the types of its weights, `lookups` the rows of the
    table that an input's values index.
    """

    path: Path
    signature: ModelSignature | None
    problems: tuple[Problem, ...] = ()
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)
    axes: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    operators: frozenset[tuple[str, str]] = frozenset()
    outside: tuple[OutsideData, ...] = ()
    weight_types: frozenset[str] = frozenset()
    lookups: Mapping[str, int] = field(default_factory=dict)
    contradictions: tuple[Contradiction, ...] = ()


def read_graph(path: Path) -> OnnxGraph:
    """Everything there is to know of an ONNX file without its weights.

    Raises UsageError for a file that is not a whole ONNX model; tensors that cannot be served are `problems`.
    """
    from google.protobuf.message import DecodeError

    try:
        model = parse_onnx(path)
        facts: dict[str, Any] = {
            "ir_version": int(model.ir_version),
            "opsets": {_domain(entry.domain): int(entry.version) for entry in model.opset_import},
            "axes": {value.name: _axes(value) for value in (*model.graph.input, *model.graph.output)},
            "operators": frozenset((_domain(node.domain), node.op_type) for node in model.graph.node)
            - {(_domain(function.domain), function.name) for function in model.functions},
            "outside": _outside(model.graph),
            "weight_types": _weight_types(model.graph),
            "lookups": _lookups(model.graph),
            "contradictions": _contradictions(model),
        }
    except (DecodeError, ValueError) as error:
        raise unusable(path, str(error)) from error
    try:
        return OnnxGraph(path, signature_of(path, model), **facts)
    except UsageError as error:
        return OnnxGraph(path, None, error.problems, **facts)
    except (DecodeError, ValueError) as error:
        raise unusable(path, str(error)) from error


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _axes(value: Any) -> tuple[str | None, ...]:
    return tuple(dim.dim_param or None for dim in value.type.tensor_type.shape.dim)


def _outside(graph: Any) -> tuple[OutsideData, ...]:
    """The files that hold weights, each with the bytes the last of its tensors ends at."""
    from onnx import TensorProto

    needed: dict[str, int] = {}
    for tensor in graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        end = sum(int(entries[key]) for key in ("offset", "length") if entries.get(key, "").isdecimal())
        location = entries.get("location", "")
        needed[location] = max(needed.get(location, 0), end)
    return tuple(OutsideData(location, size) for location, size in sorted(needed.items()))


def _weight_types(graph: Any) -> frozenset[str]:
    """The ONNX names of the element types, such as FLOAT16."""
    from onnx import TensorProto

    return frozenset(TensorProto.DataType.Name(tensor.data_type) for tensor in graph.initializer)


def _lookups(graph: Any) -> dict[str, int]:
    """Inputs whose values are row numbers of a table in the file, with its rows: token ids of an embedding."""
    tables = {tensor.name: int(tensor.dims[0]) for tensor in graph.initializer if len(tensor.dims) >= 2}
    origin = {value.name: value.name for value in graph.input}
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in _SAME_VALUES and node.input and node.input[0] in origin and node.output:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type == "Gather" and len(node.input) == 2 and node.input[0] in tables and node.input[1] in origin:
            name = origin[node.input[1]]
            found[name] = min(found.get(name, tables[node.input[0]]), tables[node.input[0]])
    return found


def _contradictions(model: Any) -> tuple[Contradiction, ...]:
    """Declared types that the operators contradict; only asked for where a whole inference ends in that error."""
    from onnx import TensorProto, shape_inference

    try:
        shape_inference.infer_shapes(model, strict_mode=True)
        return ()
    except (shape_inference.InferenceError, ValueError) as error:
        matches = _DIFFERENT_TYPES.findall(str(error))
    found = []
    names = TensorProto.DataType.Name
    for operator, inferred, declared in matches:
        outputs = [
            (node.name, output) for node in model.graph.node if node.op_type == operator for output in node.output
        ]
        of_type = [pair for pair in outputs if _element_type(model.graph, pair[1]) == int(declared)]
        node, output = next(iter(of_type), ("", ""))
        found.append(Contradiction(operator, node, output, names(int(inferred)).lower(), names(int(declared)).lower()))
    return tuple(found)


def _element_type(graph: Any, name: str) -> int:
    values = (*graph.value_info, *graph.output)
    return next((int(value.type.tensor_type.elem_type) for value in values if value.name == name), 0)
