"""What a release of Triton knows and does with a config; other releases differ. Layer: config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tooling.config.proto import ModelConfig
from tooling.errors import Problem
from tooling.releases import Release, fields_since, unordered_releases
from tooling.signature.spec import ModelSignature


def problems(config: ModelConfig, release: Release) -> Iterator[Problem]:
    """Every field that this release does not know: one of them makes its whole config unreadable."""
    since = fields_since()
    for name in sorted(_fields(config)):
        first = since.get(name)
        if first is not None and release.tag < first:
            yield Problem(
                f"Triton {release.tag} does not know the field `{name}`",
                expected=f"Triton {first} or later",
                hint=f"leave it out, or make the config for --release {first}",
            )


def _fields(message: Any) -> set[str]:
    """`Message.field` of everything that is set, all the way down."""
    owner = message.DESCRIPTOR.full_name.partition(".")[2]
    found = set()
    for field, value in message.ListFields():
        found.add(f"{owner}.{field.name}")
        if field.message_type is None:
            continue
        entry = field.message_type
        if entry.GetOptions().map_entry:
            inner = value.values() if entry.fields_by_name["value"].message_type else ()
        else:
            inner = [value] if hasattr(value, "ListFields") else value
        for part in inner:
            found |= _fields(part)
    return found


def advice(config: ModelConfig, signature: ModelSignature, release: Release) -> Iterator[str]:
    """What this release does otherwise than the config or the model file expects."""
    for what, value, limit in (
        ("opset", signature.opset, release.max_opset),
        ("IR version", signature.ir_version if signature.backend == "onnxruntime" else None, release.max_ir),
    ):
        if value is not None and limit is not None and value > limit:
            yield (
                f"{signature.path}: Triton {release.tag} will not load {what} {value} "
                f"(its ONNX Runtime {release.onnxruntime} takes at most {limit}); export with a lower one"
            )
    built, serves = signature.built_with, release.tensorrt
    if built and serves and _differs(built, serves):
        yield (
            f"{signature.path}: built by TensorRT {built}, and Triton {release.tag} has {serves}; a plan runs on the "
            "version that built it: build it in the TensorRT image of the same tag"
        )
    first, last = unordered_releases()
    if config.dynamic_batching.preserve_ordering and first <= release.tag <= last:
        yield f"Triton {first} to {last} answer in order of completion in spite of preserve_ordering"
    if serves and int(serves.split(".")[0]) >= 11 and _asks_precision(config):
        yield (
            f"Triton {release.tag} has TensorRT {serves}, which takes the precision from the ONNX file: precision_mode "
            "may have no effect; convert the file"
        )


def _differs(built: str, serves: str) -> bool:
    """Whether two versions differ in the parts that both give."""
    return any(a != b for a, b in zip(built.split("."), serves.split("."), strict=False))


def _asks_precision(config: ModelConfig) -> bool:
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    return any(a.name == "tensorrt" and a.parameters.get("precision_mode", "FP32") != "FP32" for a in accelerators)
