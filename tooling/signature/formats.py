"""The model formats Triton serves: which backend takes which file, and who reads its signature. Layer: signature."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tooling.errors import UsageError, suggest
from tooling.signature.declared import Declared
from tooling.signature.spec import ModelSignature


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of model file. `file` is its default name in a version directory."""

    backend: str
    file: str
    suffixes: tuple[str, ...]


# In the order in which Triton itself looks into a version directory; it never looks for vLLM's file.
FORMATS: Final = (
    Format("tensorrt", "model.plan", (".plan", ".engine", ".trt")),
    Format("onnxruntime", "model.onnx", (".onnx",)),
    Format("openvino", "model.xml", (".xml",)),
    Format("pytorch", "model.pt", (".pt", ".pth")),
    Format("python", "model.py", (".py",)),
    Format("vllm", "model.json", (".json",)),
)


def format_named(backend: str) -> Format:
    """The format of a backend. Raises UsageError for a backend that configs cannot be made for."""
    known = [known.backend for known in FORMATS]
    if backend not in known:
        raise UsageError(
            "no backend that configs can be made for",
            got=f"`{backend}`",
            expected=", ".join(known),
            hint=suggest(backend, known),
        )
    return FORMATS[known.index(backend)]


def format_of(path: Path) -> Format | None:
    """The format that a file's name says, None for a name that says none."""
    suffix = path.suffix.lower()
    return next((known for known in FORMATS if suffix in known.suffixes), None)


def read_signature(path: Path, backend: str, declared: Declared) -> ModelSignature:
    """The signature of a model file; no weights are read and nothing in the file is executed.

    `declared` are tensors given by hand, for files that do not say theirs. Raises UsageError for a file that is not
    whole or not of this kind, and for tensors that are missing, given twice, or of no type Triton serves.
    """
    if backend == "tensorrt":
        from tooling.signature.tensorrt_plan import read_plan

        return read_plan(path, declared)
    if backend == "pytorch":
        from tooling.signature.torchscript import read_torchscript

        return read_torchscript(path, declared)
    if backend == "python":
        from tooling.signature.python_model import read_python_model

        return read_python_model(path, declared)
    if declared:
        raise UsageError(
            "the file says itself what it takes and gives", where=path, hint="leave --input and --output-tensor out"
        )
    if backend == "openvino":
        from tooling.signature.openvino_ir import read_openvino

        return read_openvino(path)
    if backend == "vllm":
        from tooling.signature.vllm_model import read_vllm

        return read_vllm(path)
    from tooling.signature.onnx_file import read_onnx

    return read_onnx(path)
