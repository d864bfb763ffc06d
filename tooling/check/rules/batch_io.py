"""Rules about batch_input and batch_output, the tensors that describe a batch. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tooling.check.finding import Evidence, Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import load
from tooling.check.sizes import type_name
from tooling.config.proto import pb
from tooling.errors import suggest

_SOURCE: Final = "ValidateBatchIO (core)"
_TENSORS: Final = (
    'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
)

BATCH_SOURCES = load(
    "batch-io-sources",
    "A batch_input or batch_output has one source_input.",
    "Each kind is computed from exactly one input.",
    _TENSORS + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 }',
    _SOURCE,
)
BATCH_KIND = load(
    "batch-io-kind",
    "The kind of a batch_input or batch_output is none Triton knows.",
    "A number without a name in the enumeration parses, and is refused then.",
    _TENSORS + 'batch_input { kind: 9 target_name: "n" data_type: TYPE_FP32 source_input: "x" }',
    _SOURCE,
    evidence=Evidence.READ,
)
BATCH_TYPE = load(
    "batch-input-type",
    "A batch_input is TYPE_INT32 or TYPE_FP32.",
    "A model that wants INT64 offsets needs a Cast inside.",
    _TENSORS + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_INT64 source_input: "x" }',
    _SOURCE,
)
BATCH_SOURCE_UNKNOWN = load(
    "batch-io-source-unknown",
    "The source of a batch_input or batch_output is no input.",
    "source_input names an entry of `input`.",
    _TENSORS + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" data_type: TYPE_FP32 source_input: "z" }',
    _SOURCE,
)
BATCH_TARGET_UNKNOWN = load(
    "batch-output-target-unknown",
    "The target of a batch_output is no output.",
    "target_name names an entry of `output`.",
    _TENSORS + 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "z" source_input: "x" }',
    _SOURCE,
)
BATCH_TARGET_TWICE = load(
    "batch-output-target-twice",
    "A batch_output names a target twice.",
    "Each output is cut up once.",
    _TENSORS + 'batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: [ "y", "y" ] source_input: "x" }',
    _SOURCE,
)
RULES = (BATCH_SOURCES, BATCH_KIND, BATCH_TYPE, BATCH_SOURCE_UNKNOWN, BATCH_TARGET_UNKNOWN, BATCH_TARGET_TWICE)


def batch_io(model: Model) -> Iterator[Finding]:
    """Batch inputs, then batch outputs, in the order Triton looks at them."""
    config, suffix = model.completed, f" for {model.config.name}"
    inputs = [tensor.name for tensor in config.input]
    outputs = [tensor.name for tensor in config.output]
    for field, kinds in (("batch_input", pb().BatchInput.Kind), ("batch_output", pb().BatchOutput.Kind)):
        what = field.replace("_", " ")
        for index, entry in enumerate(getattr(config, field)):
            kind = kinds.Name(entry.kind) if entry.kind in kinds.values() else ""
            if not kind:
                yield model.find(
                    BATCH_KIND,
                    f"{field} {index} has the unknown kind {entry.kind}",
                    field,
                    index,
                    says=f"unknown {what} kind ''{suffix}"
                    if model.target.strict
                    else "attempt to access JSON non-string as string",
                )
            elif len(entry.source_input) != 1:
                yield model.find(
                    BATCH_SOURCES,
                    f"{field} {kind} has {len(entry.source_input)} source_input, and needs 1",
                    field,
                    index,
                    says=f"{what} kind '{kind}' expects 1 source input, got {len(entry.source_input)}{suffix}",
                )
            if field == "batch_input" and entry.data_type not in (pb().TYPE_INT32, pb().TYPE_FP32):
                yield model.find(
                    BATCH_TYPE,
                    f"{field} {kind} is {type_name(entry.data_type)}; only TYPE_INT32 and TYPE_FP32 are made",
                    field,
                    index,
                    "data_type",
                    says=f"batch input data type must be TYPE_INT32 or TYPE_FP32{suffix}",
                )
            for name in entry.source_input:
                if name not in inputs:
                    yield model.find(
                        BATCH_SOURCE_UNKNOWN,
                        f"{field} {kind}: source_input {name} is no input; inputs are {', '.join(inputs) or 'none'}",
                        field,
                        index,
                        "source_input",
                        says=f"unknown source input name '{name}'{suffix}",
                        hint=suggest(name, inputs),
                    )
            if field == "batch_output":
                yield from _targets(model, index, entry, outputs)


def _targets(model: Model, index: int, entry: Any, outputs: list[str]) -> Iterator[Finding]:
    suffix, seen = f" for {model.config.name}", set[str]()
    for name in entry.target_name:
        if name not in outputs:
            yield model.find(
                BATCH_TARGET_UNKNOWN,
                f"batch_output: target_name {name} is no output; outputs are {', '.join(outputs) or 'none'}",
                "batch_output",
                index,
                "target_name",
                says=f"unknown target output name '{name}'{suffix}",
                hint=suggest(name, outputs),
            )
        elif name in seen:
            yield model.find(
                BATCH_TARGET_TWICE,
                f"batch_output: target_name {name} stands twice",
                "batch_output",
                index,
                "target_name",
                says=f"target output name '{name}' can only be specified once{suffix}",
            )
        seen.add(name)
