"""The sidecar of a TensorRT plan, `model.plan.json`: what only its GPU could read from it. Layer: signature.

A plan cannot be opened without its GPU, so whoever builds one leaves this file beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tooling.errors import Problem, UsageError, suggest
from tooling.signature.declared import data_type
from tooling.signature.spec import Profile, TensorSpec

ENGINE_TYPES: Final = {f"TYPE_{t}" for t in ("FP32", "FP16", "BF16", "INT8", "UINT8", "INT32", "INT64", "BOOL")}
"""The types an engine may have as input or output under Triton."""
HardwareCompatibility = Literal["ampere+", "same-compute-capability"]
_Dims = tuple[int, ...]
_LARGEST = 2**20
_MOST = 2**31 - 1
_SHOWN = 60
_HINT: Final = "write it again by building the plan"
_WORDS: Final = {
    "missing": ("is missing", None),
    "extra_forbidden": ("no key of a sidecar", None),
    "string_type": ("no text", None),
    "string_too_short": ("no name", "a text that is not empty"),
    "int_type": ("no whole number", None),
    "bool_type": ("neither true nor false", None),
    "float_type": ("no number", None),
    "finite_number": ("no number", "seconds"),
    "greater_than_equal": ("below 0", "seconds"),
    "tuple_type": ("no list", None),
    "dict_type": ("no object", None),
    "model_type": ("no object", None),
    "datetime_from_date_parsing": ("no time", "such as 2026-01-31T12:00:00Z"),
    "datetime_type": ("no time", "such as 2026-01-31T12:00:00Z"),
}
"""Of pydantic's errors, in this project's words; what is expected beside."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PlanTensor(_Part):
    """An input or output of the engine: `shape` is its full shape, -1 for an axis that profiles bound.

    With `non_linear` its bytes are in a vectorised format.
    """

    name: str = Field(min_length=1)
    data_type: str
    shape: _Dims = Field(strict=False)
    shape_tensor: bool = False
    non_linear: bool = False

    @field_validator("data_type")
    @classmethod
    def _known_type(cls, value: str) -> str:
        try:
            known = data_type(value, None)
        except UsageError:
            known = value
        if known not in ENGINE_TYPES:
            raise ValueError(f"no type of an engine's tensor; expected {_names(sorted(ENGINE_TYPES))}")
        return known

    @field_validator("shape")
    @classmethod
    def _sizes(cls, value: _Dims) -> _Dims:
        if not all(size == -1 or 1 <= size <= _MOST for size in value):
            raise ValueError(f"no shape; expected sizes from 1 to {_MOST}, or -1 for an axis that profiles bound")
        return value

    def spec(self) -> TensorSpec:
        return TensorSpec(
            self.name, self.data_type, self.shape, shape_tensor=self.shape_tensor, non_linear=self.non_linear
        )


class PlanRange(_Part):
    """The shapes of one input that a profile admits."""

    min: _Dims = Field(strict=False)
    opt: _Dims = Field(strict=False)
    max: _Dims = Field(strict=False)

    @model_validator(mode="after")
    def _ordered(self) -> PlanRange:
        same_rank = len(self.min) == len(self.opt) == len(self.max)
        rising = same_rank and all(
            1 <= a <= b <= c <= _MOST for a, b, c in zip(self.min, self.opt, self.max, strict=True)
        )
        if not rising:
            raise ValueError(
                f"no range of shapes; expected min, opt and max of one rank, with 1 <= min <= opt <= max <= {_MOST} on "
                "every axis"
            )
        return self

    def fits(self, shape: _Dims) -> bool:
        """Whether the range is of a tensor of this shape: of its rank, and at its size where that is fixed."""
        if len(self.min) != len(shape):
            return False
        return all(size in (-1, a) and size in (-1, b) for size, a, b in zip(shape, self.min, self.max, strict=True))


class PlanManifest(_Part):
    """Versions as TensorRT writes them (`10.5.0.18`), the GPU's compute capability (`8.9`), tensors and profiles.

    `precision` onnx: every type is the ONNX file's; fp16: kernels may be half precision. `stripped` plans have no
    weights, version-compatible ones without `lean_runtime` need one from outside. `build_s` is in seconds. What a
    builder does not know is left out.
    """

    schema_version: Literal[1] = 1
    tensorrt: str = Field(pattern=r"^\d+\.\d+(\.\d+){0,2}$")
    compute_capability: str = Field(pattern=r"^\d+\.\d+$")
    inputs: tuple[PlanTensor, ...] = Field(strict=False)
    outputs: tuple[PlanTensor, ...] = Field(strict=False)
    profiles: tuple[dict[str, PlanRange], ...] = Field((), strict=False)
    precision: Literal["onnx", "fp16"] | None = None
    version_compatible: bool = False
    lean_runtime: bool = True
    stripped: bool = False
    weight_streaming: bool = False
    platform: Literal["linux", "windows"] = "linux"
    hardware_compatibility: HardwareCompatibility | None = None
    source_sha256: str | None = None
    built: datetime | None = Field(None, strict=False)
    build_s: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _tensors_and_profiles(self) -> PlanManifest:
        if impossible := self._no_build():
            raise ValueError(impossible)
        if not self.inputs or not self.outputs:
            raise ValueError("no tensors; expected the engine's inputs and outputs")
        names = [tensor.name for tensor in (*self.inputs, *self.outputs)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"tensors of the same name: {_names(twice)}; expected each once")
        shapes = {tensor.name: tensor.shape for tensor in self.inputs if not tensor.shape_tensor}
        for number, profile in enumerate(self.profiles):
            if set(profile) != set(shapes):
                raise ValueError(f"profile {number} is for {_names(profile)}; expected every input: {_names(shapes)}")
            for name, shape in shapes.items():
                if not profile[name].fits(shape):
                    raise ValueError(
                        f"profile {number} does not fit input {_names([name])}; expected sizes as in its shape, "
                        f"{list(shape)}"
                    )
        return self

    def _no_build(self) -> str | None:
        """What no TensorRT builds together; None when it does."""
        capability = tuple(map(int, self.compute_capability.split(".")))
        version = tuple(map(int, self.tensorrt.split(".")[:2]))
        level = self.hardware_compatibility or ""
        for what, made, least in (
            ("ampere+", level == "ampere+", (8, 0)),
            ("same-compute-capability", level == "same-compute-capability", (7, 5)),
            ("a version-compatible plan", self.version_compatible, (7, 0)),
        ):
            if made and capability < least:
                got = f"{what} on compute capability {self.compute_capability}"
                return f"{got}: no such build; expected {least[0]}.{least[1]} or more"
        if level == "same-compute-capability" and version < (10, 9):
            return f"same-compute-capability of TensorRT {self.tensorrt}: no such build; expected 10.9 or more"
        if self.precision == "fp16" and version >= (11,):
            return f"precision fp16 of TensorRT {self.tensorrt}: no such build; expected onnx, since 11"
        if self.precision == "fp16" and self.weight_streaming:
            return "weight streaming with precision fp16: no such build; expected onnx"
        return None

    def spec_profiles(self) -> tuple[Profile, ...]:
        return tuple(
            Profile(
                {name: shapes.min for name, shapes in profile.items()},
                {name: shapes.opt for name, shapes in profile.items()},
                {name: shapes.max for name, shapes in profile.items()},
            )
            for profile in self.profiles
        )


def read_manifest(path: Path) -> PlanManifest:
    """The sidecar at `path`. Raises UsageError with everything that is wrong in it."""
    try:
        with path.open("rb") as file:
            source = file.read(_LARGEST + 1)
        if len(source) > _LARGEST:
            raise UsageError("too large for a sidecar", where=path, expected=f"{_LARGEST} bytes at most", hint=_HINT)
        return PlanManifest.model_validate(json.loads(source))
    except ValidationError as error:
        raise UsageError(problems=[_problem(path, dict(item)) for item in error.errors()]) from error
    except (ValueError, RecursionError) as error:
        got = str(error) or "nothing"
        raise UsageError("not a JSON file", where=path, got=got[:_SHOWN], expected="one object", hint=_HINT) from error
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror, expected="the sidecar of a plan") from error


def _problem(path: Path, item: dict[str, Any]) -> Problem:
    """One error of pydantic, with the key it is about."""
    key = ".".join(map(str, item["loc"])) or "the sidecar"
    what, expected = _WORDS.get(item["type"], (item["msg"].removeprefix("Value error, "), None))
    if item["type"] == "value_error":
        what, _, expected = what.partition("; expected ")
    elif item["type"] in ("string_pattern_mismatch", "literal_error"):
        context = item["ctx"]
        what, expected = "not of its form", context.get("expected") or _FORMS.get(key)
    hint = None
    if item["type"] == "extra_forbidden":
        known = (*PlanManifest.model_fields, *PlanTensor.model_fields, *PlanRange.model_fields)
        hint = suggest(str(item["loc"][-1]), known)
    shown = not isinstance(item["input"], dict) and item["type"] != "missing"
    return Problem(f"{key}: {what}", str(path), _clip(item["input"]) if shown else None, expected, hint or _HINT)


_FORMS: Final = {"tensorrt": "a version such as 10.5.0.18", "compute_capability": "such as 8.9"}


def _clip(value: object) -> str:
    text = f"`{value}`" if isinstance(value, str) else f"{value!r}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _names(names: Sequence[str] | dict[str, Any]) -> str:
    """A few of the names, each cut short."""
    shown = [name[:_SHOWN] for name in names][:8] or ["no input"]
    return ", ".join(shown) + ("…" if len(names) > len(shown) else "")
