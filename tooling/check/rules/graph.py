"""Rules about an ensemble and the models it is made of: are they there, and do they load? Layer: check."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from tooling.check.finding import Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import dependency
from tooling.errors import suggest

FIELD: Final = "ensemble_scheduling"
STEP: Final = 'model_name: "m" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }'
ONNX: Final = "x: FP32 [batch, 8] -> y: FP32 [batch, 8]"


MODEL: Final = (
    'backend: "onnxruntime"\nmax_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
)


def example(
    step: str = STEP, data_type: str = "TYPE_FP32", dims: str = "8", model: str = ONNX, config: str = MODEL
) -> str:
    """An ensemble of one step over a model `m`, with the config and the ONNX file of that one."""
    return (
        'platform: "ensemble"\nmax_batch_size: 8\n'
        f'input {{ name: "x" data_type: {data_type} dims: [ {dims} ] }}\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
        f"ensemble_scheduling {{ step {{ {step} }} }}\n--- 1/model.onnx\nabsent\n"
        f"--- ../m/config.pbtxt\n{config}--- ../m/1/model.onnx\n{model}"
    )


MODEL_MISSING = dependency(
    "step-model-missing",
    "A step names a model that is not in the repository.",
    "The ensemble loads only when all its models do.",
    example(STEP.replace('"m"', '"other"')),
    "DependencyGraph (core)",
)
CIRCLE = dependency(
    "ensemble-circle",
    "An ensemble contains itself.",
    "Directly, or through another ensemble.",
    example(STEP.replace('"m"', '"example"')),
    "DependencyGraph (core)",
)
MODEL_BROKEN = dependency(
    "step-model-broken",
    "A model of the ensemble does not load.",
    "Its own findings say why.",
    example(config="max_batch_size: -1\n"),
    "DependencyGraph (core)",
)
VERSION = dependency(
    "step-version",
    "A step wants a version that is not loaded.",
    "model_version is 0 when it is left out, not the newest: write -1 for that.",
    example(STEP.replace("model_version: -1", "")),
    "DependencyGraph (core)",
)
RULES = (MODEL_MISSING, CIRCLE, MODEL_BROKEN, VERSION)


def dependencies(model: Model) -> Iterator[Finding]:
    """Whether the models of the steps are there, in the right version."""
    if not model.config.HasField(FIELD):
        return
    name, steps = model.config.name, list(enumerate(model.config.ensemble_scheduling.step))
    missing = sorted(
        {step.model_name for _, step in steps if step.model_name and step.model_name not in model.siblings}
    )
    for index, step in steps:
        if step.model_name in missing:
            yield model.find(
                MODEL_MISSING,
                f"step {index}: there is no model {step.model_name} in the repository",
                FIELD,
                "step",
                index,
                "model_name",
                says=f"ensemble {name} contains models that are not available or ambiguous: {', '.join(missing)}",
                hint=suggest(step.model_name, [other for other in model.siblings if other != model.name]),
            )
    circles = {index: _circle(model, step.model_name) for index, step in steps if step.model_name}
    for index, circle in circles.items():
        if circle:
            yield model.find(
                CIRCLE,
                f"step {index}: {' -> '.join(circle)} is a circle",
                FIELD,
                "step",
                index,
                "model_name",
                says=f"circular dependency between ensembles: {circle[0]} -> ... -> {circle[-2]} -> {circle[-1]}",
            )
    for index, step in steps:
        if step.model_name in model.refusals:
            yield _broken(model, index, step.model_name)
        elif step.model_name and step.model_name not in missing and not circles[index] and step.model_version != -1:
            yield from _version(model, index, step)


def _circle(model: Model, name: str) -> tuple[str, ...]:
    """The shortest way from an ensemble over its step `name` back to itself, or nothing."""
    before = {name: model.name}
    pending = deque([name])
    while pending:
        current = pending.popleft()
        if current == model.name:
            way = [current]
            while (current := before[current]) != model.name:
                way.append(current)
            return (model.name, *reversed(way))
        other = model.siblings.get(current)
        for step in other.config.ensemble_scheduling.step if other is not None else ():
            if step.model_name not in before:
                before[step.model_name] = current
                pending.append(step.model_name)
    return ()


def _version(model: Model, index: int, step: Any) -> Iterator[Finding]:
    other = model.siblings[step.model_name]
    if any(version.number == step.model_version for version in other.served):
        return
    there = any(version.number == step.model_version for version in other.versions)
    left_out = step.model_version == 0
    text = (
        "model_version is left out, which means version 0"
        if left_out
        else f"version {step.model_version} {'is not loaded by the version policy' if there else 'does not exist'}"
    )
    yield model.find(
        VERSION,
        f"step {index} ({step.model_name}): {text}",
        FIELD,
        "step",
        index,
        "model_version",
        says=f"ensemble '{model.config.name}' depends on '{step.model_name}' whose required version "
        f"{step.model_version} "
        "is not loaded.",
        hint="model_version: -1 takes the newest",
        fix=(f"{FIELD}.step[{index}].model_version=-1",) if left_out else (),
    )


def _broken(model: Model, index: int, name: str) -> Finding:
    """A step whose model does not load."""
    reason = model.refusals[name]
    if reason.rule.stage is Stage.POLL:
        says = f"ensemble {model.config.name} contains models that are not available or ambiguous: {name}"
    else:
        says = f"ensemble '{model.config.name}' depends on '{name}' which has no loaded version."
    return model.find(
        MODEL_BROKEN,
        f"step {index}: model {name} does not load: {reason.message}",
        FIELD,
        "step",
        index,
        "model_name",
        says=says,
        hint=f"see the findings of {name}",
    )
