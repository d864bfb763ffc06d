"""The record beside an exported model: where it comes from, what it is, how far it is off. Layer: export manifest."""

from __future__ import annotations

from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tooling.errors import UsageError

MANIFEST_FILE: Final = "export.json"
_LIBRARIES: Final = ("tritune", "torch", "transformers", "onnx", "onnxscript", "onnxruntime")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceRecord(_Record):
    """`sha256` covers config, weights, tokenizer and modules."""

    id: str
    revision: str | None
    sha256: str


class TensorRecord(_Record):
    """A tensor of the model; -1 is a free axis."""

    name: str
    data_type: str
    dims: tuple[int, ...]


class BatchRecord(_Record):
    """How far one batch is off: absolutely, and as a part of its largest element (see `export.verify`)."""

    batch: str
    max_abs_error: float
    relative_error: float


class VerificationRecord(_Record):
    """Limits and what was found; `cosine` and `top1` are null where they say nothing about the task.

    `looks_at_padding`: the model, in torch as well, answers a padded row otherwise than the row alone.
    """

    limits: dict[str, float]
    max_abs_error: float
    relative_error: float
    cosine: float | None
    top1: float | None
    looks_at_padding: bool
    batches: tuple[BatchRecord, ...]


class PassedOverRecord(_Record):
    """An exporter that was tried before the one that was taken, and why it was not."""

    exporter: str
    reason: str


class ExportManifest(_Record):
    """`export.json` of a model directory. Sizes are bytes, `duration_s` seconds, `max_tokens` counts special tokens.

    `key` stands for everything the export follows from. `fused` counts the operators that the optimiser made.
    `dropped_inputs` are those that no output depends on.
    """

    schema_version: Literal[2] = 2
    key: str
    source: SourceRecord
    task: str
    precision: str
    exporter: str
    passed_over: tuple[PassedOverRecord, ...]
    versions: dict[str, str]
    release: str
    opset: int
    ir_version: int
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    dropped_inputs: tuple[str, ...]
    labels: int | None
    steps: tuple[str, ...]
    fused: dict[str, int]
    max_tokens: int | None
    model_bytes: int
    model_sha256: str
    verification: VerificationRecord
    duration_s: float
    created: datetime


def library_versions() -> dict[str, str]:
    """Versions of the libraries that shape the result, read without importing them."""
    installed = {}
    for name in _LIBRARIES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def read_manifest(model_dir: Path) -> ExportManifest:
    """The manifest of a model directory. Raises UsageError when it is missing or not one of this version."""
    path = model_dir / MANIFEST_FILE
    try:
        return ExportManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            "no export manifest", where=path, got=error.strerror, hint="write the model with `tritune export`"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            "not an export manifest",
            where=path,
            got=f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint="export the model again with `tritune export --force`",
        ) from error
