"""The models around a TensorRT-LLM engine with in-flight batching: configs, code and build commands. Layer: llm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tooling.config.proto import ModelConfig, pb
from tooling.llm.llm_api import policy
from tooling.llm.model_facts import ModelFacts
from tooling.llm.model_place import mounted
from tooling.llm.plan import Plan

Form = Literal["ensemble", "bls"]
MODELS: Final = Path(__file__).parent / "models"
_IDS: Final = ("TYPE_INT32", -1)
_ONE: Final = ("TYPE_INT32", 1)
_MADE: Final = {
    "input_ids": _IDS,
    "input_lengths": _ONE,
    "request_output_len": _ONE,
    "end_id": _ONE,
    "pad_id": _ONE,
}
_SAMPLING: Final = {
    "temperature": ("TYPE_FP32", "temperature"),
    "top_k": ("TYPE_INT32", "runtime_top_k"),
    "top_p": ("TYPE_FP32", "runtime_top_p"),
    "seed": ("TYPE_UINT64", "seed"),
}
"""The sampling inputs: their type, and what the engine calls them."""
FORMATS: Final = ("fp8", "int8_sq", "int8_wo", "int4_awq", "int4_wo", "w4a8_awq", "nvfp4")
"""What the image's quantize.py makes of weights."""
_NEWER: Final = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
"""Parameters that later releases look up without a default: they must be there, empty or not."""


@dataclass(frozen=True, slots=True)
class Names:
    """The models of a set, after the one that clients call."""

    top: str

    @property
    def preprocessing(self) -> str:
        return f"{self.top}_preprocessing"

    @property
    def engine(self) -> str:
        return f"{self.top}_engine"

    @property
    def draft(self) -> str:
        return f"{self.top}_draft"

    @property
    def postprocessing(self) -> str:
        return f"{self.top}_postprocessing"


def engine_config(name: str, plan: Plan, engine: str, own: Mapping[str, Any], *, decoupled: bool) -> ModelConfig:
    """The engine's own model. Variable lengths are ragged, so that requests of different lengths are not held apart."""
    config = pb().ModelConfig(name=name, backend="tensorrtllm", max_batch_size=plan.sequences)
    config.model_transaction_policy.decoupled = decoupled
    config.dynamic_batching.SetInParent()
    for tensor in ("input_ids", "draft_input_ids"):
        config.input.add(name=tensor, data_type=pb().TYPE_INT32, dims=[-1], allow_ragged_batch=True, optional=True)
    scalars = {name: kind for name, (kind, length) in _MADE.items() if length == 1}
    scalars |= {known: kind for kind, known in _SAMPLING.values()}
    scalars |= {"streaming": "TYPE_BOOL", "stop": "TYPE_BOOL"}
    for tensor, kind in scalars.items():
        added = config.input.add(name=tensor, data_type=pb().DataType.Value(kind), dims=[1])
        added.reshape.SetInParent()
        added.optional = tensor not in ("input_lengths", "request_output_len")
    config.output.add(name="output_ids", data_type=pb().TYPE_INT32, dims=[-1, -1])
    config.output.add(name="sequence_length", data_type=pb().TYPE_INT32, dims=[-1])
    config.instance_group.add(count=1, kind=pb().ModelInstanceGroup.KIND_CPU)
    for key, value in {**parameters(plan, engine), **own}.items():
        config.parameters[key].string_value = value if isinstance(value, str) else json.dumps(value)
    return config


def parameters(plan: Plan, engine: str) -> dict[str, str]:
    """The engine's parameters; batch and lengths are the engine's own, from its build."""
    wants = plan.wants
    found = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": engine,
        "batch_scheduler_policy": policy(plan).lower(),
        "kv_cache_free_gpu_mem_fraction": f"{wants.share:g}",
        "enable_kv_cache_reuse": _flag(wants.prefix_caching or wants.speculation is not None),
        "enable_chunked_context": "true",
        "max_beam_width": "1",
        "exclude_input_in_output": "true",
        "cancellation_check_period_ms": "100",
        **dict.fromkeys(_NEWER, ""),
    }
    if plan.layout.gpus > 1:
        found["gpu_device_ids"] = ",".join(map(str, range(plan.layout.gpus)))
    return found


def shared_tokens(plan: Plan) -> int:
    """Tokens that the caches of an engine and of its draft both hold, beside each other on one GPU."""
    return max(plan.context, (plan.budget.cache - plan.budget.work) // plan.budget.token)


def _flag(on: bool) -> str:
    return "true" if on else "false"


def tokenizer_configs(names: Names, plan: Plan, end_id: int, pad_id: int) -> tuple[ModelConfig, ModelConfig]:
    """The models before and behind the engine."""
    before = pb().ModelConfig(name=names.preprocessing, backend="python", max_batch_size=plan.sequences)
    before.input.add(name="text_input", data_type=pb().TYPE_STRING, dims=[1])
    before.input.add(name="max_tokens", data_type=pb().TYPE_INT32, dims=[1])
    for tensor, (kind, length) in _MADE.items():
        before.output.add(name=tensor, data_type=pb().DataType.Value(kind), dims=[length])
    behind = pb().ModelConfig(name=names.postprocessing, backend="python", max_batch_size=plan.sequences)
    behind.input.add(name="output_ids", data_type=pb().TYPE_INT32, dims=[-1, -1])
    behind.input.add(name="sequence_length", data_type=pb().TYPE_INT32, dims=[-1])
    behind.output.add(name="text_output", data_type=pb().TYPE_STRING, dims=[-1])
    for config in (before, behind):
        config.parameters["tokenizer_dir"].string_value = str(plan.facts.path)
        config.dynamic_batching.SetInParent()
        config.instance_group.add(count=1, kind=pb().ModelInstanceGroup.KIND_CPU)
    before.parameters["end_id"].string_value = str(end_id)
    before.parameters["pad_id"].string_value = str(pad_id)
    return before, behind


def top_config(names: Names, form: Form, plan: Plan) -> ModelConfig:
    """The model that clients call: texts in, texts out."""
    ensemble = form == "ensemble"
    config = pb().ModelConfig(name=names.top, max_batch_size=plan.sequences)
    config.input.add(name="text_input", data_type=pb().TYPE_STRING, dims=[1])
    config.input.add(name="max_tokens", data_type=pb().TYPE_INT32, dims=[1])
    for tensor, (kind, _) in _SAMPLING.items():
        config.input.add(name=tensor, data_type=pb().DataType.Value(kind), dims=[1], optional=True)
    config.output.add(name="text_output", data_type=pb().TYPE_STRING, dims=[-1])
    if ensemble:
        config.platform = "ensemble"
        _join(config, names)
        return config
    config.backend = "python"
    config.input.add(name="stream", data_type=pb().TYPE_BOOL, dims=[1], optional=True)
    config.model_transaction_policy.decoupled = True
    config.instance_group.add(count=1, kind=pb().ModelInstanceGroup.KIND_CPU)
    for key in ("preprocessing", "engine", "postprocessing"):
        config.parameters[key].string_value = getattr(names, key)
    if plan.wants.speculation:
        config.input.add(name="num_draft_tokens", data_type=pb().TYPE_INT32, dims=[1], optional=True)
        config.parameters["draft"].string_value = names.draft
    return config


def _join(config: ModelConfig, names: Names) -> None:
    """The three steps; what stands between two of them has a leading underscore."""
    step = config.ensemble_scheduling.step.add(model_name=names.preprocessing, model_version=-1)
    step.input_map.update({"text_input": "text_input", "max_tokens": "max_tokens"})
    step.output_map.update({name: f"_{name}" for name in _MADE})
    step = config.ensemble_scheduling.step.add(model_name=names.engine, model_version=-1)
    step.input_map.update({name: f"_{name}" for name in _MADE})
    step.input_map.update({known: name for name, (_, known) in _SAMPLING.items()})
    step.output_map.update({"output_ids": "_output_ids", "sequence_length": "_sequence_length"})
    step = config.ensemble_scheduling.step.add(model_name=names.postprocessing, model_version=-1)
    step.input_map.update({"output_ids": "_output_ids", "sequence_length": "_sequence_length"})
    step.output_map["text_output"] = "text_output"


def token_ids(facts: ModelFacts) -> tuple[int, int]:
    """The ids that end and pad a sequence, by the model's own configs; the end pads where no padding is named."""
    found: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        try:
            content = json.loads((facts.path / name).read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict):
            found |= {key: content[key] for key in ("eos_token_id", "pad_token_id") if content.get(key) is not None}
    end = found.get("eos_token_id", 2)
    end = end[0] if isinstance(end, list) and end else end
    pad = found.get("pad_token_id", end)
    return (end if isinstance(end, int) else 2), (pad if isinstance(pad, int) else 2)


def build_commands(plan: Plan, image: str, engine: Path) -> list[str]:
    """What builds the engine in the image that will serve it: a checkpoint, with its quantisation, then the engine."""
    from shlex import quote

    wants, layout = plan.wants, plan.layout
    checkpoint, model = engine.with_name(f"{engine.name}-checkpoint"), plan.facts.path
    start = f"docker run --rm --gpus all --shm-size 2g -v {quote(str(mounted(model)))}:{quote(str(mounted(model)))}:ro "
    start += f"-v {quote(str(engine.parent))}:{quote(str(engine.parent))} {image}"
    convert = (
        f"{start} python3 /app/examples/quantization/quantize.py --model_dir {quote(str(model))} "
        f"--output_dir {quote(str(checkpoint))} --dtype {_dtype(plan.facts)} "
        f"--qformat {wants.quantization or 'full_prec'} --tp_size {layout.tensor_parallel} "
        f"--pp_size {layout.pipeline_parallel}"
    )
    build = (
        f"{start} trtllm-build --checkpoint_dir {quote(str(checkpoint))} --output_dir {quote(str(engine))} "
        f"--max_batch_size {plan.sequences} --max_seq_len {plan.context} --max_input_len {plan.context - 1} "
        f"--max_num_tokens {plan.batched_tokens} --kv_cache_type paged --remove_input_padding enable "
        "--use_paged_context_fmha enable --gemm_plugin auto"
    )
    if wants.cache_type == "fp8":
        convert += " --kv_cache_dtype fp8"
        build += " --use_fp8_context_fmha enable" if wants.quantization == "fp8" else ""
    if wants.speculation:
        build += f" --speculative_decoding_mode draft_tokens_external --max_draft_len {wants.speculation.tokens}"
    return [convert, build]


def _dtype(facts: ModelFacts) -> str:
    return facts.dtype if facts.dtype in ("float16", "bfloat16", "float32") else "bfloat16"
