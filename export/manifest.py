"""The record beside an exported model: where it comes from, what it is, how far it is off. Layer: export manifest."""

from __future__ import annotations

from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tooling.errors import UsageError

MANIFEST_FILE: Final = "export.json"
_LIBRARIES: Final = ("tritune", "torch", "transformers", "onnx", "onnxruntime")


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


class ShapeRecord(_Record):
    """The largest absolute difference from torch at one (batch, length)."""

    batch: int
    length: int
    max_abs_error: float


class VerificationRecord(_Record):
    tolerance: float
    max_abs_error: float
    shapes: tuple[ShapeRecord, ...]


class ExportManifest(_Record):
    """`export.json` of a model directory. Sizes are bytes, `duration_s` seconds, `max_tokens` counts special tokens."""

    schema_version: Literal[1] = 1
    source: SourceRecord
    exporter: str
    versions: dict[str, str]
    opset: int
    ir_version: int
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    steps: tuple[str, ...]
    max_tokens: int
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
