"""Requests from a file: the body of an HTTP request, or the input data of perf_analyzer. Layer: check."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

from tooling.check.files import read_limited
from tooling.check.sizes import protocol_name
from tooling.config.proto import ModelConfig
from tooling.errors import UsageError, json_fault

_LARGEST: Final = 64 * 2**20
_FORM: Final = (
    '`{"inputs": [{"name": …, "datatype": "INT64", "shape": [1, 5], "data": […]}]}`, '
    'or perf_analyzer\'s `{"data": […]}`'
)

_KINDS: Final[Mapping[type, str]] = {list: "list", dict: "object", str: "text"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input of a request: its protocol type, its whole shape, and its values where they are given."""

    name: str
    data_type: str | None
    shape: tuple[int, ...]
    values: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request: inputs by name, the outputs asked for, and parameters such as `sequence_id`. `label` tells it apart.

    `answer` is an error text that a server gave to such a request.
    """

    label: str
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    request_id: str = ""
    answer: str | None = None


def read_requests(path: Path, config: ModelConfig) -> list[Request]:
    """The requests of a file for a model with this config.

    Raises UsageError for a file that is neither form.
    """
    source: bytes | None = b""
    try:
        source = read_limited(path, _LARGEST, pipe=True)
        if source is None:
            raise UsageError("too large for a request", where=path, expected=f"{_LARGEST} bytes at most")
        content = json.loads(source)
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror or str(error), expected="a file") from error
    except (ValueError, RecursionError) as error:
        raise UsageError("not a request", where=path, got=json_fault(error, source or b""), expected=_FORM) from error
    try:
        found = list(_requests(content, config))
    except ValueError as error:
        raise UsageError("not a request", where=path, got=str(error), expected=_FORM) from error
    if not found:
        raise UsageError("holds no request", where=path, expected=_FORM)
    return found


def _requests(content: Any, config: ModelConfig) -> Iterator[Request]:
    """Raises ValueError, with what is wrong, for a part that is of another kind than it must be."""
    if isinstance(content, dict) and "data" in content and "inputs" not in content and "name" not in content:
        yield from _perf_analyzer(_of(content, "data", list), config)
        return
    for index, entry in enumerate(content if isinstance(content, list) else [content]):
        yield _body(_object(entry, f"request {index}"), index)


def _of(content: Mapping[str, Any], key: str, kind: type[Any], default: Any = None) -> Any:
    """A part of an object, which must be of this kind."""
    value = content.get(key, default)
    if not isinstance(value, kind):
        raise ValueError(f"`{key}` that is no {_KINDS[kind]}" if key in content else f"no `{key}`")
    return value


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} that is no object")
    return value


def _lengths(shape: list[Any]) -> tuple[int, ...]:
    if not all(isinstance(length, int) and not isinstance(length, bool) for length in shape):
        raise ValueError(f"a shape that is not of whole numbers: {shape}"[:200])
    return tuple(shape)


def _body(content: Mapping[str, Any], index: int) -> Request:
    """The body of `POST /v2/models/NAME/infer`; a single input may stand alone."""
    alone = "name" in content and "shape" in content
    listed = [content] if alone else _of(content, "inputs", list, [] if "error" in content else None)
    tensors = [_tensor(_object(entry, f"input {number}")) for number, entry in enumerate(listed)]
    if not tensors and "error" not in content:
        raise ValueError("no inputs")
    outputs = [_object(entry, f"output {number}") for number, entry in enumerate(_of(content, "outputs", list, []))]
    return Request(
        str(content.get("id") or f"request {index}"),
        {tensor.name: tensor for tensor in tensors},
        tuple(_of(output, "name", str) for output in outputs),
        dict(_of(content, "parameters", dict, {})),
        str(content.get("id", "")),
        str(content["error"]) if "error" in content else None,
    )


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    values = tuple(_flat(entry["data"])) if "data" in entry else None
    data_type = None if entry.get("datatype") is None else _of(entry, "datatype", str)
    return Tensor(_of(entry, "name", str), data_type, _lengths(_of(entry, "shape", list)), values)


def _flat(data: Any) -> Iterator[Any]:
    """The elements of nested lists, in order."""
    pending = [data]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += reversed(item)
        else:
            yield item


def _perf_analyzer(steps: Sequence[Any], config: ModelConfig) -> Iterator[Request]:
    """Each step is a request of batch 1; steps inside a list are a sequence."""
    batching = config.max_batch_size > 0
    known = {tensor.name: tensor for tensor in config.input}
    for index, entry in enumerate(steps):
        for number, step in enumerate(entry if isinstance(entry, list) else [entry]):
            label = f"step {index}.{number}" if isinstance(entry, list) else f"step {index}"
            named = _object(step, label)
            inputs = {name: _step(name, value, known.get(name), batching) for name, value in named.items()}
            yield Request(label, inputs)


def _step(name: str, value: Any, tensor: Any, batching: bool) -> Tensor:
    content, shape = (value.get("content"), value.get("shape")) if isinstance(value, dict) else (value, None)
    values = tuple(_flat(content)) if content is not None else None
    if shape is None:
        dims = list(tensor.dims) if tensor is not None else []
        shape = dims if dims and -1 not in dims else [len(values or ())]
    dims = list(_lengths(shape)) if isinstance(shape, list) else [len(values or ())]
    data_type = protocol_name(tensor.data_type) if tensor is not None else None
    whole = [1, *dims] if batching else dims
    return Tensor(name, data_type, tuple(whole), values if values is None or len(values) == prod(whole) else None)
