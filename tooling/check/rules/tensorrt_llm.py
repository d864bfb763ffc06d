"""Rules about engines of TensorRT-LLM under its in-flight batcher. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tooling.check.files import json_object
from tooling.check.finding import Evidence, Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, note
from tooling.check.rules.options import Reads, anything, integer, one_of, parameter, unknown, unread

_SOURCE: Final = "tensorrtllm backend"
_TYPES: Final = ("V1", "INFLIGHT_BATCHING", "INFLIGHT_FUSED_BATCHING")
_MODES: Final = (
    *("TOP_K", "TOP_P", "TOP_K_TOP_P", "BEAM_SEARCH"),
    *("MEDUSA", "REDRAFTER", "LOOKAHEAD", "EAGLE"),
)
_LOOKAHEAD: Final = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
_ENGINES: Final = ("gpt_model_path", "encoder_model_path")
_REQUIRED: Final = ("input_lengths", "request_output_len")


def _boolean(text: str) -> bool:
    return text in ("True", "true", "TRUE", "1", "False", "false", "FALSE", "0")


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _share(text: str) -> bool:
    return _number(text) and 0 <= float(text) <= 1


PARAMETERS: Final[Mapping[str, Reads]] = {
    **dict.fromkeys(
        (
            *("gpt_model_type", "gpt_model_path", "encoder_model_path", "gpu_device_ids", "participant_ids"),
            *("executor_worker_path", "lora_prefetch_dir", "medusa_choices", "eagle_choices", "tokenizer_dir"),
            *("xgrammar_tokenizer_info_path", "max_attention_window_size", "FORCE_CPU_ONLY_INPUT_TENSORS"),
        ),
        anything,
    ),
    "batch_scheduler_policy": one_of("MAX_UTILIZATION", "GUARANTEED_NO_EVICT"),
    "decoding_mode": one_of(*_MODES),
    "guided_decoding_backend": one_of("XGRAMMAR", ""),
    **dict.fromkeys(
        (
            *("kv_cache_free_gpu_mem_fraction", "cross_kv_cache_fraction", "lora_cache_gpu_memory_fraction"),
            "gpu_weights_percent",
        ),
        _share,
    ),
    **dict.fromkeys(
        (
            *("max_beam_width", "max_tokens_in_paged_kv_cache", "kv_cache_host_memory_bytes", "sink_token_length"),
            *("cancellation_check_period_ms", "stats_check_period_ms", "recv_poll_period_ms", "num_nodes"),
            *("iter_stats_max_iterations", "request_stats_max_iterations", "lora_cache_optimal_adapter_size"),
            *("lora_cache_max_adapter_size", "lora_cache_host_memory_bytes", "cuda_graph_cache_size", *_LOOKAHEAD),
        ),
        integer,
    ),
    **dict.fromkeys(
        (
            *("kv_cache_onboard_blocks", "enable_kv_cache_reuse", "enable_chunked_context", "enable_trt_overlap"),
            *("normalize_log_probs", "exclude_input_in_output", "speculative_decoding_fast_logits"),
            *("multi_block_mode", "enable_context_fmha_fp32_acc", "cuda_graph_mode"),
        ),
        _boolean,
    ),
}
_TYPE_GIVEN: Final = parameter("gpt_model_type", "inflight_fused_batching")
_ENGINE_GIVEN: Final = parameter("gpt_model_path", "/engines/llm")
_INPUTS: Final = "".join(
    f'input {{ name: "{name}" data_type: TYPE_INT32 dims: [ 1 ] reshape {{ }} }}\n' for name in _REQUIRED
)


def _example(config: str) -> str:
    return f'backend: "tensorrtllm"\nmax_batch_size: 8\n{config}--- 1/model.onnx\nabsent'


TYPE = load(
    "trtllm-model-type",
    "gpt_model_type is missing, or none of its values.",
    "The template calls it batching_strategy: v1, inflight_batching or inflight_fused_batching. It has no default.",
    _example(_ENGINE_GIVEN + _INPUTS),
    _SOURCE,
    evidence=Evidence.READ,
)
ENGINE = load(
    "trtllm-engine-path",
    "Neither gpt_model_path nor encoder_model_path is given.",
    "They name the directories of the engines, on the server.",
    _example(_TYPE_GIVEN + _INPUTS),
    _SOURCE,
    evidence=Evidence.READ,
)
WORKER = load(
    "trtllm-worker-path",
    "worker_path is refused: it is called executor_worker_path now.",
    "Its default is right in NVIDIA's images.",
    _example(_TYPE_GIVEN + _ENGINE_GIVEN + _INPUTS + parameter("worker_path", "/opt/worker")),
    _SOURCE,
    evidence=Evidence.READ,
)
VALUE = advice(
    "trtllm-parameter-value",
    "A parameter of TensorRT-LLM cannot be read: its default is taken.",
    "Booleans are True or 1, False or 0; shares lie between 0 and 1. The server only warns in its log.",
    _example(_TYPE_GIVEN + _ENGINE_GIVEN + _INPUTS + parameter("batch_scheduler_policy", "max_use")),
    _SOURCE,
)
UNKNOWN = advice(
    "trtllm-parameter-unknown",
    "The tensorrtllm backend does not read this parameter.",
    "It is ignored in silence.",
    _example(_TYPE_GIVEN + _ENGINE_GIVEN + _INPUTS + parameter("kv_cache_free_gpu_memory_fraction", "0.8")),
    _SOURCE,
)
LOOKAHEAD = advice(
    "trtllm-lookahead",
    "decoding_mode is lookahead, and its three sizes are not all given.",
    f"Newer releases refuse it: {', '.join(_LOOKAHEAD)}.",
    _example(_TYPE_GIVEN + _ENGINE_GIVEN + _INPUTS + parameter("decoding_mode", "lookahead")),
    _SOURCE,
)
INPUTS = advice(
    "trtllm-input-missing",
    "An input that every request must have is not listed.",
    "input_lengths and request_output_len are TYPE_INT32, dims [ 1 ] with an empty reshape.",
    _example(_TYPE_GIVEN + _ENGINE_GIVEN),
    _SOURCE,
)
STREAMING = note(
    "trtllm-not-decoupled",
    "Streaming requests fail: the model is not decoupled.",
    "`streaming: true` needs model_transaction_policy { decoupled: true }.",
    _example(_TYPE_GIVEN + _ENGINE_GIVEN + _INPUTS),
    _SOURCE,
    stage=Stage.REQUEST,
)
BUILT = advice(
    "trtllm-engine-limits",
    "The config asks more of the engine than it was built for.",
    "Batch, beams and chunked context are limited by the build: what is beyond is refused, or falls back. "
    "The engine's config.json is read where gpt_model_path is a directory on this machine.",
    _example(_TYPE_GIVEN + parameter("gpt_model_path", "/models/example/1") + _INPUTS)
    + '\n--- 1/config.json\n{"version": "0.14.0", "build_config": {"max_batch_size": 4}}',
    _SOURCE,
)
RELATIVE = advice(
    "trtllm-engine-path-relative",
    "The path of an engine is not absolute.",
    "It is looked for below the directory that the server was started in (/opt/tritonserver in NVIDIA's images), not "
    "beside the config.",
    _example(_TYPE_GIVEN + _INPUTS + parameter("gpt_model_path", "engines/llm")),
    "triton-inference-server/tensorrtllm_backend#727",
    evidence=Evidence.REPORTED,
)
VERSION = load(
    "trtllm-engine-version",
    "The engine was built by another TensorRT-LLM than the release's.",
    "An engine runs under the version that built it. Judged where a release is named, or a compose file names one.",
    _example(_TYPE_GIVEN + parameter("gpt_model_path", "/models/example/1") + _INPUTS)
    + '\n--- 1/config.json\n{"version": "0.12.0", "build_config": {}}\n--- options\n--release 24.10',
    _SOURCE,
    evidence=Evidence.READ,
)
RULES = (*(TYPE, ENGINE, WORKER, VALUE, UNKNOWN, LOOKAHEAD, INPUTS, STREAMING, BUILT, RELATIVE, VERSION),)


def in_flight_batcher(model: Model) -> Iterator[Finding]:
    """The backend that runs engines."""
    config = model.config
    if config.backend != "tensorrtllm":
        return
    given = {key: value.string_value for key, value in config.parameters.items()}
    start = "unexpected error when creating modelInstanceState: "
    if given.get("gpt_model_type", "").upper() not in _TYPES:
        says = "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching."
        if "gpt_model_type" not in given:
            says = "Cannot find parameter with name: gpt_model_type"
        text = f"gpt_model_type is `{given['gpt_model_type']}`" if "gpt_model_type" in given else "no gpt_model_type"
        yield model.find(TYPE, text, "parameters", "gpt_model_type", says=start + says, hint="inflight_fused_batching")
    if not any(given.get(key) for key in _ENGINES):
        yield model.find(
            ENGINE,
            "neither gpt_model_path nor encoder_model_path is given",
            "parameters",
            says=f"{start}Both encoder and decoder model paths are empty",
        )
    yield from _relative(model, given)
    if "worker_path" in given:
        yield model.find(
            WORKER,
            "worker_path is refused",
            *("parameters", "worker_path"),
            hint="executor_worker_path, or leave it out",
        )
    for key, text in unread(model, PARAMETERS):
        if text and "${" not in text:  # empty is left out, and an unfilled template has a rule of its own
            yield model.find(VALUE, f"parameter {key}: `{text}` is not read", "parameters", key)
    yield from unknown(model, UNKNOWN, [*PARAMETERS, "worker_path"])
    if given.get("decoding_mode") == "lookahead" and not all(given.get(key) for key in _LOOKAHEAD):
        missing = ", ".join(key for key in _LOOKAHEAD if not given.get(key))
        yield model.find(LOOKAHEAD, f"lookahead without {missing}", "parameters", "decoding_mode")
    names = {tensor.name for tensor in config.input}
    for name in _REQUIRED:
        if name not in names:
            yield model.find(INPUTS, f"input {name} is not listed", "input")
    if not config.model_transaction_policy.decoupled:
        yield model.find(STREAMING, "not decoupled: streaming requests fail", "model_transaction_policy")
    yield from _built(model, given)


def _relative(model: Model, given: Mapping[str, str]) -> Iterator[Finding]:
    """Paths of engines that are not absolute; those of a template are filled in later."""
    for key in _ENGINES:
        text = given.get(key, "")
        if text and "${" not in text and not Path(text).is_absolute():
            said = f"{key} is `{text}`, below the directory the server was started in"
            yield model.find(RELATIVE, said, "parameters", key, hint="the absolute path on the server")


def _built(model: Model, given: Mapping[str, str]) -> Iterator[Finding]:
    """Against the engine's own config.json, where it stands on this machine."""
    path, target = Path(given.get("gpt_model_path", "")) / "config.json", model.target
    engine = json_object(path) if path.is_absolute() else None
    if engine is None:
        return
    build, version = engine.get("build_config"), engine.get("version")
    wanted = target.release.trtllm if target.release_named else None
    if wanted and isinstance(version, str) and version != wanted:
        yield model.find(
            VERSION,
            f"the engine was built by TensorRT-LLM {version}, Triton {target.release.tag} has {wanted}",
            *("parameters", "gpt_model_path"),
            hint=f"build it in tritonserver:{target.release.tag}-trtllm-python-py3",
        )
    build = build if isinstance(build, dict) else {}
    plugins = build.get("plugin_config")
    paged = plugins.get("use_paged_context_fmha") if isinstance(plugins, dict) else None
    most, beams = build.get("max_batch_size"), build.get("max_beam_width")
    if isinstance(most, int) and model.config.max_batch_size > most:
        text = f"max_batch_size {model.config.max_batch_size}, and the engine was built for {most}"
        yield model.find(BUILT, text, "max_batch_size", hint=f"{most}, or build it with --max_batch_size")
    asked = given.get("max_beam_width", "")
    if isinstance(beams, int) and asked.isdecimal() and int(asked) > beams:
        text = f"max_beam_width {asked}, and the engine was built for {beams}"
        yield model.find(BUILT, text, "parameters", "max_beam_width")
    if paged is False and given.get("enable_chunked_context", "").lower() in ("true", "1"):
        text = "enable_chunked_context, and the engine was built without use_paged_context_fmha: it stays off"
        yield model.find(BUILT, text, "parameters", "enable_chunked_context")
