"""Rules about models that run TensorRT-LLM's LLM API in Triton's Python backend. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tooling.check.files import is_file, read_limited, yaml_object
from tooling.check.finding import Evidence, Finding, Place
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load
from tooling.check.rules.llm_files import arguments_file
from tooling.errors import suggest
from tooling.llm.llm_api import ARGUMENTS, CACHE, FILE, POLICIES, SCHEDULER

_SOURCE: Final = "TensorRT-LLM's llmapi model"
_LARGEST: Final = 2**17
_TRITON: Final = ("max_batch_size", "decoupled")
_DEVICES: Final = "gpu_device_ids"
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    **dict.fromkeys(
        (
            *("tensor_parallel_size", "pipeline_parallel_size", "max_batch_size", "max_num_tokens", "max_seq_len"),
            *("max_input_len", "max_beam_width"),
        ),
        int,
    ),
    **dict.fromkeys(("enable_chunked_prefill", "trust_remote_code", "disable_overlap_scheduler", "enable_lora"), bool),
    **dict.fromkeys(("kv_cache_config", "scheduler_config", "speculative_config", "quant_config"), dict),
}
"""What pydantic takes of the settings that people write; texts of numbers are turned into numbers."""


def _example(config: str, settings: str = "model: org/llm\ntriton_config: {max_batch_size: 0, decoupled: true}") -> str:
    code = "from tensorrt_llm import LLM\nclass TritonPythonModel: pass"
    return f'backend: "python"\n{config}\n--- 1/model.onnx\nabsent\n--- 1/model.py\n{code}\n--- 1/{FILE}\n{settings}'


def _set(settings: str) -> str:
    return _example("", f"model: org/llm\ntriton_config: {{max_batch_size: 0, decoupled: true}}\n{settings}")


BROKEN = load(
    "llm-api-settings-broken",
    "model.yaml is missing, or no YAML mapping that names a model.",
    "It holds the arguments of TensorRT-LLM's LLM(), and a triton_config.",
    _example("", "model: [ org/llm"),
    _SOURCE,
    evidence=Evidence.READ,
)
TRITON = load(
    "llm-api-triton-config",
    "model.yaml has no triton_config with max_batch_size and decoupled.",
    "The model reads both without a default, as soon as its config is completed.",
    _example("", "model: org/llm\ntriton_config: {max_batch_size: 0}"),
    _SOURCE,
    evidence=Evidence.READ,
)
FIELDS = load(
    "llm-api-batching-in-config",
    "max_batch_size or the transaction policy stands in config.pbtxt.",
    "They come from `triton_config` in model.yaml, through auto-complete, which does not lower a batch size.",
    _example("max_batch_size: 8"),
    _SOURCE,
    evidence=Evidence.READ,
)
DEVICES = load(
    "llm-api-devices",
    "Several instances, and no GPUs for each.",
    "gpu_device_ids gives them, as `0,1;2,3`: with `;` between instances.",
    _example("instance_group { kind: KIND_CPU count: 2 }"),
    _SOURCE,
    evidence=Evidence.READ,
)
UNKNOWN = advice(
    "llm-api-argument-unknown",
    "LLM() has no such argument.",
    "It refuses unknown ones. The list is that of TensorRT-LLM 1.2: a few come and go with the version.",
    _set("kv_cache_config: {free_gpu_mem_fraction: 0.8}"),
    "TensorRT-LLM's llm_args",
)
VALUE = load(
    "llm-api-argument-value",
    "An argument of LLM() has a value that it does not take.",
    "Shares lie between 0 and 1, policies are one of a few words, a speculation says how far and by what.",
    _set("scheduler_config: {capacity_scheduler_policy: max_utilization}"),
    "TensorRT-LLM's llm_args",
    evidence=Evidence.READ,
)
BUDGET = advice(
    "llm-api-token-budget",
    "A step computes fewer tokens than there may be sequences.",
    "TensorRT-LLM only warns: max_num_tokens below max_batch_size leaves some sequences without a token in each step.",
    _set("max_batch_size: 256\nmax_num_tokens: 128"),
    "TensorRT-LLM's llm_args",
)
RULES = (BROKEN, TRITON, FIELDS, DEVICES, UNKNOWN, VALUE, BUDGET)


def llm_api(model: Model) -> Iterator[Finding]:
    """Python models that start TensorRT-LLM from a model.yaml."""
    if model.config.backend != "python":
        return
    for version in model.served:
        folder = model.version_dir(version)
        code = _code(folder / model.config.default_model_filename) + _code(folder / "helpers.py")
        if b"tensorrt_llm" in code and is_file(folder / FILE):
            yield from _check(model, folder / FILE)
        elif b"tensorrt_llm" in code and FILE.encode() in code:
            yield model.find(
                BROKEN,
                f"{model.name}/{version.number}/{FILE} not found",
                place=Place(model.shown_path(folder)),
                says=f"'{FILE}' containing TRT-LLM engine args not found in '{folder}'",
            )


def _code(path: Path) -> bytes:
    try:
        return read_limited(path, _LARGEST) or b""
    except OSError:
        return b""


def _check(model: Model, path: Path) -> Iterator[Finding]:
    config, place, content = model.config, Place(model.shown_path(path)), yaml_object(path, _LARGEST)
    model_id = (content or {}).get("model")
    settings = content if isinstance(model_id, str) and model_id else None
    if settings is None:
        says = "Failed to parse YAML" if content is None else None
        yield model.find(BROKEN, f"{FILE}: {_fault(content)}", place=place, says=says)
    triton = (settings or {}).get("triton_config")
    missing = [key for key in _TRITON if not isinstance(triton, dict) or key not in triton]
    if settings is not None and missing:
        text = f"triton_config has no {' and no '.join(missing)}"
        yield model.find(TRITON, text, place=place, says=f"KeyError: '{missing[0] if triton else 'triton_config'}'")
    batch = triton.get("max_batch_size", 0) if isinstance(triton, dict) else 0
    if isinstance(batch, int) and config.max_batch_size > batch:
        yield model.find(
            FIELDS,
            f"max_batch_size {config.max_batch_size}, and triton_config in {FILE} says {batch}",
            "max_batch_size",
            says=f"configuration specified max_batch_size {config.max_batch_size}, but in auto-complete-config "
            f"function for model '{config.name}' specified max_batch_size {batch}",
            hint="leave it out here",
            fix=("-max_batch_size",),
        )
    yield from _devices(model)
    if settings is not None:
        yield from arguments_file(model, place, path, settings)
        yield from _arguments(model, place, settings)


def _devices(model: Model) -> Iterator[Finding]:
    given = model.config.parameters
    count = sum(group.count for group in model.instances)
    devices = given[_DEVICES].string_value if _DEVICES in given else ""
    groups = len([part for part in devices.split(";") if part.strip()])
    if count > 1 and groups < count:
        says = f"{_DEVICES} mismatch: instance {groups} >= {groups} entries"
        if not groups:
            says = f"{_DEVICES} parameter required when instance count > 1"
        yield model.find(DEVICES, f"{count} instances, and {_DEVICES} is `{devices}`", "instance_group", says=says)


def _arguments(model: Model, place: Place, settings: Mapping[str, Any]) -> Iterator[Finding]:
    nested = (("", settings, ARGUMENTS), ("kv_cache_config.", settings.get("kv_cache_config"), CACHE))
    for prefix, given, known in (*nested, ("scheduler_config.", settings.get("scheduler_config"), SCHEDULER)):
        for name in given if isinstance(given, dict) else ():
            if name not in known and not (not prefix and name == "triton_config"):
                text = f"LLM() has no argument {prefix}{name}"
                yield model.find(UNKNOWN, text, place=place, hint=suggest(str(name), known))
    for text in _faults(settings):
        yield model.find(VALUE, text, place=place)
    batch, tokens = settings.get("max_batch_size"), settings.get("max_num_tokens")
    if isinstance(batch, int) and isinstance(tokens, int) and batch > tokens:
        text = f"max_num_tokens {tokens} is less than max_batch_size {batch}"
        yield model.find(BUDGET, text, place=place, hint="raise max_num_tokens")


def _faults(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, kind in _TYPES.items():
        value = settings.get(name)
        wrong = value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool)))
        if wrong and not (isinstance(value, str) and kind in (int, bool)):
            yield f"{name} is `{value}`"
    cache, scheduler = settings.get("kv_cache_config"), settings.get("scheduler_config")
    share = cache.get("free_gpu_memory_fraction") if isinstance(cache, dict) else None
    if isinstance(share, int | float) and not 0 <= share <= 1:
        yield f"kv_cache_config.free_gpu_memory_fraction is {share}, a share of 0 to 1"
    policy = scheduler.get("capacity_scheduler_policy") if isinstance(scheduler, dict) else None
    if policy is not None and policy not in POLICIES:
        yield f"scheduler_config.capacity_scheduler_policy is `{policy}`, and one of {', '.join(POLICIES)} is taken"
    yield from _speculation(settings.get("speculative_config"))


def _speculation(given: object) -> Iterator[str]:
    if not isinstance(given, dict):
        return
    kind, length = given.get("decoding_type"), given.get("max_draft_len")
    if kind is None:
        yield "speculative_config names no decoding_type"
    if kind in ("NGram", "Draft_Target") and not (isinstance(length, int) and length > 0):
        yield f"speculative_config of {kind} has no max_draft_len above 0"
    if kind == "Draft_Target" and not (given.get("speculative_model") or given.get("speculative_model_dir")):
        yield "speculative_config of Draft_Target names no speculative_model"


def _fault(content: Mapping[str, Any] | None) -> str:
    if content is None:
        return "no YAML mapping, or one that cannot be read"
    got = f"`{content['model']}`" if "model" in content else ", ".join(map(str, content)) or "an empty mapping"
    return f"names no model (got {got}; expected `model`: a Hugging Face id or the absolute path of a directory)"
