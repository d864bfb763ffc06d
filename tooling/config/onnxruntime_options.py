"""Accelerators inside ONNX Runtime: options of CUDA and OpenVINO, profiles that must fit the model. Layer: config.

From the backend's parser, which passes CUDA's options on unread and overwrites four of them (`tooling.check` warns).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tooling.config.proto import ModelConfig
from tooling.errors import Problem, suggest
from tooling.signature.spec import ModelSignature

_SHAPES: Final = re.compile(r"[^:,]+(:[^:,]+)*:\d+(x\d+)*(,[^:,]+(:[^:,]+)*:\d+(x\d+)*)*")
_PROFILE_SHAPES: Final = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
_OVERWRITTEN: Final = ("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream")
_CUDA_SWITCHES: Final = (
    *("cudnn_conv_use_max_workspace", "cudnn_conv1d_pad_to_nc1d", "enable_cuda_graph", "use_tf32", "prefer_nhwc"),
    *("enable_skip_layer_norm_strict_mode", "fuse_conv_bias", "tunable_op_enable", "tunable_op_tuning_enable"),
    "use_ep_level_unified_stream",
)
# Triton also takes `on` and `true`, but hands the text to ONNX Runtime unread.
_CUDA: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(_CUDA_SWITCHES, (r"[01]", "1 or 0")),
    "sdpa_kernel": (r"-?\d+", "a whole number"),
    "tunable_op_max_tuning_duration_ms": (r"\d+", "a whole number, 0 or more"),
}
_SET_BY_BACKEND: Final = ("device_id", "has_user_compute_stream", "user_compute_stream")


def problems(config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """Every option of an accelerator that nobody reads, and every profile that does not fit the model."""
    accelerators = config.optimization.execution_accelerators
    for accelerator in accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt":
            yield from _profile_problems(accelerator, config, signature)
        elif accelerator.name == "cuda":
            yield from _cuda_problems(accelerator)
    for accelerator in accelerators.cpu_execution_accelerator:
        if accelerator.parameters:
            names = ", ".join(sorted(accelerator.parameters))
            yield Problem("the openvino accelerator reads no parameters", got=names, expected="none")


def _profile_problems(accelerator: Any, config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    names = {tensor.name for tensor in signature.inputs}
    for key in _PROFILE_SHAPES:
        text = accelerator.parameters.get(key)
        if text is None:
            continue
        if not _SHAPES.fullmatch(text):
            expected = "NAME:AxB for each input, such as input_ids:1x128,attention_mask:1x128"
            yield Problem(f"{key} has a value that is not understood", got=f"`{text}`", expected=expected)
            continue
        for name, dims in (part.rsplit(":", 1) for part in text.split(",")):
            if name not in names:
                hint = suggest(name, names)
                yield Problem(f"{key}: `{name}` is no input of the model", expected=", ".join(sorted(names)), hint=hint)
            if key == _PROFILE_SHAPES[-1] and int(dims.split("x")[0]) < config.max_batch_size:
                expected = f"{config.max_batch_size} or more first"
                yield Problem(f"{key} ends below max_batch_size", got=f"{name}:{dims}", expected=expected)


def _cuda_problems(accelerator: Any) -> Iterator[Problem]:
    for key, value in accelerator.parameters.items():
        if key in _SET_BY_BACKEND:
            yield Problem(f"cuda accelerator: `{key}` is set by the backend itself", hint="leave it out")
        elif key in _CUDA:
            pattern, expected = _CUDA[key]
            if not re.fullmatch(pattern, value):
                what = f"cuda accelerator: `{key}` has a value that is not understood"
                yield Problem(what, got=f"`{value}`", expected=expected)
        elif key not in _OVERWRITTEN:
            hint = suggest(key, (*_CUDA, *_OVERWRITTEN))
            yield Problem(f"the cuda accelerator has no parameter `{key}`", hint=hint)
