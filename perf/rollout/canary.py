"""Requests with known answers, sent through the endpoint and compared. Layer: bottom of rollout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from perf.client import Connection, decode, encode
from perf.input_check import check_input_data, expected_inputs
from tooling.errors import UsageError
from tooling.repository import read_json, write_atomic

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

CANARY_FILE = "canary.json"
"""In the folder of the decision log: the requests with the answers of the version that serves."""
Tensors = Mapping[str, npt.NDArray[Any]]
_TIMEOUT_S = 60.0


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
        expected = "perf_analyzer's JSON: `data`, and `validation_data` with the answers"
        content = read_json(path, expected=expected)
        assert isinstance(content, dict), "checked before"
        steps, answers = _flat(content["data"]), _flat(content.get("validation_data", []))
        if answers and len(answers) != len(steps):
            raise UsageError("not one answer a request", where=path, got=len(answers), expected=str(len(steps)))
        try:
            return cls(steps, tuple({n: _values(t) for n, t in one.items()} for one in answers))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                "not an answer", where=f"{path}, `validation_data`", got=error, expected=expected
            ) from None

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
    if that is more); and where it is."""

    error: float
    where: str


def difference(expected: Sequence[Tensors], got: Sequence[Tensors]) -> Difference:
    """How far answers are from what is expected. Numbers may differ; whole numbers, truth values and texts may not."""
    return max(_differences(expected, got), key=lambda one: one.error, default=Difference(0.0, "no answer"))


def _differences(expected: Sequence[Tensors], got: Sequence[Tensors]) -> Iterator[Difference]:
    for number, (wanted, found) in enumerate(zip(expected, got, strict=True)):
        for name, values in wanted.items():
            where = f"`{name}` of request {number}"
            if name not in found:
                yield Difference(np.inf, f"{where}: there is no such output")
            elif found[name].size != values.size:
                yield Difference(np.inf, f"{where}: shape {list(found[name].shape)}, not {list(values.shape)}")
            else:
                yield Difference(_error(values.ravel(), found[name].ravel()), where)


def _error(expected: npt.NDArray[Any], got: npt.NDArray[Any]) -> float:
    if got.dtype.kind != "f":
        return 0.0 if list(expected) == list(got) else float("inf")
    wanted, found = expected.astype(np.float64), got.astype(np.float64)
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    return float(np.nan_to_num(np.abs(found - wanted), nan=np.inf).max(initial=0)) / scale


def _flat(data: Any) -> list[Any]:
    """Steps of all streams in one list."""
    return [step for stream in data for step in (stream if isinstance(stream, list) else [stream])]


def _sent(tensor: Any, dims: Sequence[int], rows: tuple[int, ...]) -> dict[str, Any]:
    """A tensor of the file with its whole shape: the one it states, or that of the config; one row where there are
    rows."""
    given = tensor if isinstance(tensor, dict) else {"content": tensor}
    shape = given.get("shape", dims)
    return {**given, "shape": [*rows, *shape]}


def _values(tensor: Any) -> npt.NDArray[Any]:
    content = tensor["content"] if isinstance(tensor, dict) else tensor
    if isinstance(content, str) or not isinstance(content, list):
        raise ValueError("answers need `content`, a list of numbers or texts")
    values = np.ravel(np.asarray(content))
    if values.dtype.kind not in "US":
        return values
    return np.array([str(word).encode() for word in values], dtype=object)


def _tensor(values: npt.NDArray[Any]) -> dict[str, Any]:
    if values.dtype == object:
        content: list[Any] = [word.decode(errors="surrogateescape") for word in values.flat]
    else:
        content = values.ravel().tolist()
    return {"content": content, "shape": list(values.shape)}
