"""Rules about vLLM models: their engine arguments, which no server checks before it starts the engine. Layer: check."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tooling.check.files import is_file, json_object, read_limited
from tooling.check.finding import Evidence, Finding, Place
from tooling.check.model import Model
from tooling.check.rules.kinds import load
from tooling.check.rules.llm_files import arguments_file, elsewhere, twice
from tooling.check.rules.vllm_arguments import arguments_of_engine, devices, parameters
from tooling.check.sizes import type_name
from tooling.errors import UsageError
from tooling.signature.vllm_model import parse_arguments, unnamed

_FILE, _ADAPTERS = "model.json", "multi_lora.json"
_LARGEST: Final = 2**20
_UTILIZATION: Final = "gpu_memory_utilization"
_FLAGS: Final = (
    *("stream", "exclude_input_in_output", "return_finish_reason", "return_cumulative_logprob", "return_logprobs"),
    *("return_num_input_tokens", "return_num_output_tokens"),
)
_TEXTS: Final = ("text_input", "image", "sampling_parameters", "embedding_request")
_INPUTS: Final = {**dict.fromkeys(_FLAGS, "TYPE_BOOL"), **dict.fromkeys(_TEXTS, "TYPE_STRING")}
_OUTPUTS: Final = {
    **dict.fromkeys(("text_output", "finish_reason", "logprobs"), "TYPE_STRING"),
    **dict.fromkeys(("num_input_tokens", "num_output_tokens"), "TYPE_UINT32"),
    "cumulative_logprob": "TYPE_FP32",
}


def _example(arguments: str, config: str = "") -> str:
    return f'backend: "vllm"\n{config}\n--- 1/model.onnx\nabsent\n--- 1/{_FILE}\n{arguments}'


MISSING = load(
    "vllm-arguments-missing",
    "A version has no model.json.",
    "It holds the engine's arguments, `model` among them.",
    'backend: "vllm"\n--- 1/model.onnx\nabsent',
    "vLLM backend",
    evidence=Evidence.READ,
)
BROKEN = load(
    "vllm-arguments-broken",
    "model.json is no JSON object that names a model.",
    "Its keys are the arguments of vLLM's AsyncEngineArgs.",
    _example('{"dtype": "half"}'),
    "vLLM backend",
    evidence=Evidence.READ,
)
MEMORY = load(
    "vllm-memory-shares",
    "The vLLM models of one GPU want more than all of its memory.",
    "gpu_memory_utilization is a share of the whole GPU, not of what is left: a second engine finds no memory for "
    "its cache.",
    _example('{"model": "org/a", "gpu_memory_utilization": 0.9}')
    + '\n--- ../other/config.pbtxt\nbackend: "vllm"\n--- ../other/1/model.json\n'
    '{"model": "org/b", "gpu_memory_utilization": 0.9}',
    "triton-inference-server/server#7562",
    evidence=Evidence.REPORTED,
)
BATCH = load(
    "vllm-with-batching",
    "A vLLM model has max_batch_size 0.",
    "The engine batches by itself, token by token; the backend refuses any other value.",
    _example('{"model": "org/llm"}', "max_batch_size: 8"),
    "vLLM backend",
    evidence=Evidence.READ,
)
KIND = load(
    "vllm-kind",
    "A vLLM model over several GPUs needs KIND_MODEL.",
    "With KIND_GPU the backend shows the engine one GPU only.",
    _example('{"model": "org/llm", "tensor_parallel_size": 2}', "instance_group { kind: KIND_GPU }"),
    "vLLM backend",
    evidence=Evidence.READ,
)
LORA = load(
    "vllm-lora-missing",
    "LoRA is switched on, and multi_lora.json is missing, or no object of names and paths.",
    "It names the adapters and where they are: each by a path or a Hugging Face id.",
    _example('{"model": "org/llm", "enable_lora": "true"}'),
    "vLLM backend",
    evidence=Evidence.READ,
)
DECOUPLED = load(
    "vllm-not-decoupled",
    "A vLLM model is decoupled.",
    "Auto-complete sets it where nothing is written; `decoupled: false`, or nothing without auto-complete, is refused.",
    _example('{"model": "org/llm"}', "model_transaction_policy { decoupled: false }"),
    "vLLM backend",
    evidence=Evidence.READ,
)
TENSOR = load(
    "vllm-tensor-type",
    "A tensor of a vLLM model is listed with another type than the backend's.",
    "The backend completes its tensors itself; leave them out.",
    _example('{"model": "org/llm"}', 'input { name: "text_input" data_type: TYPE_INT32 dims: [ 1 ] }'),
    "vLLM backend",
    evidence=Evidence.READ,
)
RULES = (MISSING, BROKEN, MEMORY, BATCH, KIND, LORA, DECOUPLED, TENSOR)


def vllm(model: Model) -> Iterator[Finding]:
    """The engine arguments of every version."""
    if model.config.backend != "vllm":
        return
    if model.config.max_batch_size > 0:
        yield model.find(
            BATCH,
            f"max_batch_size {model.config.max_batch_size}: a vLLM model has 0",
            "max_batch_size",
            says=f"configuration specified max_batch_size {model.config.max_batch_size}, but in auto-complete-config "
            f"function for model '{model.config.name}' specified max_batch_size 0",
            fix=("max_batch_size=0",),
        )
    yield from _transactions(model)
    yield from _tensors(model)
    yield from parameters(model)
    for version in model.served:
        folder = model.version_dir(version)
        place = Place(model.shown_path(folder / _FILE))
        if not is_file(folder / _FILE):
            yield model.find(
                MISSING,
                f"{model.name}/{version.number}/{_FILE} not found",
                place=Place(model.shown_path(folder)),
                says=f"'{_FILE}' containing vllm engine args must be provided in '{folder}'",
            )
            continue
        try:
            arguments = _arguments(folder / _FILE)
        except UsageError as error:
            yield model.find(BROKEN, f"{_FILE}: {replace(error.problems[0], where=None)}", place=place)
        else:
            yield from _check(model, folder, place, arguments)


def _content(path: Path) -> bytes:
    """Raises UsageError for what cannot be read."""
    try:
        content = read_limited(path, _LARGEST)
    except OSError as error:
        raise UsageError("cannot be read", got=error.strerror) from None
    if content is None:
        got, expected = f"{path.stat().st_size >> 10} KiB", f"{_LARGEST >> 10} KiB at most"
        raise UsageError("too large", got=got, expected=expected)
    return content


def _arguments(path: Path) -> dict[str, Any]:
    """The engine's arguments of a version. Raises UsageError for what is no JSON object that names a model."""
    arguments = parse_arguments(_content(path), path)
    if problem := unnamed(arguments, path):
        raise UsageError(problems=[problem])
    return arguments


def _transactions(model: Model) -> Iterator[Finding]:
    config, written = model.config, model.config.HasField("model_transaction_policy")
    if config.model_transaction_policy.decoupled or not (written or model.target.strict):
        return
    says = "vLLM Triton backend must be configured to use decoupled model transaction policy"
    if not model.target.strict:
        says = (
            f"trying to change decoupled property in auto-complete-config for model '{config.name}', which is already "
            "set to 'False'."
        )
    yield model.find(
        DECOUPLED,
        "the model is not decoupled",
        "model_transaction_policy",
        says=says,
        hint="model_transaction_policy { decoupled: true }",
        fix=("model_transaction_policy.decoupled=true",),
    )


def _tensors(model: Model) -> Iterator[Finding]:
    for what, listed, known in (("input", model.config.input, _INPUTS), ("output", model.config.output, _OUTPUTS)):
        for index, tensor in enumerate(listed):
            written, wanted = type_name(tensor.data_type), known.get(tensor.name)
            if wanted is not None and written not in (wanted, "TYPE_INVALID"):
                yield model.find(
                    TENSOR,
                    f"{what} {tensor.name}: the backend has {wanted}, config {written}",
                    *(what, index, "data_type"),
                    says=f"unable to load model '{model.config.name}', configuration expects datatype {written} for "
                    f"{what} '{tensor.name}', model provides {wanted}",
                    fix=(f"{what}[{index}].data_type={wanted}",),
                )


def _check(model: Model, folder: Path, place: Place, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    yield from arguments_file(model, place, folder / _FILE, arguments)
    yield from arguments_of_engine(model, place, arguments)
    parallel = [arguments.get(key, 1) for key in ("tensor_parallel_size", "pipeline_parallel_size")]
    wide = math.prod(count for count in parallel if isinstance(count, int) and count > 0)
    several = wide > 1
    yield from devices(model, wide)
    if several and any(group.kind == "KIND_GPU" for group in model.instances):
        yield model.find(
            KIND,
            "an engine over several GPUs with KIND_GPU",
            "instance_group",
            says="KIND_GPU is currently for single-GPU models, please specify KIND_MODEL in the model's config.pbtxt "
            "for "
            "multi-GPU models",
            hint="instance_group [{ count: 1 kind: KIND_MODEL }]",
        )
    if str(arguments.get("enable_lora", "")).lower() == "true":
        yield from _adapters(model, folder, place)


def _adapters(model: Model, folder: Path, place: Place) -> Iterator[Finding]:
    """The adapters of LoRA, which are named by paths too."""
    path = folder / _ADAPTERS
    if not is_file(path):
        yield model.find(
            LORA,
            f"enable_lora without {_ADAPTERS}",
            place=place,
            says=f"Triton backend cannot find {path}.",
        )
        return
    place = Place(model.shown_path(path))
    try:
        adapters = parse_arguments(_content(path), path)
    except UsageError as error:
        problem = replace(error.problems[0], where=None, expected="a JSON object with adapters' names and paths")
        yield model.find(LORA, f"{_ADAPTERS}: {problem}", place=place)
        return
    yield from twice(model, place, path)
    for name, text in adapters.items():
        if isinstance(text, str) and text:
            yield from elsewhere(model, place, folder, name, text)
        else:
            yield model.find(LORA, f"{_ADAPTERS}: the path of {name} is `{json.dumps(text)[:60]}`", place=place)


def memory(models: Mapping[str, Model]) -> Iterator[Finding]:
    """The shares of one GPU that all vLLM engines of a repository want, one for each instance; those on other GPUs are
    set apart.
    """
    shares: dict[tuple[int, ...], list[tuple[Model, float]]] = {}
    for model in models.values():
        if model.config.backend != "vllm" or not model.readable:
            continue
        for version in model.served:
            arguments = json_object(model.version_dir(version) / _FILE) or {}
            share = arguments.get(_UTILIZATION)
            if isinstance(share, int | float):
                gpus = tuple(sorted(gpu for group in model.instances for gpu in group.gpus))
                engines = max(1, sum(group.count for group in model.instances))
                shares.setdefault(gpus, []).extend([(model, float(share))] * engines)
    for users in shares.values():
        total = sum(share for _, share in users)
        if len(users) > 1 and total > 1:
            model = users[-1][0]
            listed = ", ".join(f"{user.name} {share:g}" for user, share in users)
            yield model.find(
                MEMORY,
                f"sum of {_UTILIZATION} on one GPU is {total:g}: {listed}",
                place=Place(f"{model.shown}/{model.served[-1].number}/{_FILE}"),
                hint="keep the sum below about 0.9",
            )
