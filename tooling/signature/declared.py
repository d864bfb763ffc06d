"""Tensors that a person writes down, for files that do not say what they take: `NAME:TYPE:DIMS`. Layer: signature."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tooling.errors import Problem, UsageError, suggest
from tooling.signature.spec import TensorSpec

DATA_TYPES: Final = (
    *("TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
    *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64"),
    *("TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_BF16", "TYPE_STRING"),
)
_SYNTAX: Final = "NAME:TYPE:DIMS with the full shape, such as `input_ids:INT64:-1,-1` (-1: any length, batch first)"


class TensorsMissing(UsageError):
    """The file does not say what the model takes and gives, and nobody else did."""


@dataclass(frozen=True, slots=True)
class Declared:
    """Inputs and outputs given by hand; empty where the file is to say them."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)


def declare(inputs: Iterable[str], outputs: Iterable[str]) -> Declared:
    """The tensors of `--input` and `--output-tensor`. Raises UsageError with everything that is wrong in them."""
    specs: dict[str, list[TensorSpec]] = {"--input": [], "--output-tensor": []}
    problems: list[Problem] = []
    for option, texts in (("--input", inputs), ("--output-tensor", outputs)):
        for text in texts:
            try:
                specs[option].append(parse_tensor(text, option))
            except UsageError as error:
                problems += error.problems
    if problems:
        raise UsageError(problems=problems)
    return Declared(tuple(specs["--input"]), tuple(specs["--output-tensor"]))


def parse_tensor(text: str, where: str) -> TensorSpec:
    """One tensor of the form NAME:TYPE:DIMS; a name may hold colons, no DIMS is a scalar. Raises UsageError."""
    name, *rest = text.rsplit(":", 2)
    if not name or len(rest) != 2:
        raise UsageError("not a tensor", where=where, got=f"`{text}`", expected=_SYNTAX)
    type_name, dims = rest
    if not re.fullmatch(r"(?:(?:-1|[1-9]\d{0,17})(?:,(?:-1|[1-9]\d{0,17}))*)?", dims):
        raise UsageError(
            "not a shape", where=where, got=f"`{dims}`", expected="lengths of 1 or more, or -1, such as -1,128"
        )
    return TensorSpec(name, data_type(type_name, where), tuple(int(d) for d in dims.split(",") if d))


def data_type(name: str, where: object) -> str:
    """Triton's name of a type: `INT64`, `int64` and `TYPE_INT64` are `TYPE_INT64`, the protocol's BYTES a string.

    Raises UsageError for a name that Triton has no type for.
    """
    upper = name.upper()
    full = "TYPE_STRING" if upper == "BYTES" else upper if upper.startswith("TYPE_") else f"TYPE_{upper}"
    if full not in DATA_TYPES:
        raise UsageError(
            "not a data type of Triton",
            where=where,
            got=f"`{name}`",
            expected=", ".join(t.removeprefix("TYPE_") for t in DATA_TYPES),
            hint=suggest(full, DATA_TYPES),
        )
    return full


def need_declared(path: Path, declared: Declared, why: str) -> None:
    """Raise TensorsMissing unless both inputs and outputs are given by hand; `why` says what the file leaves open."""
    missing = [
        option for option, given in (("--input", declared.inputs), ("--output-tensor", declared.outputs)) if not given
    ]
    if missing:
        raise TensorsMissing(
            why,
            where=path,
            got=f"no {' and no '.join(missing)}",
            expected="every input and output, such as `--input INPUT__0:FP32:-1,3 --output-tensor OUTPUT__0:FP32:-1,2`",
        )
