"""What Triton's core writes into a config by itself before it judges it. Layer: check.

Facts: AutoCompleteBackendFields, NormalizeModelConfig and NormalizeInstanceGroup of the core.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from tooling.config.proto import ModelConfig, enum_text, pb

ENSEMBLE: Final = "ensemble"
_IDLE_US: Final = 1_000_000
_TWO_CPU_INSTANCES: Final = ("onnxruntime", "tensorflow")


@dataclass(frozen=True, slots=True)
class _Known:
    """A backend the core knows: its platforms with their files, and which file in a version directory names it."""

    backend: str
    files: dict[str, str]
    """Default file by platform; the first platform is filled in, unless it is empty."""
    directory: bool | None = False
    """Whether the file is a directory; None: either."""


_TENSORFLOW: Final = _Known(
    "tensorflow", {"tensorflow_savedmodel": "model.savedmodel", "tensorflow_graphdef": "model.graphdef"}
)
_OTHERS: Final = (
    _Known("tensorrt", {"tensorrt_plan": "model.plan"}),
    _Known("onnxruntime", {"onnxruntime_onnx": "model.onnx"}, None),
    _Known("openvino", {"": "model.xml"}, None),
    _Known("pytorch", {"pytorch_libtorch": "model.pt", "torch_aoti": "model.pt2"}),
    _Known("python", {"": "model.py"}, None),
)
_SINCE: Final = {"torch_aoti": "26.03"}
_PLATFORMS: Final = {
    platform: known.backend for known in (_TENSORFLOW, *_OTHERS) for platform in known.files if platform
}
MODEL_FILES: Final = {known.backend: next(iter(known.files.values())) for known in _OTHERS}


def platforms(tag: str) -> dict[str, str]:
    """The platforms that a release knows, with their backends."""
    return {platform: backend for platform, backend in _PLATFORMS.items() if _SINCE.get(platform, "") <= tag}


def fill_backend(config: ModelConfig, directory: str, files: dict[str, bool], tag: str) -> bool:
    """Fill in name, backend, platform and file name as a release does.

    `files` are those of the first version, True for a directory. False when there is nothing to tell the backend from.
    """
    if not config.name:
        config.name = directory
    if _fill_tensorflow(config, files):
        return True
    for known in _OTHERS:
        own = {platform: file for platform, file in known.files.items() if _SINCE.get(platform, "") <= tag}
        if not config.backend and _is_meant(config, known, own, files):
            config.backend = known.backend
        if config.backend == known.backend:
            meant = (one for one in own.items() if _names(config, *one) or (_says_nothing(config) and one[1] in files))
            platform, file = next(meant, next(iter(own.items())))
            config.platform = config.platform or platform
            config.default_model_filename = config.default_model_filename or file
            return True
    if config.backend or config.platform or config.default_model_filename:
        return True
    _, dot, backend = directory.partition(".")
    if not dot:
        return False
    config.backend, config.default_model_filename = backend, f"model.{backend}"
    return True


def _names(config: ModelConfig, platform: str, file: str) -> bool:
    return bool((platform and config.platform == platform) or config.default_model_filename == file)


def _says_nothing(config: ModelConfig) -> bool:
    return not config.platform and not config.default_model_filename


def _is_meant(config: ModelConfig, known: _Known, own: dict[str, str], files: dict[str, bool]) -> bool:
    for platform, file in own.items():
        if _names(config, platform, file):
            return True
        if _says_nothing(config) and file in files:
            return known.directory is None or files[file] == known.directory
    return known.backend == "pytorch" and config.platform == "libtorch"


def _fill_tensorflow(config: ModelConfig, files: dict[str, bool]) -> bool:
    if not config.platform and config.backend in ("", "tensorflow"):
        for platform, file in _TENSORFLOW.files.items():
            named = config.default_model_filename == file
            there = not config.default_model_filename and files.get(file) is (platform == "tensorflow_savedmodel")
            if named or there:
                config.platform = platform
    if config.platform not in _TENSORFLOW.files:
        return False
    config.backend = config.backend or "tensorflow"
    config.default_model_filename = config.default_model_filename or _TENSORFLOW.files[config.platform]
    return True


def normalise(config: ModelConfig) -> None:
    """Write the core's defaults for versions, batching and pinned memory into a config."""
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    if config.HasField("dynamic_batching"):
        _fill_preferred(config, config.dynamic_batching.preferred_batch_size)
    if config.HasField("sequence_batching"):
        sequence = config.sequence_batching
        sequence.max_sequence_idle_microseconds = sequence.max_sequence_idle_microseconds or _IDLE_US
        if sequence.HasField("oldest"):
            _fill_preferred(config, sequence.oldest.preferred_batch_size)


def _fill_preferred(config: ModelConfig, preferred: Any) -> None:
    if not preferred and config.max_batch_size > 0:
        preferred.append(config.max_batch_size)


@dataclass(frozen=True, slots=True)
class Instances:
    """An instance group as Triton would run it; `kind` is None when that depends on GPUs nobody knows of."""

    index: int
    name: str
    kind: str | None
    count: int
    gpus: tuple[int, ...]
    written: bool


def instances(config: ModelConfig, gpus: int | None) -> list[Instances]:
    """The instance groups on a server with so many GPUs; an ensemble has none."""
    if config.HasField("ensemble_scheduling"):
        return []
    groups = list(config.instance_group) or [pb().ModelInstanceGroup(name=config.name)]
    found = []
    for index, group in enumerate(groups):
        kind: str | None = enum_text(pb().ModelInstanceGroup.Kind, group.kind)
        if kind == "KIND_AUTO":
            kind = _resolved(group.gpus, gpus)
        count = group.count
        if count < 1:
            count = 2 if kind == "KIND_CPU" and config.backend in _TWO_CPU_INSTANCES else 1
        name = group.name or f"{config.name}_{index}"
        found.append(Instances(index, name, kind, count, tuple(group.gpus), bool(config.instance_group)))
    return found


def _resolved(listed: Collection[int], gpus: int | None) -> str | None:
    """What KIND_AUTO becomes: the GPU, unless there is none or a listed one is missing."""
    if gpus is None:
        return None
    return "KIND_GPU" if gpus and all(0 <= gpu < gpus for gpu in listed) else "KIND_CPU"
