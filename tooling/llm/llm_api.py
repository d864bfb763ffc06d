"""TensorRT-LLM's LLM API under Triton: the settings it takes in model.yaml, and those of a plan. Layer: llm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tooling.config.proto import ModelConfig, pb
from tooling.errors import UsageError
from tooling.llm.model_place import relative_paths
from tooling.llm.plan import Plan, Speculation
from tooling.signature.vllm_model import unnamed

FILE: Final = "model.yaml"
CODE: Final = ("model.py", "helpers.py")
"""Files of the image that belong beside model.yaml; they change with the release."""
IN_IMAGE: Final = "/app/all_models/llmapi/tensorrt_llm/1"
ARGUMENTS: Final = frozenset(
    (
        *("model", "tokenizer", "tokenizer_mode", "custom_tokenizer", "skip_tokenizer_init", "trust_remote_code"),
        *("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "gpus_per_node", "dtype"),
        *("revision", "tokenizer_revision", "model_kwargs", "moe_cluster_parallel_size", "moe_tensor_parallel_size"),
        *("moe_expert_parallel_size", "enable_attention_dp", "enable_lm_head_tp_in_adp", "pp_partition", "cp_config"),
        *("load_format", "enable_lora", "lora_config", "kv_cache_config", "enable_chunked_prefill"),
        *("guided_decoding_backend", "batched_logits_processor", "iter_stats_max_iterations", "peft_cache_config"),
        *("request_stats_max_iterations", "scheduler_config", "cache_transceiver_config", "sparse_attention_config"),
        *("speculative_config", "max_batch_size", "max_input_len", "max_seq_len", "max_beam_width", "max_num_tokens"),
        *("gather_generation_logits", "num_postprocess_workers", "postprocess_tokenizer_dir", "reasoning_parser"),
        *("decoding_config", "otlp_traces_endpoint", "backend", "return_perf_metrics", "perf_metrics_max_requests"),
        *("orchestrator_type", "env_overrides", "garbage_collection_gen0_threshold", "cuda_graph_config"),
        *("attention_dp_config", "disable_overlap_scheduler", "moe_config", "nvfp4_gemm_config", "attn_backend"),
        *("sampler_type", "sampler_force_async_worker", "enable_iter_perf_stats", "enable_iter_req_stats"),
        *("print_iter_log", "batch_wait_timeout_ms", "batch_wait_timeout_iters", "batch_wait_max_tokens_ratio"),
        *("torch_compile_config", "enable_autotuner", "enable_layerwise_nvtx_marker", "enable_min_latency"),
        *("stream_interval", "force_dynamic_quantization", "allreduce_strategy", "checkpoint_loader"),
        *("checkpoint_format", "kv_connector_config", "mm_encoder_only", "ray_worker_extension_cls"),
        *("ray_placement_config", "enable_sleep", "disable_flashinfer_sampling", "max_stats_len", "quant_config"),
        *("build_config", "calib_config", "workspace", "enable_tqdm", "enable_build_cache", "fast_build"),
        *("extended_runtime_perf_knob_config", "batching_type", "normalize_log_probs", "embedding_parallel_mode"),
        *("enable_prompt_adapter", "max_prompt_adapter_token", "auto_deploy_config", "use_cuda_graph"),
        *("logits_post_processors", "layer_wise_benchmarks_config"),
    )
)
"""The arguments of LLM() by TensorRT-LLM 1.2; a few come and go with the version."""
CACHE: Final = frozenset(
    (
        *("enable_block_reuse", "max_tokens", "max_attention_window", "sink_token_length", "free_gpu_memory_fraction"),
        *("host_cache_size", "onboard_blocks", "cross_kv_cache_fraction", "secondary_offload_min_priority"),
        *("event_buffer_max_size", "attention_dp_events_gather_period_ms", "enable_partial_reuse"),
        *("copy_on_partial_reuse", "use_uvm", "max_gpu_total_bytes", "dtype", "mamba_ssm_cache_dtype"),
        *("tokens_per_block", "use_kv_cache_manager_v2", "max_util_for_resume"),
    )
)
"""What kv_cache_config takes."""
SCHEDULER: Final = frozenset(
    ("capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config", "waiting_queue_policy")
)
POLICIES: Final = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH")
_FLAGS: Final = ("return_finish_reason", "return_stop_reason", "return_cumulative_logprob", "stop")
_INPUTS: Final[Mapping[str, tuple[str, int]]] = {
    "streaming": ("TYPE_BOOL", 1),
    "sampling_param_best_of": ("TYPE_INT32", 1),
    "sampling_param_temperature": ("TYPE_FP32", 1),
    "sampling_param_top_k": ("TYPE_INT32", 1),
    "sampling_param_top_p": ("TYPE_FP32", 1),
    "sampling_param_frequency_penalty": ("TYPE_FP32", 1),
    "sampling_param_presence_penalty": ("TYPE_FP32", 1),
    "sampling_param_max_tokens": ("TYPE_INT32", 1),
    "sampling_param_stop": ("TYPE_STRING", -1),
    "sampling_param_seed": ("TYPE_UINT64", 1),
    "sampling_param_exclude_input_from_output": ("TYPE_BOOL", 1),
    "sampling_param_return_perf_metrics": ("TYPE_BOOL", 1),
    **dict.fromkeys(_FLAGS, ("TYPE_BOOL", 1)),
}
_OUTPUTS: Final[Mapping[str, tuple[str, int]]] = {
    **dict.fromkeys(("text_output", "finish_reason", "stop_reason"), ("TYPE_STRING", -1)),
    "cumulative_logprob": ("TYPE_FP32", -1),
}


def settings(plan: Plan, model: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The content of model.yaml; `own` arguments are put over the chosen ones, mappings joined key by key.

    Raises UsageError for arguments that LLM() does not take, and for relative paths of models.
    """
    unknown = [name for name in own if name not in ARGUMENTS]
    if unknown:
        from tooling.errors import suggest

        raise UsageError(
            "LLM() has no such argument", where="--engine", got=f"`{unknown[0]}`", hint=suggest(unknown[0], ARGUMENTS)
        )
    if problems := list(relative_paths(own, "--engine")):
        raise UsageError(problems=problems)
    wants = plan.wants
    found: dict[str, Any] = {
        "model": model,
        "backend": "pytorch",
        "tensor_parallel_size": plan.layout.tensor_parallel,
        "pipeline_parallel_size": plan.layout.pipeline_parallel,
        "max_batch_size": plan.sequences,
        "max_num_tokens": plan.batched_tokens,
        "max_seq_len": plan.context,
        "enable_chunked_prefill": True,
        "kv_cache_config": {
            "free_gpu_memory_fraction": round(wants.share, 3),
            "enable_block_reuse": wants.prefix_caching,
            "dtype": wants.cache_type,
        },
        "scheduler_config": {"capacity_scheduler_policy": policy(plan)},
    }
    if wants.speculation:
        found["speculative_config"] = _speculation(wants.speculation)
        found["disable_overlap_scheduler"] = True
    for name, value in own.items():
        kept = found.get(name)
        found[name] = {**kept, **value} if isinstance(kept, dict) and isinstance(value, dict) else value
    if problem := unnamed(found, Path("--engine")):
        raise UsageError(problems=[problem])
    return {**found, "triton_config": {"max_batch_size": 0, "decoupled": True, "cancellation_check_period_ms": 100}}


def policy(plan: Plan) -> str:
    """Whether a sequence starts only once its whole length is sure to fit, or as soon as there is room at all."""
    return "GUARANTEED_NO_EVICT" if plan.budget.tokens >= plan.sequences * plan.mean_tokens else "MAX_UTILIZATION"


def _speculation(speculation: Speculation) -> dict[str, Any]:
    if speculation.draft is None:
        return {"decoding_type": "NGram", "max_draft_len": speculation.tokens, "max_matching_ngram_size": 4}
    named = {"speculative_model_dir": str(speculation.draft)}  # later versions read it under this name as well
    return {"decoding_type": "Draft_Target", "max_draft_len": speculation.tokens, **named}


def config(name: str, instances: int = 1) -> ModelConfig:
    """The config.pbtxt. Batch size and transaction policy stay out: they come from model.yaml, by auto-complete."""
    made = pb().ModelConfig(name=name, backend="python")
    made.input.add(name="text_input", data_type=pb().TYPE_STRING, dims=[-1])
    for tensor, (kind, length) in _INPUTS.items():
        made.input.add(name=tensor, data_type=pb().DataType.Value(kind), dims=[length], optional=True)
    for tensor, (kind, length) in _OUTPUTS.items():
        made.output.add(name=tensor, data_type=pb().DataType.Value(kind), dims=[length])
    made.instance_group.add(count=instances, kind=pb().ModelInstanceGroup.KIND_CPU)
    return made


def text_of(content: Mapping[str, Any]) -> str:
    """The settings as the file has them."""
    import yaml

    head = "# The arguments of TensorRT-LLM's LLM(), and triton_config for what config.pbtxt must not say.\n"
    return head + str(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))
