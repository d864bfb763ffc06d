"""The signature of an OpenVINO IR: its XML, streamed. Layer: signature.

Document types, and with them entities, are refused; weights are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.parsers import expat

from tooling.errors import Problem, UsageError
from tooling.signature.spec import ModelSignature, TensorSpec

# Element types of the IR that Triton's OpenVINO backend serves (not f64, bf16, string).
_DATA_TYPES: Final = {
    "boolean": "TYPE_BOOL",
    **{f"u{bits}": f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"i{bits}": f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
    "f16": "TYPE_FP16",
    "f32": "TYPE_FP32",
}
_PORT_TYPES: Final = {"BOOL": "boolean", "FP16": "f16", "FP32": "f32", "FP64": "f64", "BF16": "bf16"}
_DEEPEST: Final = 64  # elements inside each other; sub-graphs of loops nest about ten a level
_OLDEST: Final = 10  # IR versions before have layers of another kind
_NAMED_SINCE: Final = 11  # from here on tensors have names of their own; before, the layers' names stand for them


@dataclass(slots=True)
class _Port:
    precision: str
    names: tuple[str, ...]
    dims: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Layer:
    name: str
    kind: str
    shape: str | None = None
    element_type: str | None = None
    inputs: dict[str, _Port] = field(default_factory=dict)
    outputs: dict[str, _Port] = field(default_factory=dict)


class _Refused(Exception):
    """The XML holds what a model never needs."""


class _Reader:
    """Collects layers and edges of the outermost graph while expat streams the file."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.layers: dict[str, _Layer] = {}
        self.edges: dict[tuple[str, str], tuple[str, str]] = {}
        self._path: list[str] = []
        self._layer: _Layer | None = None
        self._port: _Port | None = None
        self._text: list[str] = []

    def parse(self, path: Path) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        with path.open("rb") as file:
            parser.ParseFile(file)

    def _refuse_doctype(self, *_: object) -> None:
        raise _Refused("a document type declaration")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) > _DEEPEST:
            raise _Refused(f"more than {_DEEPEST} elements inside each other")
        place = "/".join(self._path)
        if place == "net":
            self.version = int(attributes.get("version", "0"))
        elif place == "net/layers/layer":
            self._layer = self.layers[attributes["id"]] = _Layer(attributes["name"], attributes["type"])
        elif place == "net/layers/layer/data" and self._layer:
            self._layer.shape, self._layer.element_type = attributes.get("shape"), attributes.get("element_type")
        elif place in ("net/layers/layer/input/port", "net/layers/layer/output/port") and self._layer:
            self._port = _Port(attributes.get("precision", ""), _names(attributes.get("names", "")))
            side = self._layer.inputs if self._path[-2] == "input" else self._layer.outputs
            side[attributes["id"]] = self._port
        elif place == "net/edges/edge":
            source = attributes["from-layer"], attributes["from-port"]
            self.edges[attributes["to-layer"], attributes["to-port"]] = source
        self._text.clear()

    def _characters(self, text: str) -> None:
        if self._path[-1] == "dim":
            self._text.append(text)

    def _end(self, tag: str) -> None:
        if tag == "dim" and self._port and len(self._path) == 6:
            self._port.dims.append("".join(self._text).strip())
        elif tag == "port":
            self._port = None
        elif tag == "layer" and len(self._path) == 3:
            self._layer = None
        self._path.pop()


def read_openvino(path: Path) -> ModelSignature:
    """Parameters and results of an IR. Raises UsageError for another file, and for tensors Triton cannot serve."""
    reader = _Reader()
    try:
        reader.parse(path)
    except (expat.ExpatError, KeyError, ValueError, _Refused) as error:
        got = f"no attribute {error}" if isinstance(error, KeyError) else str(error)
        raise _unusable(path, got) from error
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror, expected="an OpenVINO IR") from error
    if reader.version is None or reader.version < _OLDEST:
        raise _unusable(path, "no <net>" if reader.version is None else f"IR version {reader.version}")
    problems: list[Problem] = []
    inputs = [_parameter(path, reader, layer, problems) for layer in _of_kind(reader, "Parameter")]
    outputs = [_result(path, reader, key, problems) for key, layer in reader.layers.items() if layer.kind == "Result"]
    if not outputs:
        problems.append(Problem("the model has no result", where=str(path), hint="convert the model again"))
    if problems:
        raise UsageError(problems=problems)
    return ModelSignature(
        path,
        "openvino",
        tuple(spec for spec in inputs if spec),
        tuple(spec for spec in outputs if spec),
        ir_version=reader.version,
    )


def _of_kind(reader: _Reader, kind: str) -> list[_Layer]:
    return [layer for layer in reader.layers.values() if layer.kind == kind]


def _parameter(path: Path, reader: _Reader, layer: _Layer, problems: list[Problem]) -> TensorSpec | None:
    port = next(iter(layer.outputs.values()), _Port("", ()))
    dims = layer.shape.split(",") if layer.shape else port.dims if layer.shape is None else []
    name = _name(path, reader, port.names, layer.name, problems)
    return _spec(path, "input", name, layer.element_type or _element(port.precision), dims, problems)


def _result(path: Path, reader: _Reader, key: str, problems: list[Problem]) -> TensorSpec | None:
    """A result has its type and shape from its own port, its name from the port that feeds it."""
    layer = reader.layers[key]
    number, port = next(iter(layer.inputs.items()), ("0", _Port("", ())))
    source, source_port = reader.edges.get((key, number), (key, number))
    producer = reader.layers.get(source, layer)
    feeding = producer.outputs.get(source_port, port)
    name = _name(path, reader, feeding.names, producer.name, problems)
    return _spec(
        path, "output", name, _element(feeding.precision or port.precision), port.dims or feeding.dims, problems
    )


def _names(text: str) -> tuple[str, ...]:
    r"""Names of a tensor, separated by commas; a comma inside a name is written `\,`."""
    return tuple(name.replace("\\,", ",") for name in re.split(r"(?<!\\),", text) if name)


def _name(path: Path, reader: _Reader, names: tuple[str, ...], layer: str, problems: list[Problem]) -> str:
    """The name OpenVINO answers with: the first in order of a tensor's names."""
    if names or (reader.version or 0) < _NAMED_SINCE:
        return min(names, default=layer)
    problems.append(
        Problem(
            "a tensor has no name",
            where=str(path),
            got=f"layer `{layer}`",
            expected="names on every input and output",
            hint="name it before the model is saved: `model.input(0).set_names({…})`",
        )
    )
    return layer


def _element(precision: str) -> str:
    """A port's precision (`I64`, `FP32`) as the element type it stands for (`i64`, `f32`)."""
    return _PORT_TYPES.get(precision, precision.lower())


def _spec(
    path: Path, what: str, name: str, element: str, dims: list[str], problems: list[Problem]
) -> TensorSpec | None:
    where = str(path)
    if element not in _DATA_TYPES:
        problems.append(
            Problem(
                f"{what} `{name}` has a type that Triton's OpenVINO backend does not serve",
                where=where,
                got=element or "none",
                expected=", ".join(_DATA_TYPES),
                hint="convert the model with another input or output type",
            )
        )
        return None
    lengths = ["-1" if dim.strip() in ("?", "-1", "..") else dim.strip() for dim in dims]
    if not all(re.fullmatch(r"-1|\d+", length) for length in lengths):
        problems.append(
            Problem(
                f"{what} `{name}` has an axis with bounds",
                where=where,
                got=f"shape {','.join(dims)}",
                expected="a fixed length or any length: no config fits an axis with bounds",
                hint="convert the model with -1 there",
            )
        )
        return None
    return TensorSpec(name, _DATA_TYPES[element], tuple(map(int, lengths)))


def _unusable(path: Path, got: str) -> UsageError:
    return UsageError(
        "not an OpenVINO IR",
        where=path,
        got=got,
        expected=f"the XML file of an IR, version {_OLDEST} or later",
        hint="convert the model again: `openvino.save_model(model, 'model.xml')`",
    )
