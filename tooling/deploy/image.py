"""NVIDIA's container images of Triton. Layer: deploy, its bottom."""

from __future__ import annotations

from typing import Final

from tooling.releases import Release

IMAGE: Final = "nvcr.io/nvidia/tritonserver"


def image_of(release: Release, variant: str) -> str:
    """The container image of a release: `py3`, or the variant that holds vLLM or TensorRT-LLM."""
    return f"{IMAGE}:{release.tag}-{variant}"
