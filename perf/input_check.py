"""A user's own request data, checked before perf_analyzer reads it: it crashes or hangs on some of it. Layer: bottom of
perf.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.errors import Problem, UsageError, json_fault, kind_of, suggest
from tooling.repository import read_text

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

_MOST = 20
_HALVES = ("TYPE_FP16", "TYPE_BF16")
_FLOATS = ("TYPE_FP32", "TYPE_FP64")
_SIZES = {"TYPE_BOOL": 1, "TYPE_FP16": 2, "TYPE_BF16": 2, "TYPE_FP32": 4, "TYPE_FP64": 8}
_RANGES = {
    **{f"TYPE_INT{8 * n}": (-(2 ** (8 * n - 1)), 2 ** (8 * n - 1) - 1) for n in (1, 2, 4, 8)},
    **{f"TYPE_UINT{8 * n}": (0, 2 ** (8 * n) - 1) for n in (1, 2, 4, 8)},
}
_SIZES |= {name: int(name.removeprefix("TYPE_").lstrip("UINT")) // 8 for name in _RANGES}


@dataclass(frozen=True, slots=True)
class Expected:
    """An input as the configuration has it: its dims leave the batch axis out where there is one."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False


def expected_inputs(config: ModelConfig) -> tuple[Expected, ...]:
    """The inputs of a request to this model."""
    from tooling.config.proto import pb

    names = pb().DataType.Name
    return tuple(Expected(i.name, names(i.data_type), tuple(i.dims), i.optional) for i in config.input)


def check_input_data(path: Path, inputs: Sequence[Expected], *, rows: int = 1) -> int:
    """Check a JSON file of requests for perf_analyzer and return the number of its steps.

    `rows` steps are stacked into each request. Raises UsageError with the first problems of the file: each is one that
    perf_analyzer refuses with a riddle, dies of, or waits for ever on.
    """
    data = _steps(path)
    streams = data if isinstance(data[0], list) else [data]
    problems: list[Problem] = []
    shapes: dict[str, tuple[int, ...]] = {}
    total = 0
    for number, stream in enumerate(streams):
        for place, step in enumerate(stream):
            total += 1
            where = f"{path}, data[{number}][{place}]" if streams is data else f"{path}, data[{place}]"
            found, seen = _step(step, inputs, where)
            problems += found
            for name, shape in seen.items() if rows > 1 else ():
                first = shapes.setdefault(name, shape)
                if shape != first:
                    what = f"rows of different shapes cannot be stacked into requests of {rows}"
                    problems.append(Problem(what, f"{where}, `{name}`", str(list(shape)), str(list(first))))
            if len(problems) >= _MOST:
                raise UsageError(problems=[*problems[:_MOST], Problem("and perhaps more", where=str(path))])
    if problems:
        raise UsageError(problems=problems)
    return total


def _steps(path: Path) -> list[Any]:
    """`data` of the file: objects, or lists of objects, at least one and none mixed."""
    if path.is_dir():
        raise UsageError("a directory", where=path, expected="one JSON file", hint='write {"data": [{INPUT: …}, …]}')
    text = read_text(path)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        got = error.msg if text.strip() else json_fault(error, text)
        raise UsageError("not JSON", where=f"{path}:{error.lineno}:{error.colno}", got=got) from None
    except (ValueError, RecursionError) as error:
        raise UsageError("not JSON", where=path, got=error) from None
    form = 'an object like {"data": [{"INPUT": {"content": [1, 2], "shape": [2]}}]}'
    if not isinstance(content, dict) or "data" not in content:
        raise UsageError("there is no `data`", where=path, got=kind_of(content), expected=form)
    data = content["data"]
    if not isinstance(data, list) or not data:
        got = "an empty list" if data == [] else kind_of(data)
        raise UsageError("`data` holds no requests", where=path, got=got, expected=f"a list with steps: {form}")
    kinds = {type(step) for step in data}
    if kinds == {list} and any(not stream for stream in data):
        raise UsageError("a stream without a step", where=path, expected="a list of objects")
    if kinds not in ({dict}, {list}) or (kinds == {list} and any(type(s) is not dict for t in data for s in t)):
        got = ", ".join(sorted({kind_of(step) for step in data}))
        raise UsageError("`data` is not a list of steps", where=path, got=f"a list with {got}", expected=form)
    answers = content.get("validation_data")
    if answers is not None and (not isinstance(answers, list) or len(answers) != len(data)):
        what = "`validation_data` does not go with `data`"
        raise UsageError(what, where=path, expected=f"a list of {len(data)}, one for each")
    return data


def _step(
    step: Mapping[str, Any], inputs: Sequence[Expected], where: str
) -> tuple[list[Problem], dict[str, tuple[int, ...]]]:
    """Problems of one step, and the shapes of its tensors."""
    known = {spec.name: spec for spec in inputs}
    problems = [
        Problem(f"the model has no input `{name}`", where, None, f"one of {', '.join(known)}", suggest(name, known))
        for name in step
        if name not in known and name != "model"
    ]
    problems += [
        Problem(f"the input `{spec.name}` is missing", where, ", ".join(step) or "nothing")
        for spec in inputs
        if spec.name not in step and not spec.optional
    ]
    shapes = {}
    for name, value in step.items():
        if name in known:
            shape, found = _tensor(value, known[name], f"{where}, `{name}`")
            problems += found
            if shape is not None:
                shapes[name] = shape
    return problems, shapes


def _tensor(value: Any, spec: Expected, where: str) -> tuple[tuple[int, ...] | None, list[Problem]]:
    """The shape of one tensor, None where it cannot be told, and what is wrong with it."""
    given = value if isinstance(value, dict) else {"content": value}
    unknown = given.keys() - {"content", "b64", "shape"}
    if unknown or ("content" in given) == ("b64" in given):
        return None, [Problem("not a tensor", where, ", ".join(given) or "nothing", "`content` or `b64`, and `shape`")]
    shape, problems = _shape(given, spec, where)
    if shape is None:
        return None, problems
    content = given.get("content", given)
    if isinstance(content, dict):
        return shape, _raw(content.get("b64"), spec, shape, where)
    return shape, _content(content, spec, shape, where)


def _shape(given: Mapping[str, Any], spec: Expected, where: str) -> tuple[tuple[int, ...] | None, list[Problem]]:
    dims = list(spec.dims)
    if "shape" not in given:
        if -1 in dims:
            return None, [Problem("a tensor with a free axis needs its shape", where, None, f"`shape` for dims {dims}")]
        return spec.dims, []
    shape = given["shape"]
    if not isinstance(shape, list) or any(type(size) is not int or size < 0 for size in shape):
        return None, [Problem("not a shape", where, str(shape)[:60], "a list of whole numbers")]
    if len(shape) != len(dims):
        extra = len(shape) - len(dims)
        axes = {1: "one axis too many", -1: "one axis too few"}.get(
            extra, f"{abs(extra)} axes too {'many' * (extra > 0) or 'few'}"
        )
        hint = "leave the batch axis out: perf_analyzer adds it" if extra == 1 and shape[:1] == [1] else None
        return None, [Problem(f"shape {_listed(shape)} has {axes} for dims {_listed(dims)}", where, hint=hint)]
    if any(size != dim for size, dim in zip(shape, dims, strict=True) if dim != -1):
        return None, [Problem(f"shape {_listed(shape)} does not fit dims {_listed(dims)}", where)]
    return tuple(shape), []


def _listed(sizes: Sequence[int]) -> str:
    return f"[{','.join(map(str, sizes))}]"


def _content(content: Any, spec: Expected, shape: tuple[int, ...], where: str) -> list[Problem]:
    """Values written out: a flat list with the element count of the shape, each of the type's own kind."""
    if spec.data_type in _HALVES:
        kind = spec.data_type.removeprefix("TYPE_")
        return [Problem(f"{kind} cannot be written out", where, None, '{"b64": …} with two bytes a value')]
    if not isinstance(content, list):
        return [Problem("not a list of values", where, json.dumps(content)[:60], "a flat list, also for one value")]
    if any(isinstance(value, list) for value in content):
        return [Problem("a nested list", where, None, "all values in one flat list, row after row")]
    problems = []
    if len(content) != prod(shape):
        problems.append(
            Problem("values and shape differ", where, str(len(content)), f"{prod(shape)} for {list(shape)}")
        )
    wrong = next((value for value in content if not _fits(value, spec.data_type)), None)
    if wrong is not None or None in content:
        problems.append(Problem("not a value of this type", where, json.dumps(wrong)[:60], _kind(spec.data_type)))
    return problems


def _fits(value: Any, data_type: str) -> bool:
    if data_type in _FLOATS:
        return type(value) is float
    if data_type in _RANGES:
        low, high = _RANGES[data_type]
        return type(value) is int and low <= value <= high
    return type(value) is (bool if data_type == "TYPE_BOOL" else str)


def _kind(data_type: str) -> str:
    name = data_type.removeprefix("TYPE_")
    if data_type in _FLOATS:
        return f"{name}: numbers with a decimal point, like 1.0"
    if data_type in _RANGES:
        return f"{name}: whole numbers from {_RANGES[data_type][0]} to {_RANGES[data_type][1]}"
    return f"{name}: true or false" if data_type == "TYPE_BOOL" else f"{name}: texts"


def _raw(text: Any, spec: Expected, shape: tuple[int, ...], where: str) -> list[Problem]:
    """Raw little-endian bytes: as many as the shape needs; strings with their lengths before them."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError):
        return [Problem("not base64", where, json.dumps(text)[:40])]
    if spec.data_type != "TYPE_STRING":
        needed = prod(shape) * _SIZES[spec.data_type]
        return [] if len(raw) == needed else [Problem("bytes and shape differ", where, str(len(raw)), str(needed))]
    try:
        count = sum(1 for _ in _strings(raw))
    except struct.error:
        count = -1
    if count == prod(shape):
        return []
    return [Problem("not strings", where, None, f"{prod(shape)}, each after its length in four bytes")]


def _strings(raw: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(raw):
        (size,) = struct.unpack_from("<I", raw, place)
        place += 4 + size
        if place > len(raw):
            raise struct.error
        yield raw[place - size : place]
