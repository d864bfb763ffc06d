"""Requests with known answers, sent through the endpoint and compared. Layer: bottom of rollout."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perf.client import Connection, decode, encode
from perf.input_check import check_input_data, expected_inputs
from tooling.errors import Problem, UsageError, suggest
from tooling.repository import read_json, write_atomic

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

Tensors = Mapping[str, npt.NDArray[Any]]
_TIMEOUT_S = 60.0
_MOST = 20
_FORM = "perf_analyzer's JSON: `data`, and `validation_data` with the answers"
_ANSWER = 'an object like {"OUTPUT": {"content": [0.5, 2], "shape": [2]}}'


@dataclass(frozen=True, slots=True)
class Canary:
    """Requests in perf_analyzer's JSON: `steps` are {input: tensor}; `answers` are {output: tensor} for each of them,
    as its `validation_data` has them, or empty."""

    steps: Sequence[Mapping[str, Any]]
    answers: Sequence[Tensors] = ()

    @classmethod
    def read(cls, path: Path, config: ModelConfig) -> Canary:
        """The requests of a file for a model of this config. Raises UsageError with what is wrong with it."""
        check_input_data(path, expected_inputs(config))
        content = read_json(path, expected=_FORM)
        assert isinstance(content, dict), "checked before"
        steps, answers = _flat(content["data"]), _answers(path, content.get("validation_data") or [], config)
        if answers and len(answers) != len(steps):
            raise UsageError("not one answer a request", where=path, got=len(answers), expected=str(len(steps)))
        return cls(steps, answers)

    def write(self, path: Path, answers: Sequence[Tensors]) -> None:
        """Keep the requests with these answers, in the same form."""
        told = [{name: _tensor(values) for name, values in one.items()} for one in answers]
        write_atomic(path, json.dumps({"data": list(self.steps), "validation_data": told}) + "\n")

    def ask(self, url: str, model: str, config: ModelConfig) -> list[Tensors]:
        """The answers of a model to each request. Raises Refused with the server's words, ExternalError without one."""
        types = {one.name: one.data_type for one in expected_inputs(config)}
        dims = {one.name: one.dims for one in expected_inputs(config)}
        rows = (1,) if config.max_batch_size else ()
        found: list[Tensors] = []
        with Connection(url, _TIMEOUT_S) as connection:
            for step in self.steps:
                tensors = {name: _sent(tensor, dims[name], rows) for name, tensor in step.items() if name in types}
                found.append(decode(connection.send(encode(model, tensors, types)))[1])
        return found


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between answers: of an element, as a part of the largest element of that output (or of 1,
    if that is more); and where it is. It is infinite where answers cannot be compared, or an element is no number on
    one side alone; `nan` counts those that are none on both."""

    error: float
    where: str
    nan: int = 0

    def text(self, limit: float, of: str) -> str:
        """How far the answers are off from those `of` another, and where."""
        both = f"; {self.nan} elements are NaN in both" if self.nan else ""
        if math.isinf(self.error):
            return f"other than {of}: {self.where}{both}"
        return f"off from {of} by at most {self.error:.2g} (limit {limit:g}) at {self.where}{both}"


def difference(expected: Sequence[Tensors], got: Sequence[Tensors]) -> Difference:
    """How far answers are from what is expected. Numbers may differ; whole numbers, truth values and texts may not."""
    found = list(_differences(expected, got))
    worst = max(found, key=lambda one: one.error, default=Difference(0.0, "no answer"))
    return Difference(worst.error, worst.where, sum(one.nan for one in found))


def _differences(expected: Sequence[Tensors], got: Sequence[Tensors]) -> Iterator[Difference]:
    for number, (wanted, found) in enumerate(zip(expected, got, strict=True)):
        for name, values in wanted.items():
            where = f"`{name}` of request {number}"
            if name not in found:
                yield Difference(math.inf, f"{where}: there is no such output")
            elif not _same_shape(values.shape, found[name].shape):
                yield Difference(math.inf, f"{where}: shape {list(found[name].shape)}, not {list(values.shape)}")
            else:
                yield _compared(values.ravel(), found[name].ravel(), where)


def _same_shape(wanted: Sequence[int], found: Sequence[int]) -> bool:
    """Whether shapes agree but for axes of one: a file may leave the batch axis out, or give all values in one row."""
    long, short = ([size for size in shape if size != 1] for shape in (found, wanted))
    return long == short or (len(wanted) == 1 and wanted[0] == math.prod(found))


def _compared(wanted: npt.NDArray[Any], found: npt.NDArray[Any], where: str) -> Difference:
    if found.dtype.kind != "f" or wanted.dtype.kind not in "fiub":
        pairs = enumerate(zip(wanted.tolist(), found.tolist(), strict=True))
        other = next((f"{where}: element {at} is {two!r}, not {one!r}" for at, (one, two) in pairs if one != two), None)
        return Difference(math.inf, other) if other else Difference(0.0, where)
    wanted, found = wanted.astype(np.float64), found.astype(np.float64)
    nan = np.isnan(wanted) & np.isnan(found)
    with np.errstate(invalid="ignore"):
        off = np.nan_to_num(np.abs(found - wanted), nan=np.inf, posinf=np.inf)
    off[nan | (wanted == found)] = 0  # infinities on both sides, as of masked scores, are equal
    at = int(off.argmax()) if off.size else 0
    if off.size and np.isinf(off[at]):
        return Difference(math.inf, f"{where}: element {at} is {found[at]:g}, not {wanted[at]:g}", int(nan.sum()))
    scale = max(1.0, float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0)))
    return Difference(float(off.max(initial=0)) / scale, where, int(nan.sum()))


def _flat(data: Any) -> list[Any]:
    """Steps of all streams in one list."""
    return [step for stream in data for step in (stream if isinstance(stream, list) else [stream])]


def _sent(tensor: Any, dims: Sequence[int], rows: tuple[int, ...]) -> dict[str, Any]:
    """A tensor of the file with its whole shape: the one it states, or that of the config; one row where there are
    rows."""
    given = tensor if isinstance(tensor, dict) else {"content": tensor}
    shape = given.get("shape", dims)
    return {**given, "shape": [*rows, *shape]}


def _answers(path: Path, told: Any, config: ModelConfig) -> tuple[Tensors, ...]:
    """The answers of a file, of the outputs of this config where it lists some. Raises UsageError with what is wrong
    with them."""
    from tooling.config.proto import pb

    texts = {output.name: output.data_type == pb().TYPE_STRING for output in config.output}
    found: list[Tensors] = []
    problems: list[Problem] = []
    for number, answer in enumerate(_flat(told)):
        where = f"{path}, validation_data[{number}]"
        tensors: dict[str, npt.NDArray[Any]] = {}
        if not isinstance(answer, dict) or not answer:
            problems.append(Problem("no answer", where, json.dumps(answer)[:60], _ANSWER))
            continue
        for name, tensor in answer.items():
            if texts and name not in texts:
                what, known = f"the model has no output `{name}`", f"one of {', '.join(texts)}"
                problems.append(Problem(what, where, None, known, suggest(name, texts)))
                continue
            try:
                tensors[name] = _values(tensor, texts.get(name))
            except ValueError as error:
                got = json.dumps(tensor)[:60]
                problems.append(Problem(str(error), f"{where}, `{name}`", got, _ANSWER))
        found.append(tensors)
    if problems:
        raise UsageError(problems=problems[:_MOST])
    return tuple(found)


def _values(tensor: Any, text: bool | None) -> npt.NDArray[Any]:
    """The values of one output, which are texts or not, or may be either; in one row unless a shape is given. Raises
    ValueError in plain words."""
    given = tensor if isinstance(tensor, dict) else {"content": tensor}
    content = given.get("content")
    if not isinstance(content, list):
        raise ValueError("an output without `content`, a list of values")
    if text is not False and all(isinstance(value, str) for value in content):
        values = np.array([value.encode("utf-8", "surrogateescape") for value in content], dtype=object)
    elif text or not all(isinstance(value, int | float) for value in content):
        raise ValueError(f"not a flat list of {'texts' if text else 'numbers'}")
    else:
        values = np.asarray(content)
    shape = given.get("shape")
    if shape is None:
        return values
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("not a shape")
    if math.prod(shape) != values.size:
        raise ValueError(f"{values.size} values and shape {shape}")
    return values.reshape(shape)


def _tensor(values: npt.NDArray[Any]) -> dict[str, Any]:
    if values.dtype == object:
        content: list[Any] = [word.decode(errors="surrogateescape") for word in values.flat]
    else:
        content = values.ravel().tolist()
    return {"content": content, "shape": list(values.shape)}
