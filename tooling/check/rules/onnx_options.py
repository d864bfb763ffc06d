"""Rules about the settings of the ONNX Runtime backend: parameters and accelerators. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tooling.check.finding import Evidence, Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load
from tooling.check.rules.options import INTEGER, boolean
from tooling.errors import suggest

_SOURCE: Final = "ModelState of the onnxruntime backend"
_INTEGERS: Final = (
    *("execution_mode", "intra_op_thread_count", "inter_op_thread_count", "cudnn_conv_algo_search"),
    "arena_extend_strategy",
)
_BOOLEANS: Final = ("enable_mem_arena", "enable_mem_pattern")
_TEXTS: Final = (
    *("memory.enable_memory_arena_shrinkage", "session.use_device_allocator_for_initializers", "gpu_mem_limit"),
    "do_copy_in_default_stream",
)
_PARAMETERS: Final = (*_INTEGERS, *_BOOLEANS, *_TEXTS)
# The core and the tool chain read these whatever the backend.
_ELSEWHERE: Final = ("TRITON_BATCH_STRATEGY_PATH",)
_CHOICES: Final = {"execution_mode": (0, 1), "cudnn_conv_algo_search": (0, 1, 2), "arena_extend_strategy": (0, 1)}
_OVERWRITTEN: Final = ("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream")
PROFILES: Final = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
_TENSORRT_BOOLEANS: Final = (
    *("int8_use_native_calibration_table", "trt_dla_enable", "trt_engine_cache_enable", "trt_timing_cache_enable"),
    *("trt_force_timing_cache", "trt_dump_subgraphs", "trt_force_sequential_engine_build"),
    *("trt_context_memory_sharing_enable", "trt_layer_norm_fp32_fallback", "trt_detailed_build_log"),
    *("trt_build_heuristics_enable", "trt_sparsity_enable", "trt_cuda_graph_enable", "trt_dump_ep_context_model"),
)
_TENSORRT_NUMBERS: Final = (
    *("max_workspace_size_bytes", "trt_max_partition_iterations", "trt_min_subgraph_size", "trt_dla_core"),
    *("trt_builder_optimization_level", "trt_auxiliary_streams", "trt_ep_context_embed_mode"),
)
_TENSORRT_TEXTS: Final = (
    *("precision_mode", "int8_calibration_table_name", "trt_engine_cache_path", "trt_engine_cache_prefix"),
    *(
        "trt_timing_cache_path",
        "trt_tactic_sources",
        "trt_extra_plugin_lib_paths",
        "trt_ep_context_file_path",
        *PROFILES,
    ),
)
_TENSORRT: Final = (*_TENSORRT_BOOLEANS, *_TENSORRT_NUMBERS, *_TENSORRT_TEXTS)
_PRECISIONS: Final = ("FP32", "FP16", "BF16", "INT8")
_BF16_SINCE: Final = "26.01"


def _parameter(key: str, value: str) -> str:
    return f'max_batch_size: 8\nparameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'


def _accelerator(text: str, kind: str = "KIND_GPU", where: str = "gpu") -> str:
    return (
        f"max_batch_size: 8\ninstance_group {{ kind: {kind} count: 1 }}\noptimization {{ execution_accelerators {{ "
        f"{where}_execution_accelerator {{ {text} }} }} }}"
    )


NOT_INTEGER = load(
    "parameter-not-a-number",
    "A parameter of ONNX Runtime is no whole number.",
    "The digits at its beginning count, as in `4abc`; a value without any is refused.",
    _parameter("intra_op_thread_count", "many"),
    _SOURCE,
)
NOT_BOOLEAN = load(
    "parameter-not-a-boolean",
    "A parameter of ONNX Runtime is no boolean.",
    "true, on, 1, false, off and 0 are, in any case of letters.",
    _parameter("enable_mem_arena", "maybe"),
    _SOURCE,
    evidence=Evidence.READ,
)
CHOICE = load(
    "parameter-value",
    "A parameter of ONNX Runtime has a value that is none of its values.",
    "execution_mode is 0 (sequential) or 1 (parallel).",
    _parameter("execution_mode", "2"),
    _SOURCE,
)
UNKNOWN = advice(
    "parameter-unknown",
    "The ONNX Runtime backend does not read this parameter.",
    "It reads eleven names and passes over all others in silence, options of onnxruntime's Python interface among "
    "them.",
    _parameter("intra_op_num_threads", "1"),
    _SOURCE,
    evidence=Evidence.RUN,
)
ACCELERATOR_UNKNOWN = load(
    "accelerator-unknown",
    "The accelerator is none of ONNX Runtime's.",
    "On the GPU there are tensorrt and cuda, on the CPU there is openvino.",
    _accelerator('name: "openvin"', "KIND_CPU", "cpu"),
    _SOURCE,
)
ACCELERATOR_ON_CPU = advice(
    "gpu-accelerator-on-cpu",
    "A GPU accelerator is ignored: every instance runs on the CPU.",
    "GPU accelerators are looked at for GPU instances only.",
    _accelerator('name: "tensorrt"', "KIND_CPU"),
    _SOURCE,
    evidence=Evidence.RUN,
)
TENSORRT_KEY = load(
    "tensorrt-accelerator-parameter",
    "The tensorrt accelerator has no such parameter, or not with this value.",
    "Unlike the backend's own parameters, unknown ones are refused here.",
    _accelerator('name: "tensorrt" parameters { key: "fp16" value: "1" }'),
    _SOURCE,
    evidence=Evidence.READ,
)
SWITCH_TEXT = advice(
    "accelerator-switch-text",
    "ONNX Runtime reads this switch as 1, 0, True, true, False or false only.",
    "Triton accepts `on` and `off` too, and passes the text on unread.",
    _accelerator('name: "tensorrt" parameters { key: "trt_engine_cache_enable" value: "on" }'),
    _SOURCE,
)
NOPROFILES = advice(
    "tensorrt-accelerator-without-profiles",
    "The tensorrt accelerator builds engines while requests wait.",
    "Without explicit profile shapes an engine is built for the first shape and again whenever a request leaves the "
    "range: "
    "minutes each. Give all three profile strings, up to max_batch_size and the longest input, and a cache of its "
    "own for each "
    "model.",
    _accelerator('name: "tensorrt"'),
    _SOURCE,
    evidence=Evidence.DOCUMENTED,
    stage=Stage.REQUEST,
)
SOMEPROFILES = advice(
    "tensorrt-accelerator-some-profiles",
    "Profile shapes come in threes.",
    "min, opt and max must all be given, for every input with a free axis, or none.",
    _accelerator('name: "tensorrt" parameters { key: "trt_profile_min_shapes" value: "x:1x8" }'),
    _SOURCE,
    evidence=Evidence.DOCUMENTED,
)
WARMUP_SHAPES = advice(
    "tensorrt-accelerator-warmup",
    "One warm-up sample warms one shape only.",
    "The tensorrt accelerator builds an engine for each new shape; the first request of any other batch size waits "
    "for it.",
    _accelerator('name: "tensorrt"')
    + '\nmodel_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 8 ] '
    "zero_data: true } } }",
    "triton-inference-server/server#5326",
    evidence=Evidence.REPORTED,
    stage=Stage.REQUEST,
)
CUDA_OVERWRITTEN = advice(
    "cuda-accelerator-overwritten",
    "This option of the cuda accelerator is overwritten.",
    "The backend assigns it again from the model's `parameters`, with its default when it is not there.",
    _accelerator('name: "cuda" parameters { key: "gpu_mem_limit" value: "1000" }'),
    _SOURCE,
)
RULES = (
    *(NOT_INTEGER, NOT_BOOLEAN, CHOICE, UNKNOWN, ACCELERATOR_UNKNOWN, ACCELERATOR_ON_CPU, TENSORRT_KEY, SWITCH_TEXT),
    *(NOPROFILES, SOMEPROFILES, WARMUP_SHAPES, CUDA_OVERWRITTEN),
)


def parameters(model: Model) -> Iterator[Finding]:
    """The backend's own parameters."""
    if model.config.backend != "onnxruntime":
        return
    for key, value in sorted(model.config.parameters.items()):
        text, where = value.string_value, ("parameters", key)
        number = INTEGER.match(text)
        if key in _INTEGERS and number is None:
            yield model.find(
                NOT_INTEGER,
                f"parameter {key}: `{text}` is no whole number",
                *where,
                says=f"failed to convert '{text}' to integral number",
            )
        elif key in _BOOLEANS and not boolean(text):
            yield model.find(
                NOT_BOOLEAN,
                f"parameter {key}: `{text}` is no boolean",
                *where,
                says=f"failed to convert '{text}' to boolean",
                hint="1 or 0",
            )
        elif number is not None and key in _CHOICES and int(number[0]) not in _CHOICES[key]:
            yield model.find(
                CHOICE,
                f"parameter {key}: {int(number[0])} is none of {', '.join(map(str, _CHOICES[key]))}",
                *where,
                says=_choice_text(key, int(number[0])),
            )
        elif key not in (*_PARAMETERS, *_ELSEWHERE):
            close = _close(key)
            yield model.find(
                UNKNOWN,
                f"unknown parameter {key} for backend onnxruntime: it has no effect",
                *where,
                hint=f"did you mean {close}?" if close else f"known are {', '.join(_PARAMETERS)}",
                fix=(f'-parameters["{key}"]', f'parameters["{close}"].string_value={text}') if close and text else (),
            )


def _close(key: str) -> str | None:
    """The parameter that was probably meant; `num_threads` is called `thread_count` here."""
    words = key.replace("num_threads", "thread_count").rpartition(".")[2]
    hint = suggest(words, _PARAMETERS)
    return hint.split("`")[1] if hint else None


def _choice_text(key: str, value: int) -> str | None:
    if key == "execution_mode":
        return f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {value} ."
    return f"unsupported {key} value '{value}' is requested"


def accelerators(model: Model) -> Iterator[Finding]:
    """Execution accelerators of the GPU and of the CPU."""
    if model.config.backend != "onnxruntime":
        return
    listed = model.config.optimization.execution_accelerators
    path = ("optimization", "execution_accelerators")
    kinds = {group.kind for group in model.instances}
    for field, known in (
        ("gpu_execution_accelerator", ("tensorrt", "cuda")),
        ("cpu_execution_accelerator", ("openvino",)),
    ):
        for index, accelerator in enumerate(getattr(listed, field)):
            where = (*path, field, index)
            on_gpu = field == "gpu_execution_accelerator"
            if on_gpu and kinds == {"KIND_CPU"}:
                yield model.find(
                    ACCELERATOR_ON_CPU,
                    f"{accelerator.name}: gpu_execution_accelerator is ignored: instance group is KIND_CPU",
                    *where,
                    hint="use KIND_GPU, or remove it",
                )
            elif accelerator.name not in known:
                yield model.find(
                    ACCELERATOR_UNKNOWN,
                    f"{field} {accelerator.name} is none of {', '.join(known)}",
                    *where,
                    says=f"unknown Execution Accelerator '{accelerator.name}' is requested",
                    hint=suggest(accelerator.name, known),
                )
            elif accelerator.name == "tensorrt":
                yield from _tensorrt(model, where, accelerator)
            elif accelerator.name == "cuda":
                yield from _cuda(model, where, accelerator)


def _tensorrt(model: Model, where: tuple[str | int, ...], accelerator: Any) -> Iterator[Finding]:
    given = dict(accelerator.parameters)
    for key, value in sorted(given.items()):
        if key not in _TENSORRT:
            text, says = (
                f"unknown parameter {key}",
                f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator",
            )
        elif key == "precision_mode" and not _knows(model, value):
            text, says = f"precision_mode {value}", f"unsupported precision mode '{value}' is requested"
        elif key in _TENSORRT_NUMBERS and not INTEGER.match(value):
            text, says = f"{key} `{value}` is no number", f"failed to convert '{value}' to integral number"
        elif key in _TENSORRT_BOOLEANS and not boolean(value):
            text, says = f"{key} `{value}` is no boolean", f"failed to convert '{value}' to boolean"
        else:
            if key in _TENSORRT_BOOLEANS and value.lower() in ("on", "off"):
                right = "1" if value.lower() == "on" else "0"
                yield model.find(SWITCH_TEXT, f"{key}: write {right} for {value}", *where, "parameters", key)
            continue
        hint = suggest(key, _TENSORRT) if key not in _TENSORRT else None
        yield model.find(TENSORRT_KEY, f"tensorrt accelerator: {text}", *where, "parameters", key, says=says, hint=hint)
    shapes = [key for key in PROFILES if key in given]
    if shapes and len(shapes) < len(PROFILES):
        missing = ", ".join(key for key in PROFILES if key not in given)
        yield model.find(SOMEPROFILES, f"{', '.join(shapes)} without {missing}", *where, "parameters")
    free = model.completed.max_batch_size > 0 or any(-1 in tensor.dims for tensor in model.completed.input)
    if free and not (len(shapes) == len(PROFILES) and "trt_engine_cache_enable" in given):
        wants = "profile shapes" if len(shapes) < len(PROFILES) else "engine cache"
        yield model.find(
            NOPROFILES,
            f"no {wants} given: engines are built at request time",
            *where,
            hint=f"give {', '.join(PROFILES)} and trt_engine_cache_enable",
        )
        sizes = {sample.batch_size for sample in model.completed.model_warmup if sample.batch_size}
        if sizes and len(sizes) < max(model.completed.max_batch_size, 1):
            yield model.find(
                WARMUP_SHAPES,
                "engines are built per shape: add explicit profile shapes and an engine cache, or warm every batch "
                "size "
                f"(warmed: {', '.join(map(str, sorted(sizes)))})",
                "model_warmup",
            )


def _knows(model: Model, precision: str) -> bool:
    return precision in _PRECISIONS and (precision != "BF16" or model.target.release.tag >= _BF16_SINCE)


def _cuda(model: Model, where: tuple[str | int, ...], accelerator: Any) -> Iterator[Finding]:
    for key in sorted(accelerator.parameters):
        if key in _OVERWRITTEN:
            yield model.find(
                CUDA_OVERWRITTEN,
                f"cuda accelerator: {key} is overwritten by the model's parameter {key}, or its default",
                *where,
                "parameters",
                key,
                hint=f'move it to parameters {{ key: "{key}" … }}, as a number',
            )
