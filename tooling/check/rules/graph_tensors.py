"""Rules about the tensors of an ensemble and those of its models. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tooling.check.finding import Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.ensemble import steps_in_order
from tooling.check.rules.graph import FIELD, MODEL, STEP, example
from tooling.check.rules.kinds import advice, dependency
from tooling.check.sizes import type_name
from tooling.check.wording import shape_text
from tooling.errors import suggest

_SOURCE: Final = "ValidateEnsembleConfig (core)"

BATCH = dependency(
    "ensemble-batch-above-step",
    "The ensemble allows larger batches than one of its models.",
    "A model without batching may take part where its shapes agree; one that batches must take at least the ensemble's "
    "max_batch_size.",
    example(config=MODEL.replace("size: 8", "size: 4")),
    _SOURCE,
)
INPUT_UNKNOWN = dependency(
    "step-input-unknown",
    "A key of input_map is no input of the model.",
    "Keys are the model's tensors, values the ensemble's; names are case-sensitive.",
    example(STEP.replace('key: "x"', 'key: "X"')),
    _SOURCE,
)
INPUT_UNMAPPED = dependency(
    "step-input-unmapped",
    "An input of the model is not mapped.",
    "Every input that is not optional needs a tensor of the ensemble.",
    example(
        model="x: FP32 [batch, 8], z: FP32 [batch, 8] -> y: FP32 [batch, 8]",
        config=MODEL + 'input { name: "z" data_type: TYPE_FP32 dims: [ 8 ] }\n',
    ),
    _SOURCE,
)
OUTPUT_UNKNOWN = dependency(
    "step-output-unknown",
    "A key of output_map is no output of the model.",
    "Keys are the model's tensors, values the ensemble's.",
    example(STEP.replace('key: "y"', 'key: "Y"')),
    _SOURCE,
)
TYPE = dependency(
    "ensemble-tensor-type",
    "The two ends of an ensemble tensor have different types.",
    "Nothing is converted between steps.",
    example(data_type="TYPE_FP16"),
    _SOURCE,
)
SHAPE = dependency(
    "ensemble-tensor-shape",
    "The two ends of an ensemble tensor have different shapes.",
    "-1 fits anything. Shapes are compared without and with the batch axis, so a model without batching may have it "
    "in its "
    "dims.",
    example(dims="4"),
    _SOURCE,
)
DECOUPLED = dependency(
    "ensemble-decoupled-mix",
    "A step takes tensors of different decoupled models.",
    "Each decoupled step answers any number of times; answers of two of them, or of one and of the request itself, "
    "cannot be "
    "paired.",
    'platform: "ensemble"\nmax_batch_size: 0\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\nensemble_scheduling {\n'
    '  step { model_name: "d" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "a" } '
    "}\n"
    '  step { model_name: "e" model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "b" } '
    "}\n"
    '  step { model_name: "s" model_version: -1 input_map { key: "a" value: "a" } input_map { key: "b" value: "b" }\n'
    '         output_map { key: "y" value: "y" } }\n}\n--- 1/model.onnx\nabsent\n'
    + "".join(
        f'--- ../{name}/config.pbtxt\nbackend: "python"\ninput {{ name: "x" data_type: TYPE_FP32 dims: [ 8 ] }}\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\nmodel_transaction_policy { decoupled: true }\n'
        f"--- ../{name}/1/model.py\nclass TritonPythonModel:\n    def execute(self, requests):\n        return None\n"
        for name in ("d", "e")
    )
    + '--- ../s/config.pbtxt\nbackend: "python"\ninput { name: "a" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'input { name: "b" data_type: TYPE_FP32 dims: [ 8 ] }\noutput { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    "--- ../s/1/model.py\nclass TritonPythonModel:\n    def execute(self, requests):\n        return []",
    _SOURCE,
)
DECOUPLED_IGNORED = advice(
    "ensemble-decoupled-ignored",
    "The ensemble's own `decoupled` is overwritten.",
    "An ensemble is decoupled when one of its steps is.",
    example().replace("ensemble_scheduling", "model_transaction_policy { decoupled: true }\nensemble_scheduling"),
    _SOURCE,
    stage=Stage.DEPENDENCY,
)
RULES = (BATCH, INPUT_UNKNOWN, INPUT_UNMAPPED, OUTPUT_UNKNOWN, TYPE, SHAPE, DECOUPLED, DECOUPLED_IGNORED)


@dataclass(frozen=True, slots=True)
class _End:
    """One end of an ensemble tensor, and the model it is inferred from."""

    model: str
    data_type: int
    dims: tuple[int, ...]
    batching: bool

    @property
    def full(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batching else self.dims


def tensors(model: Model) -> Iterator[Finding]:
    """Whether the tensors of the ensemble and those of its models agree."""
    config = model.config
    if not config.HasField(FIELD):
        return
    ends: dict[str, _End] = {}
    for tensor in (*config.input, *config.output):
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        ends.setdefault(tensor.name, _End(config.name, tensor.data_type, tuple(dims), config.max_batch_size > 0))
    for index, step in enumerate(config.ensemble_scheduling.step):
        other = model.siblings.get(step.model_name)
        whole = other is not None and other.name not in model.refusals and other.completed.input
        if other is not None and whole and other.completed.output:
            yield from _step(model, index, step, other, ends)
    if config.model_transaction_policy.decoupled and not any(_is_decoupled(model, step) for step in _steps(model)):
        yield model.find(
            DECOUPLED_IGNORED, "decoupled is overwritten with false: no step is decoupled", "model_transaction_policy"
        )
    yield from _decoupled(model)


def _step(model: Model, index: int, step: Any, other: Model, ends: dict[str, _End]) -> Iterator[Finding]:
    name, served, where = model.config.name, other.completed, (FIELD, "step", index)
    top = model.config.max_batch_size
    if served.max_batch_size != 0 and served.max_batch_size < top:
        yield model.find(
            BATCH,
            f"{name} allows batch {top} but step {step.model_name} allows only {served.max_batch_size}",
            *where,
            says=f"ensemble {name} allows maximum batch size {top}, but it contains model {step.model_name} which only "
            f"allows maximum batch size to be {served.max_batch_size}",
            hint=f"max_batch_size: {served.max_batch_size}",
        )
    batching = served.max_batch_size > 0
    for what, rule, listed, mapping in (
        ("input", INPUT_UNKNOWN, served.input, step.input_map),
        ("output", OUTPUT_UNKNOWN, served.output, step.output_map),
    ):
        names = [tensor.name for tensor in listed]
        for key, target in mapping.items():
            if key not in names:
                verb = "mapping to non-existing input" if what == "input" else "mapped from non-existing output"
                yield model.find(
                    rule,
                    f"step {index} ({step.model_name}): no {what} called {key}; {what}s are {', '.join(names)}",
                    *where,
                    f"{what}_map",
                    key,
                    says=f"in ensemble {name}, ensemble tensor {target} is {verb} {key} in model {step.model_name}",
                    hint=suggest(key, names) or suggest(key.lower(), names),
                )
        for tensor in listed:
            if tensor.name in mapping:
                end = _End(step.model_name, tensor.data_type, tuple(tensor.dims), batching)
                yield from _agree(model, (*where, f"{what}_map", tensor.name), mapping[tensor.name], end, ends)
            elif what == "input" and not tensor.optional:
                yield model.find(
                    INPUT_UNMAPPED,
                    f"step {index} ({step.model_name}): input {tensor.name} is not mapped",
                    *where,
                    "input_map",
                    says=f"in ensemble {name}, input {tensor.name} in model {step.model_name} is not mapped to any "
                    "ensemble "
                    "tensors",
                )


def _agree(
    model: Model, where: tuple[str | int, ...], tensor: str, end: _End, ends: dict[str, _End]
) -> Iterator[Finding]:
    first = ends.setdefault(tensor, end)
    start = f"in ensemble {model.config.name}, ensemble tensor {tensor}: "
    if first.data_type != end.data_type:
        one, two = type_name(first.data_type), type_name(end.data_type)
        yield model.find(
            TYPE,
            f"tensor {tensor}: {one.removeprefix('TYPE_')} from {first.model}, {two.removeprefix('TYPE_')} expected by "
            f"{end.model}",
            *where,
            says=f"{start}inconsistent data type: {one} is inferred from model {first.model} while {two} is inferred "
            "from "
            f"model {end.model}",
            hint="export one of them with the other type, or add a step that casts",
        )
    elif not _fit(first.dims, end.dims) and not _fit(first.full, end.full):
        one, two = shape_text(first.full), shape_text(end.full)
        yield model.find(
            SHAPE,
            f"tensor {tensor}: shape {one} from {first.model}, {two} expected by {end.model}",
            *where,
            says=f"{start}inconsistent shape: {one} is inferred from model {first.model} while {two} is inferred "
            "from model "
            f"{end.model}",
        )


def _fit(one: Sequence[int], two: Sequence[int]) -> bool:
    return len(one) == len(two) and all(a == b or -1 in (a, b) for a, b in zip(one, two, strict=True))


def _steps(model: Model) -> list[Any]:
    return list(model.config.ensemble_scheduling.step)


def _is_decoupled(model: Model, step: Any) -> bool:
    other = model.siblings.get(step.model_name)
    return other is not None and bool(other.config.model_transaction_policy.decoupled)


def _decoupled(model: Model) -> Iterator[Finding]:
    """Follow which decoupled step each tensor stems from; a step may only take tensors of one origin."""
    name, steps = model.config.name, _steps(model)
    origin = {tensor.name: 0 for tensor in model.config.input}
    label = 0
    for index in steps_in_order(steps, origin):
        step = steps[index]
        if len({origin[source] for source in step.input_map.values()}) > 1:
            # The server names the model that the step's tensor is first inferred from: for an output, the ensemble.
            targets = set(step.output_map.values())
            owner = name if targets & {tensor.name for tensor in model.config.output} else step.model_name
            yield _mixed(model, f"step {index} ({step.model_name})", owner, index)
        inherited = origin[next(iter(step.input_map.values()))]
        label += _is_decoupled(model, step)
        for target in step.output_map.values():
            origin[target] = label if _is_decoupled(model, step) else inherited
    outputs = {origin[tensor.name] for tensor in model.config.output if tensor.name in origin}
    if len(outputs) > 1:
        yield _mixed(model, "the ensemble's outputs", name, None)


def _mixed(model: Model, what: str, name: str, index: int | None) -> Finding:
    path = (FIELD,) if index is None else (FIELD, "step", index)
    return model.find(
        DECOUPLED,
        f"{what} mixes tensors of different decoupled models",
        *path,
        says=f"in ensemble {model.config.name}, step of model '{name}' receives inputs originated from different "
        "decoupled "
        "models",
    )
