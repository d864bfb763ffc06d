"""Every rule, and the checks that find them broken, in the order in which Triton would come across it. Layer: check."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from tooling.check.completion import leaves_out
from tooling.check.core import POLL, TENSORS, Check
from tooling.check.finding import Rule
from tooling.check.model import Model
from tooling.check.rules import (
    advice,
    backend_tensors,
    batch_io,
    comments,
    dynamic,
    ensemble,
    features,
    graph,
    graph_tensors,
    instances,
    llm_api,
    llm_files,
    onnx_advice,
    onnx_controls,
    onnx_file,
    onnx_model,
    onnx_options,
    onnx_shapes,
    openvino,
    platform,
    python_model,
    pytorch,
    requests,
    sequence,
    served,
    serving,
    state,
    tensorrt_llm,
    tensorrt_options,
    tensorrt_plan,
    tensorrt_shapes,
    tensorrt_sidecar,
    tensorrt_tensors,
    tensors,
    text,
    versions,
    vllm,
    vllm_arguments,
    warmup,
)
from tooling.errors import UsageError, suggest

MODULES: Final = (
    *(
        text,
        serving,
        platform,
        dynamic,
        sequence,
        ensemble,
        features,
        graph,
        graph_tensors,
        versions,
        instances,
        tensors,
        batch_io,
    ),
    *(
        onnx_file,
        onnx_options,
        onnx_model,
        onnx_controls,
        onnx_shapes,
        onnx_advice,
        warmup,
        state,
        python_model,
        tensorrt_plan,
        tensorrt_tensors,
        tensorrt_shapes,
        tensorrt_sidecar,
        tensorrt_options,
        openvino,
        pytorch,
        vllm,
        vllm_arguments,
        llm_files,
        tensorrt_llm,
        llm_api,
        backend_tensors,
    ),
    *(advice, requests, comments, served),
)
_DEPENDENCY: Final[tuple[Check, ...]] = (graph.dependencies, graph_tensors.tensors)
_BACKEND: Final[tuple[Check, ...]] = (
    python_model.names,
    platform.backend,
    instances.instance_groups,
    onnx_options.parameters,
    python_model.parameters,
)
_FILES: Final[tuple[Check, ...]] = (onnx_file.onnx_files, onnx_options.accelerators)
_MODEL: Final[tuple[Check, ...]] = (
    onnx_model.onnx_model,
    python_model.python_model,
    backend_tensors.unsupported,
    tensorrt_plan.plans,
    tensorrt_options.options,
    openvino.openvino,
    pytorch.pytorch,
    vllm.vllm,
    tensorrt_llm.in_flight_batcher,
    llm_api.llm_api,
    warmup.warmup,
    state.states,
)
# What no server says; any order would do.
_ADVICE: Final[tuple[Check, ...]] = (
    versions.model_files,
    versions.directories,
    dynamic.batching_advice,
    features.tags,
    features.cache,
    tensors.duplicates,
    instances.zero_counts,
    advice.batching,
    onnx_advice.onnx_advice,
    advice.threads,
    advice.answers,
)


def checks_of(model: Model) -> tuple[Check, ...]:
    """The checks of a model whose text is readable, in the order of the server it is judged for."""
    strict = model.target.strict
    completing = not strict and leaves_out(model.config)
    files: tuple[Check, ...] = (*_FILES, onnx_model.completion)
    return (
        *POLL,
        *(TENSORS if strict else ()),
        platform.directory_name,
        *_DEPENDENCY,
        versions.versions,
        *_BACKEND,
        *(files if completing else ()),
        *(() if strict else TENSORS),
        versions.labels,
        versions.batching_library,
        *(() if completing else files),
        *_MODEL,
        *_ADVICE,
    )


@cache
def rules() -> Mapping[str, Rule]:
    """Every rule by its id, in the order of the documentation."""
    return {rule.id: rule for module in MODULES for rule in module.RULES}


def rule_named(name: str) -> Rule:
    """The rule with this id. Raises UsageError when there is none."""
    known = rules()
    if name not in known:
        raise UsageError(
            "no such rule", got=f"`{name}`", expected="an id as findings show it", hint=suggest(name, known)
        )
    return known[name]
