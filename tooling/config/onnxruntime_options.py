"""Parameters and accelerators of Triton's ONNX Runtime backend: known names and spellings. Layer: config.

From the backend's parser: it ignores unknown parameters silently, passes some values on unread, and overwrites four.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tooling.config.proto import ModelConfig
from tooling.errors import Problem, suggest
from tooling.signature.spec import ModelSignature

_INTEGER: Final = re.compile(r"-?\d+")
_NATURAL: Final = re.compile(r"\d+")
_SWITCH: Final = re.compile(r"[01]")  # Triton also takes `on` and `true`, but hands the text to ONNX Runtime unread
_ANY: Final = re.compile(r".+", re.DOTALL)
_SHAPES: Final = re.compile(r"[^:,]+(:[^:,]+)*:\d+(x\d+)*(,[^:,]+(:[^:,]+)*:\d+(x\d+)*)*")
_WORDS: Final = {
    _INTEGER: "a whole number",
    _NATURAL: "a whole number, 0 or more",
    _SWITCH: "1 or 0",
    _ANY: "a text",
    _SHAPES: "NAME:AxB for each input, such as input_ids:1x128,attention_mask:1x128",
}
_Kinds = Mapping[str, re.Pattern[str]]

_PARAMETERS: Final[_Kinds] = {
    "execution_mode": _SWITCH,
    "intra_op_thread_count": _INTEGER,
    "inter_op_thread_count": _INTEGER,
    "enable_mem_arena": _SWITCH,
    "enable_mem_pattern": _SWITCH,
    "memory.enable_memory_arena_shrinkage": re.compile(r"(cpu|gpu):\d+(;(cpu|gpu):\d+)*"),
    "session.use_device_allocator_for_initializers": _SWITCH,
    "cudnn_conv_algo_search": re.compile(r"[012]"),
    "gpu_mem_limit": _NATURAL,
    "arena_extend_strategy": _SWITCH,
    "do_copy_in_default_stream": _SWITCH,
}
_PROFILE_SHAPES: Final = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
_TENSORRT: Final[_Kinds] = {
    "precision_mode": re.compile("FP32|FP16|BF16|INT8"),
    **dict.fromkeys(_PROFILE_SHAPES, _SHAPES),
    **dict.fromkeys(
        (
            *("max_workspace_size_bytes", "trt_max_partition_iterations", "trt_min_subgraph_size", "trt_dla_core"),
            *("trt_builder_optimization_level", "trt_ep_context_embed_mode"),
        ),
        _NATURAL,
    ),
    "trt_auxiliary_streams": _INTEGER,
    **dict.fromkeys(
        (
            *(
                "int8_use_native_calibration_table",
                "trt_dla_enable",
                "trt_engine_cache_enable",
                "trt_timing_cache_enable",
            ),
            *("trt_force_timing_cache", "trt_dump_subgraphs", "trt_force_sequential_engine_build"),
            *("trt_context_memory_sharing_enable", "trt_layer_norm_fp32_fallback", "trt_detailed_build_log"),
            *(
                "trt_build_heuristics_enable",
                "trt_sparsity_enable",
                "trt_cuda_graph_enable",
                "trt_dump_ep_context_model",
            ),
        ),
        _SWITCH,
    ),
    **dict.fromkeys(
        (
            *(
                "int8_calibration_table_name",
                "trt_engine_cache_path",
                "trt_engine_cache_prefix",
                "trt_timing_cache_path",
            ),
            *("trt_tactic_sources", "trt_extra_plugin_lib_paths", "trt_ep_context_file_path"),
        ),
        _ANY,
    ),
}
# Overwritten by the parameters of the same name, which the backend always finds, with their defaults if need be.
_OVERWRITTEN: Final = {
    "cudnn_conv_algo_search": "0 EXHAUSTIVE, 1 HEURISTIC, 2 DEFAULT",
    "gpu_mem_limit": "bytes",
    "arena_extend_strategy": "0 kNextPowerOfTwo, 1 kSameAsRequested",
    "do_copy_in_default_stream": "1 or 0",
}
_CUDA: Final[_Kinds] = {
    **dict.fromkeys(
        (
            *(
                "cudnn_conv_use_max_workspace",
                "cudnn_conv1d_pad_to_nc1d",
                "enable_cuda_graph",
                "use_tf32",
                "prefer_nhwc",
            ),
            *("enable_skip_layer_norm_strict_mode", "fuse_conv_bias", "tunable_op_enable", "tunable_op_tuning_enable"),
            "use_ep_level_unified_stream",
        ),
        _SWITCH,
    ),
    "sdpa_kernel": _INTEGER,
    "tunable_op_max_tuning_duration_ms": _NATURAL,
}
_SET_BY_BACKEND: Final = ("device_id", "has_user_compute_stream", "user_compute_stream")


def problems(config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """Every parameter and accelerator that would be ignored, overwritten or refused."""
    given = {key: value.string_value for key, value in config.parameters.items()}
    for key, value in given.items():
        hint = suggest(key, _PARAMETERS)
        if key in _PARAMETERS:
            yield from _value_problem(f"parameter `{key}`", value, _PARAMETERS[key])
        elif hint:  # other names may be meant for somebody else
            yield Problem(f"the ONNX Runtime backend does not read parameter `{key}`", hint=hint)
    accelerators = config.optimization.execution_accelerators
    for accelerator in accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt":
            yield from _tensorrt_problems(accelerator, config, signature)
        elif accelerator.name == "cuda":
            yield from _cuda_problems(accelerator)
        else:
            yield Problem(
                "no GPU accelerator of ONNX Runtime", got=f"`{accelerator.name}`", expected="tensorrt or cuda"
            )
    for accelerator in accelerators.cpu_execution_accelerator:
        if accelerator.name != "openvino":
            yield Problem("no CPU accelerator of ONNX Runtime", got=f"`{accelerator.name}`", expected="openvino")
        if accelerator.parameters:
            names = ", ".join(sorted(accelerator.parameters))
            yield Problem("the openvino accelerator reads no parameters", got=names, expected="none")


def advice(config: ModelConfig) -> Iterator[str]:
    """What loads, and is probably not meant."""
    kinds = [group.kind for group in config.instance_group]
    cpu_only = bool(kinds) and all(kind == config.instance_group[0].KIND_CPU for kind in kinds)
    free = any(-1 in tensor.dims for tensor in config.input) or config.max_batch_size > 0
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if cpu_only:
            yield f"gpu_execution_accelerator `{accelerator.name}` has no effect: every instance is KIND_CPU"
        cached = accelerator.parameters.get("trt_engine_cache_enable") == "1"
        if accelerator.name == "tensorrt" and free and not (cached and _PROFILE_SHAPES[0] in accelerator.parameters):
            yield (
                "without profile shapes and a cache the tensorrt accelerator builds engines while requests wait:"
                f" give {', '.join(_PROFILE_SHAPES)} and trt_engine_cache_enable"
            )


def _value_problem(what: str, value: str, pattern: re.Pattern[str]) -> Iterator[Problem]:
    if not pattern.fullmatch(value):
        expected = _WORDS.get(pattern) or pattern.pattern.replace("|", ", ")
        yield Problem(f"{what} has a value that is not understood", got=f"`{value}`", expected=expected)


def _tensorrt_problems(accelerator: Any, config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    given = accelerator.parameters
    for key, value in given.items():
        if key in _TENSORRT:
            yield from _value_problem(f"tensorrt accelerator: `{key}`", value, _TENSORRT[key])
        else:
            hint = suggest(key, _TENSORRT)
            yield Problem(f"the tensorrt accelerator has no parameter `{key}`", hint=hint)
    shapes = [key for key in _PROFILE_SHAPES if key in given]
    if shapes and len(shapes) < len(_PROFILE_SHAPES):
        missing = [key for key in _PROFILE_SHAPES if key not in given]
        yield Problem("profile shapes go together", got=", ".join(shapes), expected=f"also {', '.join(missing)}")
    names = {tensor.name for tensor in signature.inputs}
    for key in shapes:
        if not _SHAPES.fullmatch(given[key]):
            continue
        for name, dims in (part.rsplit(":", 1) for part in given[key].split(",")):
            if name not in names:
                hint = suggest(name, names)
                yield Problem(f"{key}: `{name}` is no input of the model", expected=", ".join(sorted(names)), hint=hint)
            batch = int(dims.split("x")[0])
            if key == _PROFILE_SHAPES[2] and batch < config.max_batch_size:
                got = f"{name}:{dims}"
                yield Problem(
                    f"{key} ends below max_batch_size", got=got, expected=f"{config.max_batch_size} or more first"
                )


def _cuda_problems(accelerator: Any) -> Iterator[Problem]:
    for key, value in accelerator.parameters.items():
        if key in _OVERWRITTEN:
            yield Problem(
                f"cuda accelerator: `{key}` is overwritten by the parameter of that name, or its default",
                got=f"`{value}`",
                expected=f"parameters: {{{key}: …}} with {_OVERWRITTEN[key]}",
                hint="move it from the accelerator to `parameters`",
            )
        elif key in _SET_BY_BACKEND:
            yield Problem(f"cuda accelerator: `{key}` is set by the backend itself", hint="leave it out")
        elif key in _CUDA:
            yield from _value_problem(f"cuda accelerator: `{key}`", value, _CUDA[key])
        else:
            hint = suggest(key, (*_CUDA, *_OVERWRITTEN))
            yield Problem(f"the cuda accelerator has no parameter `{key}`", hint=hint)
