"""The sidecar of a TensorRT plan, `model.plan.json`: what only its GPU could read from it. Layer: signature.

A plan cannot be opened without its GPU, so whoever builds one leaves this file beside it.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tooling.errors import Problem, UsageError
from tooling.signature.declared import data_type
from tooling.signature.spec import Profile, TensorSpec

HardwareCompatibility = Literal["ampere+", "same-compute-capability"]
_Dims = tuple[int, ...]
_LARGEST = 2**20


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


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
            return data_type(value, None)
        except UsageError as error:
            raise ValueError(str(error)) from error

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
        if not same_rank or not all(1 <= a <= b <= c for a, b, c in zip(self.min, self.opt, self.max, strict=True)):
            raise ValueError("min, opt and max must have the same rank, with 1 <= min <= opt <= max on every axis")
        return self


class PlanManifest(_Part):
    """Versions as TensorRT writes them (`10.5.0.18`), the GPU's compute capability (`8.9`), tensors and profiles.

    `precision` onnx: every type is the ONNX file's; fp16: kernels may be half precision. `stripped` plans have no
    weights, version-compatible ones without `lean_runtime` need one from outside. `build_s` is in seconds. What a
    builder does not know is left out.
    """

    schema_version: int = 1
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
    build_s: float | None = None

    @model_validator(mode="after")
    def _profiles_cover_inputs(self) -> PlanManifest:
        if not self.inputs or not self.outputs:
            raise ValueError("inputs and outputs must list the engine's tensors")
        ranks = {tensor.name: len(tensor.shape) for tensor in self.inputs if not tensor.shape_tensor}
        for number, profile in enumerate(self.profiles):
            if set(profile) != set(ranks) or any(len(profile[name].min) != rank for name, rank in ranks.items()):
                raise ValueError(f"profile {number} must give every input, with the rank of its shape: {ranks}")
        return self

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
            raise UsageError("too large for a sidecar", where=path, expected=f"{_LARGEST} bytes at most")
        return PlanManifest.model_validate(json.loads(source))
    except ValidationError as error:
        raise UsageError(
            problems=[
                Problem(
                    item["msg"][:1].lower() + item["msg"][1:],
                    where=f"{path}: {'.'.join(map(str, item['loc'])) or 'the manifest'}",
                    got=f"`{item['input']}`" if not isinstance(item["input"], dict) else None,
                    hint="write it again by building the plan",
                )
                for item in error.errors()
            ]
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError("not a JSON file", where=path, got=str(error)) from error
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror) from error
