"""What a release of Triton does otherwise than a model file or its config expects. Layer: config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tooling.config.proto import ModelConfig
from tooling.releases import Release
from tooling.signature.spec import ModelSignature
from tooling.signature.tensorrt_plan import plan_runs

_ONNX_BF16_SINCE: Final = "26.03"


def release_advice(config: ModelConfig, signature: ModelSignature, release: Release) -> Iterator[str]:
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
    half = [tensor.name for tensor in (*signature.inputs, *signature.outputs) if tensor.data_type == "TYPE_BF16"]
    if half and signature.backend == "onnxruntime" and release.tag < _ONNX_BF16_SINCE:
        yield (
            f"{signature.path}: Triton {release.tag} will not load BF16 tensors ({', '.join(half)}; its ONNX Runtime "
            f"backend has them since {_ONNX_BF16_SINCE}); cast them inside the graph, for example to FLOAT16"
        )
    built, serves = signature.built_with, release.tensorrt
    if built and serves and not plan_runs(built, serves, compatible=signature.version_compatible):
        yield (
            f"{signature.path}: built by TensorRT {built}, and Triton {release.tag} has {serves}; a plan runs on the "
            "version that built it: build it in the TensorRT image of the same tag"
        )
    if serves and int(serves.split(".")[0]) >= 11 and _asks_precision(config):
        yield (
            f"Triton {release.tag} has TensorRT {serves}, which takes the precision from the ONNX file: precision_mode "
            "may have no effect; convert the file"
        )


def _asks_precision(config: ModelConfig) -> bool:
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    return any(a.name == "tensorrt" and a.parameters.get("precision_mode", "FP32") != "FP32" for a in accelerators)
