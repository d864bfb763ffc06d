"""Advice about ONNX Runtime that no server gives: optimisation levels, profiles, quantised models. Layer: check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tooling.check.finding import Evidence, Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, note
from tooling.check.rules.onnx_options import PROFILES

_SOURCE: Final = "ModelState of the onnxruntime backend"
_LEVELS: Final = (-1, 0, 1, 2)
_QUANTISED: Final = ("MatMulInteger", "DynamicQuantizeLinear")
_REMOVED_SINCE: Final = "26.06"
_SHAPE: Final = re.compile(r"([^:,]+(?::\d+)?):(\d+(?:x\d+)*)")


def _accelerated(parameters: str) -> str:
    return (
        "max_batch_size: 8\ninstance_group { kind: KIND_GPU count: 1 }\noptimization { execution_accelerators { "
        f'gpu_execution_accelerator {{ name: "tensorrt" {parameters} }} }} }}'
    )


def _profile(key: str, value: str) -> str:
    return f'parameters {{ key: "trt_profile_{key}_shapes" value: "{value}" }} '


LEVEL = advice(
    "graph-level-unknown",
    "optimization.graph.level is none that ONNX Runtime's backend knows.",
    "-1 is basic, 0 all, 1 extended, 2 none; any other number means all.",
    "max_batch_size: 8\noptimization { graph { level: 99 } }",
    _SOURCE,
)
LEVEL_OFF = note(
    "graph-level-off",
    "Level 2 switches every optimisation of the graph off.",
    "The numbers are not a scale: 0, or nothing, is everything.",
    "max_batch_size: 8\noptimization { graph { level: 2 } }",
    _SOURCE,
)
RANGE = advice(
    "tensorrt-accelerator-profile-range",
    "The profile does not cover the batches that Triton sends.",
    "Batches have every size from 1 to max_batch_size; one outside of the profile builds another engine meanwhile.",
    _accelerated(_profile("min", "x:1x8") + _profile("opt", "x:2x8") + _profile("max", "x:4x8")),
    "documentation of ONNX Runtime",
    evidence=Evidence.DOCUMENTED,
)
PRECISION = advice(
    "tensorrt-accelerator-precision",
    "The precision of the tensorrt accelerator may have no effect with TensorRT 11.",
    "TensorRT 11 has no switches for FP16, BF16 and INT8 any more: the types of the ONNX file count. Convert the file.",
    _accelerated('parameters { key: "precision_mode" value: "FP16" }') + "\n--- options\n--release 26.06",
    "NVIDIA's migration guide to TensorRT 11",
    evidence=Evidence.DOCUMENTED,
    since=_REMOVED_SINCE,
)
QUANTISED = advice(
    "quantised-on-gpu",
    "The model is quantised for CPUs and runs on a GPU.",
    "ONNX Runtime has no GPU kernels for dynamic quantisation: these operators run on the host, with copies both ways.",
    "max_batch_size: 8\ninstance_group { kind: KIND_GPU count: 1 }\n--- 1/model.onnx\n"
    "x: FP32 [batch, 8] -> y: FP32 [batch, 8] quantised",
    "microsoft/onnxruntime#9115",
    evidence=Evidence.REPORTED,
)
RULES = (LEVEL, LEVEL_OFF, RANGE, PRECISION, QUANTISED)


def onnx_advice(model: Model) -> Iterator[Finding]:
    """What loads, and is slower than it could be."""
    if model.config.backend != "onnxruntime":
        return
    optimization = model.config.optimization
    where = ("optimization", "graph", "level")
    if optimization.graph.level not in _LEVELS:
        yield model.find(LEVEL, f"graph.level {optimization.graph.level} means all, as 0 does", *where, hint="0")
    elif optimization.graph.level == 2:
        yield model.find(LEVEL_OFF, "graph.level 2: the graph is not optimised at all", *where, hint="0 for all")
    for index, accelerator in enumerate(optimization.execution_accelerators.gpu_execution_accelerator):
        if accelerator.name == "tensorrt":
            path = ("optimization", "execution_accelerators", "gpu_execution_accelerator", index, "parameters")
            yield from _tensorrt(model, dict(accelerator.parameters), path)
    operators = {name for _, name in model.graph.operators} if model.graph else set()
    group = next((group for group in model.instances if group.kind == "KIND_GPU"), None)
    if group is not None and operators.intersection(_QUANTISED):
        yield model.find(
            QUANTISED,
            f"{', '.join(name for name in _QUANTISED if name in operators)} on KIND_GPU: they run on the host",
            *("instance_group", group.index, "kind"),
            hint="serve the model that is not quantised on the GPU, or this one with KIND_CPU",
        )


def _tensorrt(model: Model, given: dict[str, str], path: tuple[str | int, ...]) -> Iterator[Finding]:
    top = model.completed.max_batch_size
    shapes = {key: _SHAPE.findall(given.get(key, "")) for key in (PROFILES[0], PROFILES[2]) if top > 0}
    for key, named in shapes.items():
        for name, shape in named:
            batch = int(shape.partition("x")[0])
            if (batch > 1) if key == PROFILES[0] else (batch < top):
                yield model.find(
                    RANGE,
                    f"{key}: {name} has batch {batch}, and Triton sends 1 to {top}",
                    *(*path, key),
                    hint=f"batch 1 in the smallest shapes, {top} in the largest",
                )
    if given.get("precision_mode", "FP32") != "FP32":
        yield model.find(
            PRECISION,
            f"precision_mode {given['precision_mode']}: TensorRT 11 has no such switch",
            *(*path, "precision_mode"),
            hint="convert the ONNX file to FP16",
        )
