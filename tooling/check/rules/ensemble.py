"""Rules about an ensemble's own config: its steps and the flow of its tensors. Layer: check."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tooling.check.fill import ENSEMBLE
from tooling.check.finding import Evidence, Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, poll
from tooling.errors import suggest

_SOURCE: Final = "ValidateEnsembleSchedulingConfig (core)"
_FIELD: Final = "ensemble_scheduling"


def _ensemble(step: str = "", more: str = "", scheduling: str | None = None) -> str:
    step = step or (
        'model_name: "m" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }'
    )
    scheduling = f"step {{ {step} }}" if scheduling is None else scheduling
    return (
        'platform: "ensemble"\nmax_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
        f'output {{ name: "y" data_type: TYPE_FP32 dims: [ 8 ] }}\nensemble_scheduling {{ {scheduling} }}\n{more}'
        "--- 1/model.onnx\nabsent\n--- ../m/1/model.onnx\nx: FP32 [batch, 8] -> y: FP32 [batch, 8]"
    )


NOT_ENSEMBLE = poll(
    "ensemble-platform",
    'ensemble_scheduling needs `platform: "ensemble"`.',
    'Only the platform selects the ensemble scheduler; `backend: "ensemble"` does not.',
    _ensemble().replace("platform", "backend"),
    _SOURCE,
)
INSTANCES = poll(
    "ensemble-instances",
    "An ensemble has no instance_group.",
    "It runs nothing itself; the models of its steps have instances.",
    _ensemble(more="instance_group { kind: KIND_CPU }\n"),
    _SOURCE,
)
OPTIMIZATION = poll(
    "ensemble-optimization",
    "An ensemble has no `optimization`.",
    "Not even an empty one.",
    _ensemble(more="optimization { }\n"),
    _SOURCE,
)
WARMUP = poll(
    "ensemble-warmup",
    "An ensemble has no model_warmup.",
    "Warm up the models of its steps.",
    _ensemble(more='model_warmup { name: "w" }\n'),
    _SOURCE,
)
NO_STEPS = poll(
    "ensemble-without-steps", "An ensemble has no steps.", "It would do nothing.", _ensemble(scheduling=""), _SOURCE
)
STEP_MODEL = poll(
    "step-without-model",
    "A step names no model.",
    "model_name is the name of a model of the repository.",
    _ensemble('model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" }'),
    _SOURCE,
)
STEP_INPUTS = poll(
    "step-without-inputs",
    "A step has no input_map.",
    "A step runs when all its inputs are there; without any it never would.",
    _ensemble('model_name: "m" model_version: -1 output_map { key: "y" value: "y" }'),
    _SOURCE,
)
STEP_OUTPUTS = poll(
    "step-without-outputs",
    "A step has no output_map.",
    "A step nobody reads from is not allowed.",
    _ensemble('model_name: "m" model_version: -1 input_map { key: "x" value: "x" }'),
    _SOURCE,
)
WRITTEN_TWICE = poll(
    "ensemble-tensor-written-twice",
    "Two steps write the same ensemble tensor.",
    "Each tensor has one source.",
    _ensemble(
        scheduling='step { model_name: "m" model_version: -1 input_map { key: "x" value: "x" } '
        'output_map { key: "y" value: "y" } }\n'
        'step { model_name: "m" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "y" '
        "} }"
    ),
    _SOURCE,
)
INPUT_UNUSED = poll(
    "ensemble-input-unused",
    "No step reads an input of the ensemble.",
    "Take it out, or map it.",
    _ensemble(more='input { name: "z" data_type: TYPE_FP32 dims: [ 8 ] }\n'),
    _SOURCE,
)
OUTPUT_UNUSED = poll(
    "ensemble-output-unmapped",
    "No step writes an output of the ensemble.",
    "An output_map must name it.",
    _ensemble(more='output { name: "z" data_type: TYPE_FP32 dims: [ 8 ] }\n'),
    _SOURCE,
)
NOT_WRITTEN = poll(
    "ensemble-output-not-written",
    "An output of the ensemble is never written.",
    "A step on the way waits for a tensor that nobody writes: a typing slip, or a circle of steps.",
    _ensemble(
        'model_name: "m" model_version: -1 input_map { key: "x" value: "xx" } output_map { key: "y" value: "y" }'
    ).replace(
        "ensemble_scheduling {",
        'ensemble_scheduling { step { model_name: "m" model_version: -1 input_map { key: "x" value: "x" } '
        'output_map { key: "y" value: "xz" } }\n',
    ),
    _SOURCE,
)
TENSOR_UNUSED = poll(
    "ensemble-tensor-unused",
    "An ensemble tensor is written and never read.",
    "An output of a step that nobody needs is simply left out of output_map.",
    _ensemble(
        scheduling='step { model_name: "m" model_version: -1 input_map { key: "x" value: "x" } '
        'output_map { key: "y" value: "y" } }\n'
        'step { model_name: "m" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "z" '
        "} }"
    ),
    _SOURCE,
)
NO_SCHEDULING = poll(
    "ensemble-without-scheduling",
    '`platform: "ensemble"` needs ensemble_scheduling.',
    "The steps are what makes an ensemble.",
    'platform: "ensemble"\nmax_batch_size: 8',
    "ValidateModelConfig (core)",
)
MAP_TWICE = advice(
    "step-map-key-twice",
    "A key stands twice in an input_map or output_map; the last one wins.",
    "The maps go from the model's tensor to the ensemble's: one tensor of the model cannot get two names.",
    _ensemble(
        'model_name: "m" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "z" } '
        'output_map { key: "y" value: "y" }'
    ),
    "protobuf maps",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
RULES = (
    *(NOT_ENSEMBLE, INSTANCES, OPTIMIZATION, WARMUP, NO_STEPS, STEP_MODEL, STEP_INPUTS, STEP_OUTPUTS, WRITTEN_TWICE),
    *(INPUT_UNUSED, OUTPUT_UNUSED, NOT_WRITTEN, TENSOR_UNUSED, NO_SCHEDULING, MAP_TWICE),
)


@dataclass(slots=True)
class _Tensor:
    """An ensemble tensor: the steps that write it (one, where all is well), what it is made from, who reads it."""

    name: str
    writers: list[int] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    read_by: list[int] = field(default_factory=list)
    ready: bool = False


def ensemble(model: Model) -> Iterator[Finding]:
    """What the core refuses, in its order."""
    config, name = model.config, model.config.name
    if not config.HasField(_FIELD):
        if config.platform == ENSEMBLE:
            yield model.find(
                NO_SCHEDULING,
                'platform "ensemble" without ensemble_scheduling',
                "platform",
                says=f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble",
            )
        return
    if config.platform != ENSEMBLE and config.backend:
        yield model.find(
            NOT_ENSEMBLE,
            f'ensemble_scheduling with backend "{config.backend}" and platform "{config.platform}"',
            _FIELD,
            says=f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble",
            hint='use platform: "ensemble", and no backend',
            fix=("-backend", 'platform="ensemble"'),
        )
    yield from _forbidden(model)
    if not config.ensemble_scheduling.step:
        yield model.find(
            NO_STEPS, "the ensemble has no steps", _FIELD, says=f"must specify 'step' for ensemble '{name}'"
        )
        return
    yield from _twice(model)
    tensors: dict[str, _Tensor] = {}
    yield from _graph(model, tensors)
    yield from _flow(model, tensors)


def _forbidden(model: Model) -> Iterator[Finding]:
    config, name = model.config, model.config.name
    for rule, field_name, given, says in (
        (INSTANCES, "instance_group", bool(config.instance_group), "instance group should not be specified"),
        (OPTIMIZATION, "optimization", config.HasField("optimization"), "optimization should not be specified"),
        (WARMUP, "model_warmup", bool(config.model_warmup), "model_warmup can not be specified"),
    ):
        if given:
            yield model.find(
                rule,
                f"{field_name} is not allowed in an ensemble",
                field_name,
                says=f"{says} for ensemble '{name}'",
                hint="set it in the models of the steps",
                fix=(f"-{field_name}",),
            )


def _twice(model: Model) -> Iterator[Finding]:
    if model.text is None:
        return
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        for map_name in ("input_map", "output_map"):
            entries = model.text.map_entries(_FIELD, "step", str(index), map_name)
            last = dict(entries)
            for key, value in entries:
                if value != last[key]:
                    lost = f"; {value} is then not produced" if map_name == "output_map" else ""
                    yield model.find(
                        MAP_TWICE,
                        f"step {index} ({step.model_name}): {map_name} key {key} appears twice; the last one "
                        f"wins{lost}",
                        _FIELD,
                        "step",
                        index,
                        map_name,
                        hint=f"map it once, and use {last[key]} in the other steps too",
                    )


def _graph(model: Model, tensors: dict[str, _Tensor]) -> Iterator[Finding]:
    """Collect the tensors step by step."""
    name = model.config.name
    for index, step in enumerate(model.config.ensemble_scheduling.step):
        where = (_FIELD, "step", index)
        missing = (
            (STEP_MODEL, "model_name", bool(step.model_name)),
            (STEP_INPUTS, "input_map", bool(step.input_map)),
            (STEP_OUTPUTS, "output_map", bool(step.output_map)),
        )
        for rule, field_name, given in missing:
            if not given:
                yield model.find(
                    rule,
                    f"step {index} has no {field_name}",
                    *where,
                    says=f"must specify '{field_name}' in step {index} of ensemble '{name}'",
                )
        for key, target in step.output_map.items():
            tensor = tensors.setdefault(target, _Tensor(target))
            if tensor.writers:
                yield model.find(
                    WRITTEN_TWICE,
                    f"step {index} ({step.model_name}): {target} is written by step {tensor.writers[0]} already",
                    *where,
                    "output_map",
                    key,
                    says=f"ensemble tensor '{target}' can appear in an output map only once for ensemble '{name}' "
                    f"step {index}",
                )
            tensor.writers.append(index)
            tensor.sources += step.input_map.values()
        for source in step.input_map.values():
            tensors.setdefault(source, _Tensor(source)).read_by.append(index)


def _flow(model: Model, tensors: dict[str, _Tensor]) -> Iterator[Finding]:
    """Who writes whom: what is never ready, and what nobody reads."""
    config, name = model.config, model.config.name
    for index, tensor in enumerate(config.input):
        if tensor.name not in tensors:
            yield model.find(
                INPUT_UNUSED,
                f"no step reads the ensemble's input {tensor.name}",
                "input",
                index,
                says=f"ensemble input '{tensor.name}' for ensemble {name}' is not used",
                hint=suggest(tensor.name, tensors),
            )
    _mark_ready(model, tensors)
    outputs = {tensor.name for tensor in config.output}
    told = set[str]()
    for index, output in enumerate(config.output):
        if output.name not in tensors:
            yield model.find(
                OUTPUT_UNUSED,
                f"no step writes the ensemble's output {output.name}",
                "output",
                index,
                says=f"ensemble output '{output.name}' for ensemble {name}' is not used",
                hint=suggest(output.name, tensors),
            )
        elif not tensors[output.name].ready:
            culprit = _culprit(tensors, output.name)
            told.add(culprit)
            yield _not_written(model, index, output.name, tensors[culprit], tensors)
    for tensor in tensors.values():
        if tensor.name in outputs or (tensor.ready and tensor.read_by) or tensor.name in told:
            continue
        yield model.find(
            TENSOR_UNUSED,
            f"ensemble tensor {tensor.name} is {'never read' if tensor.ready else 'never written'}",
            *_where(model, tensor),
            says=f"ensemble tensor '{tensor.name}' is unused in ensemble '{name}'",
            hint="leave it out of output_map" if tensor.ready else suggest(tensor.name, _written(tensors)),
        )


def _mark_ready(model: Model, tensors: dict[str, _Tensor]) -> None:
    """Mark the inputs, and every tensor all of whose writers have what they need."""
    steps = model.config.ensemble_scheduling.step
    given = [tensor.name for tensor in model.config.input if tensor.name in tensors]
    ran = set(steps_in_order(steps, given))
    for name in given:
        tensors[name].ready = True
    for tensor in tensors.values():
        tensor.ready = tensor.ready or (bool(tensor.writers) and ran.issuperset(tensor.writers))


def steps_in_order(steps: Sequence[Any], given: Collection[str]) -> Iterator[int]:
    """The steps that run, by index, in the order in which their tensors are there; `given` are there from the start."""
    waits = [set(step.input_map.values()) for step in steps]
    readers: dict[str, list[int]] = {}
    for index, names in enumerate(waits):
        for name in names:
            readers.setdefault(name, []).append(index)
    there = deque(dict.fromkeys(given))
    known = set(there)
    while there:
        name = there.popleft()
        for index in readers.get(name, ()):
            waits[index].discard(name)
            if not waits[index]:
                yield index
                fresh = [target for target in steps[index].output_map.values() if target not in known]
                known.update(fresh)
                there.extend(fresh)


def _culprit(tensors: dict[str, _Tensor], name: str) -> str:
    """The tensor at the far end of what a tensor waits for; itself when it waits for nothing."""
    seen = set[str]()
    while True:
        waiting = [source for source in tensors[name].sources if not tensors[source].ready and source not in seen]
        if not waiting:
            return name
        name = waiting[0]
        seen.add(name)


def _not_written(model: Model, index: int, output: str, culprit: _Tensor, tensors: dict[str, _Tensor]) -> Finding:
    says = f"output '{output}' for ensemble '{model.config.name}' is not written"
    if culprit.name == output:
        return model.find(NOT_WRITTEN, f"no step writes the ensemble's output {output}", "output", index, says=says)
    steps = model.config.ensemble_scheduling.step
    reader = culprit.read_by[0]
    text = f"step {reader} ({steps[reader].model_name}): tensor {culprit.name} is never produced"
    if culprit.writers:
        text = f"step {reader} ({steps[reader].model_name}): tensor {culprit.name} is part of a circle of steps"
    return model.find(
        NOT_WRITTEN,
        f"{text}, so output {output} is not written",
        *_where(model, culprit),
        says=f"{says}: at least one of its depending tensors, '{culprit.name}', is not connected",
        hint=suggest(culprit.name, _written(tensors)),
    )


def _written(tensors: dict[str, _Tensor]) -> list[str]:
    return [tensor.name for tensor in tensors.values() if tensor.ready]


def _where(model: Model, tensor: _Tensor) -> tuple[str | int, ...]:
    """The map entry that writes a tensor, or the first that reads it."""
    steps = model.config.ensemble_scheduling.step
    for index, map_name in (
        (next(iter(tensor.writers), None), "output_map"),
        (next(iter(tensor.read_by), None), "input_map"),
    ):
        if index is not None:
            entries = getattr(steps[index], map_name).items()
            key = next((key for key, value in entries if value == tensor.name), "")
            return (_FIELD, "step", index, map_name, key)
    return (_FIELD,)
