"""Rules about TensorRT-LLM: engines with the in-flight batcher, and repositories of the LLM API. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tooling.check.files import is_file, read_limited
from tooling.check.finding import Evidence, Finding, Place, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, note
from tooling.check.rules.options import Reads, anything, integer, one_of, unknown, unread

_SOURCE: Final = "tensorrtllm backend"
_LLM_API: Final = "TensorRT-LLM's llmapi model"
_LARGEST: Final = 2**17
_TYPES: Final = ("V1", "INFLIGHT_BATCHING", "INFLIGHT_FUSED_BATCHING")
_MODES: Final = (
    *("TOP_K", "TOP_P", "TOP_K_TOP_P", "BEAM_SEARCH"),
    *("MEDUSA", "REDRAFTER", "LOOKAHEAD", "EAGLE"),
)
_LOOKAHEAD: Final = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
_REQUIRED: Final = ("input_lengths", "request_output_len")
_DEVICES: Final = "gpu_device_ids"


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


_PARAMETERS: Final[Mapping[str, Reads]] = {
    **dict.fromkeys(
        (
            *("gpt_model_type", "gpt_model_path", "encoder_model_path", _DEVICES, "participant_ids"),
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


def _parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


_TYPE_GIVEN: Final = _parameter("gpt_model_type", "inflight_fused_batching")
_ENGINE_GIVEN: Final = _parameter("gpt_model_path", "/engines/llm")
_INPUTS: Final = "".join(
    f'input {{ name: "{name}" data_type: TYPE_INT32 dims: [ 1 ] reshape {{ }} }}\n' for name in _REQUIRED
)


def _example(config: str) -> str:
    return f'backend: "tensorrtllm"\nmax_batch_size: 8\n{config}--- 1/model.onnx\nabsent'


def _llm_api(config: str, settings: str = "model: org/llm") -> str:
    code = "from tensorrt_llm import LLM\nclass TritonPythonModel: pass"
    return f'backend: "python"\n{config}--- 1/model.onnx\nabsent\n--- 1/model.py\n{code}\n--- 1/model.yaml\n{settings}'


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
    _example(_TYPE_GIVEN + _ENGINE_GIVEN + _INPUTS + _parameter("worker_path", "/opt/worker")),
    _SOURCE,
    evidence=Evidence.READ,
)
VALUE = advice(
    "trtllm-parameter-value",
    "A parameter of TensorRT-LLM cannot be read: its default is taken.",
    "Booleans are True or 1, False or 0; shares lie between 0 and 1. The server only warns in its log.",
    _example(_TYPE_GIVEN + _ENGINE_GIVEN + _INPUTS + _parameter("batch_scheduler_policy", "max_use")),
    _SOURCE,
)
UNKNOWN = advice(
    "trtllm-parameter-unknown",
    "The tensorrtllm backend does not read this parameter.",
    "It is ignored in silence.",
    _example(_TYPE_GIVEN + _ENGINE_GIVEN + _INPUTS + _parameter("kv_cache_free_gpu_memory_fraction", "0.8")),
    _SOURCE,
)
LOOKAHEAD = advice(
    "trtllm-lookahead",
    "decoding_mode is lookahead, and its three sizes are not all given.",
    f"Newer releases refuse it: {', '.join(_LOOKAHEAD)}.",
    _example(_TYPE_GIVEN + _ENGINE_GIVEN + _INPUTS + _parameter("decoding_mode", "lookahead")),
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
API_FILE = load(
    "llm-api-settings-broken",
    "model.yaml is missing, or no YAML mapping that names a model.",
    "It holds the arguments of TensorRT-LLM's LLM(), and a triton_config.",
    _llm_api("", "model: [ org/llm"),
    _LLM_API,
    evidence=Evidence.READ,
)
API_FIELDS = load(
    "llm-api-batching-in-config",
    "max_batch_size or the transaction policy stands in config.pbtxt.",
    "They come from `triton_config` in model.yaml, through auto-complete, which does not lower a batch size.",
    _llm_api("max_batch_size: 8\n"),
    _LLM_API,
    evidence=Evidence.READ,
)
API_DEVICES = load(
    "llm-api-devices",
    "Several instances, and no GPUs for each.",
    "gpu_device_ids gives them, as `0,1;2,3`: with `;` between instances.",
    _llm_api("instance_group { kind: KIND_CPU count: 2 }\n"),
    _LLM_API,
    evidence=Evidence.READ,
)
RULES = (
    *(TYPE, ENGINE, WORKER, VALUE, UNKNOWN, LOOKAHEAD, INPUTS, STREAMING),
    *(API_FILE, API_FIELDS, API_DEVICES),
)


def tensorrt_llm(model: Model) -> Iterator[Finding]:
    """Both kinds of repositories."""
    if model.config.backend == "tensorrtllm":
        yield from _batcher(model)
    elif model.config.backend == "python":
        for version in model.served:
            folder = model.version_dir(version)
            code = _code(folder / model.config.default_model_filename) + _code(folder / "helpers.py")
            if b"tensorrt_llm" in code and is_file(folder / "model.yaml"):
                yield from _api(model, folder / "model.yaml")
            elif b"tensorrt_llm" in code and b"model.yaml" in code:
                yield model.find(
                    API_FILE,
                    f"{model.name}/{version.number}/model.yaml not found",
                    place=Place(model.shown_path(folder)),
                    says=f"'model.yaml' containing TRT-LLM engine args not found in '{folder}'",
                )


def _batcher(model: Model) -> Iterator[Finding]:
    config = model.config
    given = {key: value.string_value for key, value in config.parameters.items()}
    start = "unexpected error when creating modelInstanceState: "
    if given.get("gpt_model_type", "").upper() not in _TYPES:
        says = "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching."
        if "gpt_model_type" not in given:
            says = "Cannot find parameter with name: gpt_model_type"
        text = f"gpt_model_type is `{given['gpt_model_type']}`" if "gpt_model_type" in given else "no gpt_model_type"
        yield model.find(TYPE, text, "parameters", "gpt_model_type", says=start + says, hint="inflight_fused_batching")
    if not given.get("gpt_model_path") and not given.get("encoder_model_path"):
        yield model.find(
            ENGINE,
            "neither gpt_model_path nor encoder_model_path is given",
            "parameters",
            says=f"{start}Both encoder and decoder model paths are empty",
        )
    if "worker_path" in given:
        yield model.find(
            WORKER,
            "worker_path is refused",
            *("parameters", "worker_path"),
            hint="executor_worker_path, or leave it out",
        )
    for key, text in unread(model, _PARAMETERS):
        if text and "${" not in text:  # empty is left out, and an unfilled template has a rule of its own
            yield model.find(VALUE, f"parameter {key}: `{text}` is not read", "parameters", key)
    yield from unknown(model, UNKNOWN, [*_PARAMETERS, "worker_path"])
    if given.get("decoding_mode") == "lookahead" and not all(given.get(key) for key in _LOOKAHEAD):
        missing = ", ".join(key for key in _LOOKAHEAD if not given.get(key))
        yield model.find(LOOKAHEAD, f"lookahead without {missing}", "parameters", "decoding_mode")
    names = {tensor.name for tensor in config.input}
    for name in _REQUIRED:
        if name not in names:
            yield model.find(INPUTS, f"input {name} is not listed", "input")
    if not config.model_transaction_policy.decoupled:
        yield model.find(STREAMING, "not decoupled: streaming requests fail", "model_transaction_policy")


def _code(path: Path) -> bytes:
    try:
        return read_limited(path, _LARGEST) or b""
    except OSError:
        return b""


def _api(model: Model, path: Path) -> Iterator[Finding]:
    config = model.config
    settings = _settings(path)
    if settings is None:
        place = Place(model.shown_path(path))
        yield model.find(API_FILE, "model.yaml is no mapping with `model`", place=place, says="Failed to parse YAML")
    wanted = (settings or {}).get("triton_config")
    batch = wanted.get("max_batch_size", 0) if isinstance(wanted, dict) else 0
    if isinstance(batch, int) and config.max_batch_size > batch:
        yield model.find(
            API_FIELDS,
            f"max_batch_size {config.max_batch_size}, and triton_config in model.yaml says {batch}",
            "max_batch_size",
            says=f"configuration specified max_batch_size {config.max_batch_size}, but in auto-complete-config "
            f"function for model '{config.name}' specified max_batch_size {batch}",
            hint="leave it out here",
            fix=("-max_batch_size",),
        )
    count = sum(group.count for group in model.instances)
    devices = config.parameters[_DEVICES].string_value if _DEVICES in config.parameters else ""
    groups = len([part for part in devices.split(";") if part.strip()])
    if count > 1 and groups < count:
        says = f"{_DEVICES} mismatch: instance {groups} >= {groups} entries"
        if not groups:
            says = f"{_DEVICES} parameter required when instance count > 1"
        yield model.find(API_DEVICES, f"{count} instances, and {_DEVICES} is `{devices}`", "instance_group", says=says)


def _settings(path: Path) -> dict[str, Any] | None:
    import yaml

    try:
        content = yaml.load(read_limited(path, _LARGEST) or b"", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("model"), str) else None
