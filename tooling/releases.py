"""Facts about Triton releases: which versions belong together and what they can load. Layer: below signature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FACTS = Path(__file__).parent / "data" / "releases.yaml"


@dataclass(frozen=True, slots=True)
class Release:
    """One release of the container image `nvcr.io/nvidia/tritonserver:<tag>-py3`.

    `max_opset` and `max_ir` are the highest ONNX operator set and IR version that its ONNX Runtime loads.
    """

    tag: str
    tritonserver: str
    onnxruntime: str
    max_opset: int
    max_ir: int
    tensorrt: str
    cuda: str


@cache
def current_release() -> Release:
    """The release that the embedded server is, and that `docker compose up` runs."""
    import yaml

    facts = yaml.safe_load(_FACTS.read_text(encoding="utf-8"))
    return Release(tag=facts["tested"], **facts["releases"][facts["tested"]])
