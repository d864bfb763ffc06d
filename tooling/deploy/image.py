"""NVIDIA's container images of Triton. Layer: deploy, its bottom."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tooling.config.templates import environment
from tooling.releases import Release

IMAGE: Final = "nvcr.io/nvidia/tritonserver"


def image_of(release: Release, variant: str) -> str:
    """The container image of a release: `py3`, or the variant that holds vLLM or TensorRT-LLM."""
    return f"{IMAGE}:{release.tag}-{variant}"


def dockerfile(packages: Sequence[Path]) -> str:
    """Of an image with these requirement files of Python models; its context is the repository."""
    requirements = [f"{path.parent.name}/{path.name}" for path in packages]
    options = shlex.join(word for path in requirements for word in ("--requirement", f"/tmp/requirements/{path}"))
    template = environment().get_template("compose/Dockerfile.j2")
    return template.render(requirements=requirements, options=options)
