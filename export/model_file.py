"""The ONNX file on disk: one file, or a directory with its weights beside it. Layer: export, on onnx_ir."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from export.options import INLINE_BYTES
from export.source import file_digest
from tooling.repository import MODEL_FILE

_SMALL_BYTES: Final = 1024  # shapes and other constants stay in the graph, where every reader sees them


def save_model(model: Any, version: Path, inline_bytes: int = INLINE_BYTES) -> Path:
    """Write an onnx_ir model as `version/model.onnx`; the path that loads it.

    With weights of more than `inline_bytes` that is a directory, in it the graph `model.onnx` and `model.onnx.data`,
    which Triton loads as it is. Raises OSError.
    """
    import onnx_ir

    path = version / MODEL_FILE
    if sum(value.const_value.nbytes for value in model.graph.initializers.values()) <= inline_bytes:
        onnx_ir.save(model, path)
        return path
    path.mkdir()
    onnx_ir.save(model, path / MODEL_FILE, external_data=f"{MODEL_FILE}.data", size_threshold_bytes=_SMALL_BYTES)
    return path / MODEL_FILE


def model_parts(path: Path) -> Iterator[Path]:
    """The files of a model at `path`: itself, and weights of its own directory."""
    yield path
    if path.parent.name == MODEL_FILE:
        yield from sorted(other for other in path.parent.iterdir() if other != path)


def model_digest(path: Path) -> str:
    """SHA-256 of a model: of its file, or over the digests of its files."""
    digests = [file_digest(part) for part in model_parts(path)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def model_bytes(path: Path) -> int:
    """The size of all files of a model."""
    return sum(part.stat().st_size for part in model_parts(path))
