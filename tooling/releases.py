"""Facts about Triton releases: which versions belong together and what they can load. Layer: below signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from tooling.errors import UsageError, suggest

_FACTS = Path(__file__).parent / "data" / "releases.yaml"


@dataclass(frozen=True, slots=True)
class Release:
    """One release of the container image `nvcr.io/nvidia/tritonserver:<tag>-py3`.

    `max_opset` and `max_ir` are the highest ONNX operator set and IR version that its ONNX Runtime loads; `vllm` is the
    vLLM of the `-vllm-python-py3` image, `trtllm` the TensorRT-LLM of the `-trtllm-python-py3` one, which not every
    release has. None stands for what is not known.
    """

    tag: str
    tritonserver: str
    onnxruntime: str | None = None
    max_opset: int | None = None
    max_ir: int | None = None
    tensorrt: str | None = None
    cuda: str | None = None
    openvino: str | None = None
    vllm: str | None = None
    trtllm: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every fact of this release is known, so that configs can be judged for it."""
        exact = self.tensorrt is not None and "." in self.tensorrt
        return exact and all(getattr(self, field.name) is not None for field in fields(self) if field.name != "trtllm")


@cache
def _facts() -> Mapping[str, Any]:
    import yaml

    return dict(yaml.load(_FACTS.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def releases() -> tuple[Release, ...]:
    """Every release there are facts of, oldest first."""
    return tuple(Release(tag=tag, **facts) for tag, facts in sorted(_facts()["releases"].items()))


def current_release() -> Release:
    """The release that the embedded server is, and that `docker compose up` runs."""
    return release_named(str(_facts()["tested"]))


def default_release() -> Release:
    """The newest release whose facts are complete."""
    return next(release for release in reversed(releases()) if release.complete)


def release_named(tag: str, where: str | None = None) -> Release:
    """The release with this tag (`24.10`), which stands at `where`. Raises UsageError for one there are no facts of."""
    known = {release.tag: release for release in releases()}
    if tag not in known:
        tags = list(known)
        raise UsageError(
            "no known release of Triton",
            where=where,
            got=f"`{tag}`",
            expected=f"{tags[0]} to {tags[-1]}",
            hint=suggest(tag, tags),
        )
    return known[tag]


def least_driver(release: Release) -> int | None:
    """The oldest NVIDIA driver branch that runs this release's image, by CUDA's minor-version compatibility.

    Data-centre GPUs may run it on some older branches through NVIDIA's forward-compatibility package. None: not known.
    """
    return _LEAST_DRIVER.get((release.cuda or "").partition(".")[0])


_LEAST_DRIVER = {"12": 525, "13": 580}  # CUDA Toolkit release notes: 525.60.13, 580.65.06


def fields_since() -> Mapping[str, str]:
    """First release that knows a field of the configuration, by `Message.field`; all others are older."""
    return dict(_facts()["fields"])
