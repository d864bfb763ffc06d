"""Rules about single engine arguments of vLLM, and what they rule out among themselves. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tooling.check.finding import Evidence, Finding, Place, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load
from tooling.check.rules.options import Reads, anything, unknown
from tooling.errors import TrituneError, suggest
from tooling.llm.argument_reader import read_arguments
from tooling.llm.arguments import (
    TEXT_FLAGS,
    added_in,
    arguments_of,
    contradictions,
    described,
    meant,
    removed_in,
    shown,
    takes,
)
from tooling.llm.model_facts import read_facts
from tooling.releases import Release, releases

_PARAMETERS: Final[Mapping[str, Reads]] = dict.fromkeys(
    (
        *("REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK", "GPU_DEVICE_IDS"),
        *("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"),
    ),
    anything,
)
_JUDGED: Final = "Judged for the newest vLLM that a Triton release holds, unless a release is named."


def _example(arguments: str, config: str = "") -> str:
    return f'backend: "vllm"\n{config}\n--- 1/model.onnx\nabsent\n--- 1/model.json\n{arguments}'


REMOVED = load(
    "vllm-argument-removed",
    "vLLM no longer knows this argument.",
    "The keys of model.json are passed on as arguments: an unknown one is a TypeError, and the model does not load. "
    f"{_JUDGED}",
    _example('{"model": "org/llm", "disable_log_requests": true}'),
    "vllm-project/vllm#23283",
    evidence=Evidence.REPORTED,
)
UNKNOWN = load(
    "vllm-argument-unknown",
    "vLLM has no such engine argument.",
    f"The keys of model.json are passed on as arguments: an unknown one is a TypeError. {_JUDGED}",
    _example('{"model": "org/llm", "max_model_length": 4096}'),
    "vLLM's EngineArgs",
    evidence=Evidence.READ,
)
VALUE = load(
    "vllm-argument-value",
    "An engine argument has a value that the engine does not take.",
    "Types and the texts that are taken are those of the vLLM inside the release.",
    _example('{"model": "org/llm", "kv_cache_dtype": "float8"}'),
    "vLLM's EngineArgs",
    evidence=Evidence.READ,
)
TEXT = advice(
    "vllm-argument-text",
    "A flag is written as text.",
    'Any text but an empty one is true to Python, "false" too, unless the engine reads it on the way.',
    _example('{"model": "org/llm", "disable_log_stats": "false"}'),
    "vLLM's EngineArgs",
)
CONTRADICTION = load(
    "vllm-arguments-contradict",
    "Two engine arguments rule each other out.",
    "A step computes one token of each running sequence, so its token budget is at least max_num_seqs; without chunked "
    "prefill it also holds the longest prompt.",
    _example('{"model": "org/llm", "max_num_seqs": 256, "max_num_batched_tokens": 128}'),
    "vLLM's SchedulerConfig",
    evidence=Evidence.READ,
)
IDLE = advice(
    "vllm-token-budget-unused",
    "A step may compute more tokens than all sequences together have.",
    "The engine keeps memory for the budget that the cache could have used.",
    _example('{"model": "org/llm", "max_num_seqs": 2, "max_model_len": 512, "max_num_batched_tokens": 8192}'),
    "vLLM's SchedulerConfig",
)
PRIORITY = advice(
    "vllm-priority-unused",
    "The engine schedules by priority, and Triton's backend gives it none.",
    "The backend passes no priority on: all requests are equal. Urgent ones need an engine of their own.",
    _example('{"model": "org/llm", "scheduling_policy": "priority"}'),
    "vLLM backend",
    stage=Stage.REQUEST,
)
MODEL = load(
    "vllm-model-does-not-fit",
    "The arguments ask of the model what it does not have.",
    "Heads are divided evenly over GPUs, and a model reads no more tokens than it was made for. The model's "
    "config.json is read where `model` is a directory on this machine.",
    _example('{"model": "/models/example/1", "tensor_parallel_size": 3}')
    + '\n--- 1/config.json\n{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99}',
    "vLLM's ModelConfig",
    evidence=Evidence.READ,
)
PARAMETER = advice(
    "vllm-parameter-unknown",
    "The vLLM backend does not read this parameter.",
    "Engine arguments stand in model.json; a parameter of the config with their name has no effect.",
    _example('{"model": "org/llm"}', 'parameters { key: "max_num_seqs" value { string_value: "8" } }'),
    "vLLM backend",
)
DEVICES = load(
    "vllm-devices",
    "GPU_DEVICE_IDS is no list of GPUs, or not as long as the model is wide.",
    "Numbers with commas between, each once: as many as tensor_parallel_size × pipeline_parallel_size.",
    _example('{"model": "org/llm"}', 'parameters { key: "GPU_DEVICE_IDS" value { string_value: "0,0" } }'),
    "vLLM backend",
    evidence=Evidence.READ,
)
INSTALLED = advice(
    "vllm-installed-differs",
    "The vLLM that is installed here does not take an argument as it stands.",
    "The embedded server runs the model on that one, whatever the release in the container holds.",
    _example('{"model": "org/llm", "max_model_len": 4096}')
    + "\n--- options\n--vllm /models/vllm\n--- ../vllm/engine/arg_utils.py\nclass EngineArgs:\n    model: str = ''",
    "vLLM's EngineArgs",
)
RULES = (
    *(REMOVED, UNKNOWN, VALUE, TEXT, CONTRADICTION, IDLE),
    *(PRIORITY, MODEL, PARAMETER, DEVICES, INSTALLED),
)


def judged_release(model: Model) -> Release:
    """The release whose vLLM counts: the one that is named, else the newest whose vLLM is known."""
    if model.target.release_named:
        return model.target.release
    return next(release for release in reversed(releases()) if release.vllm)


def arguments_of_engine(model: Model, place: Place, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Every key and value of a model.json."""
    release = judged_release(model)
    known = arguments_of(release.vllm) if release.vllm else {}
    for name, value in arguments.items() if known else ():
        if name not in known:
            yield _absent(model, place, name, release, known)
        elif known[name] == ("bool",) and isinstance(value, str) and name not in TEXT_FLAGS:
            text = f"{name} is the text `{value}`, and no true or false"
            yield model.find(TEXT, text, place=place, hint=f'"{name}": {str(value.lower() == "true").lower()}')
        elif not takes(known[name], value) and not (name in TEXT_FLAGS and isinstance(value, str)):
            yield model.find(
                VALUE,
                f"{name} is {shown(value)}; vLLM {release.vllm} takes {described(known[name])}",
                place=place,
                hint=meant(known[name], value),
            )
    for found in contradictions(arguments, release.vllm):
        yield model.find(CONTRADICTION, found.message, place=place, says=found.says)
    yield from _unused(model, place, arguments)
    yield from _model(model, place, arguments)
    yield from _installed(model, place, arguments)


def _absent(model: Model, place: Place, name: str, release: Release, known: Mapping[str, tuple[str, ...]]) -> Finding:
    version, says = release.vllm or "", f"got an unexpected keyword argument '{name}'"
    gone = removed_in(name, version)
    if gone:
        first = next((r.tag for r in releases() if r.vllm == gone), release.tag)
        text = f"{name} was removed from recent vLLM ({gone}, Triton {first})"
        hint = "write only what you need: model, dtype, max_model_len, gpu_memory_utilization"
        return model.find(REMOVED, text, place=place, says=says, hint=hint)
    later = added_in(name, version)
    text = f"vLLM {version} (Triton {release.tag}) has no engine argument {name}"
    return model.find(
        UNKNOWN, text, place=place, says=says, hint=f"vLLM {later} has it" if later else suggest(name, known)
    )


def _unused(model: Model, place: Place, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """What is taken and does nothing."""
    figures = [arguments.get(name) for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len")]
    if all(isinstance(figure, int) and figure > 0 for figure in figures):
        budget, sequences, context = (int(figure or 0) for figure in figures)
        if budget > sequences * context:
            text = f"a step of {budget} tokens, and {sequences} × {context} are {sequences * context} in all"
            yield model.find(IDLE, text, place=place, hint=f"max_num_batched_tokens {sequences * context}, or less")
    if arguments.get("scheduling_policy") == "priority":
        text = "scheduling_policy is priority, and no request has one"
        hint = "a second model with an engine of its own: tritune gen-config --low-latency NAME"
        yield model.find(PRIORITY, text, place=place, hint=hint)


def _model(model: Model, place: Place, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Against the model's own config.json, where it stands on this machine."""
    folder = Path(str(arguments["model"]))
    try:
        facts = read_facts(folder) if folder.is_absolute() and folder.is_dir() else None
    except (TrituneError, OSError):
        return
    if facts is None:
        return
    wide, context = arguments.get("tensor_parallel_size", 1), arguments.get("max_model_len")
    if isinstance(wide, int) and wide > 0 and facts.heads % wide:
        says = f"Total number of attention heads ({facts.heads}) must be divisible by tensor parallel size ({wide})."
        yield model.find(MODEL, f"{facts.heads} attention heads do not divide over {wide} GPUs", place=place, says=says)
    if isinstance(context, int) and facts.context and context > facts.context:
        says = f"User-specified max_model_len ({context}) is greater than the derived max_model_len"
        text = f"max_model_len {context}, and the model reads {facts.context} tokens (max_position_embeddings)"
        yield model.find(MODEL, text, place=place, says=says)


def _installed(model: Model, place: Place, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    package = model.target.vllm
    if package is None:
        return
    try:
        known = read_arguments(package)
    except TrituneError:  # told where it was asked for
        return
    inside = judged_release(model).vllm
    released = arguments_of(inside) if inside else {}
    for name, value in arguments.items():
        if released and not (name in released and takes(released[name], value)):
            continue  # told of the release already
        if name not in known:
            yield model.find(INSTALLED, f"the vLLM installed here has no engine argument {name}", place=place)
        elif not takes(known[name], value) and not (isinstance(value, str) and "bool" in known[name]):
            text = f"{name} is {shown(value)}; the vLLM installed here takes {described(known[name])}"
            yield model.find(INSTALLED, text, place=place, hint=meant(known[name], value))


def parameters(model: Model) -> Iterator[Finding]:
    """The parameters of the config, which are the backend's own and not the engine's."""
    yield from unknown(model, PARAMETER, _PARAMETERS)


def devices(model: Model, wide: int) -> Iterator[Finding]:
    """The GPUs that a model of `wide` GPUs is pinned to."""
    given = model.config.parameters
    text = given["GPU_DEVICE_IDS"].string_value if "GPU_DEVICE_IDS" in given else ""
    if not text:
        return
    numbers = [part.strip() for part in text.split(",")]
    fault = ""
    if not all(number.isdecimal() for number in numbers):
        fault = "is no list of GPU numbers"
    elif len({int(number) for number in numbers}) < len(numbers):
        fault = "names a GPU twice"
    elif wide > 1 and len(numbers) != wide:
        fault = f"names {len(numbers)}, and the model is spread over {wide}"
    if fault:
        yield model.find(DEVICES, f"GPU_DEVICE_IDS `{text}` {fault}", "parameters", "GPU_DEVICE_IDS")
