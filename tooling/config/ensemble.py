"""An ensemble's config from a short graph, or from the tensor names its models share. Layer: config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tooling.config.names import name_problem
from tooling.config.proto import ModelConfig, enum_text, pb
from tooling.errors import Problem, UsageError, suggest

_GRAPH_KEYS: Final = ("steps", "outputs", "max_batch_size")
_STEP_KEYS: Final = ("model", "inputs", "outputs")
_GRAPH_SUFFIXES: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Step:
    """One model of the graph: its tensors by the names they have between the steps. None takes a tensor's own name."""

    model: str
    inputs: Mapping[str, str] | None = None
    outputs: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """What a person says of an ensemble; `outputs` empty means those of the last steps, of which no step takes any."""

    steps: tuple[Step, ...]
    outputs: tuple[str, ...] = ()
    max_batch_size: int | None = None


def is_graph_file(words: str) -> bool:
    """Whether the words that say what an ensemble joins name a graph file, by their end."""
    return words.endswith(_GRAPH_SUFFIXES)


def models_named(words: str) -> tuple[str, ...]:
    """The models of `A,B`; none for `auto`, which stands for all."""
    return () if words == "auto" else tuple(name.strip() for name in words.split(","))


def parse_graph(data: Mapping[str, Any], where: str) -> Graph:
    """The graph in a YAML mapping.

    ```yaml
    steps:
    - model: tokenizer            # tensors keep their own names …
    - model: encoder
      inputs: {ids: input_ids}    # … unless mapped: the model's name, then the name between the steps
    outputs: [embeddings]
    ```
    Raises UsageError with every key and value that is not understood.
    """
    problems = list(_unknown(data, _GRAPH_KEYS, where))
    entries = data.get("steps")
    steps: list[Step] = []
    if not isinstance(entries, list) or not entries:
        problems.append(Problem("no steps", where, expected="`steps:` with a list of `- model: NAME`"))
        entries = []
    for number, entry in enumerate(entries):
        place = f"{where}: step {number}"
        item = {"model": entry} if isinstance(entry, str) else entry
        if not isinstance(item, dict) or not isinstance(item.get("model"), str):
            problems.append(Problem("names no model", place, expected="`model: NAME`"))
            continue
        problems += _unknown(item, _STEP_KEYS, place)
        maps = [item.get(key) for key in ("inputs", "outputs")]
        problems += [
            Problem("not a map of names", place, f"`{value}`", "MODEL_TENSOR: NAME_BETWEEN_STEPS")
            for value in maps
            if value is not None and not _is_names(value)
        ]
        steps.append(Step(item["model"], *maps))
    outputs, top = data.get("outputs") or [], data.get("max_batch_size")
    if not isinstance(outputs, list) or not all(isinstance(name, str) for name in outputs):
        problems.append(Problem("not a list of names", f"{where}: outputs", f"`{outputs}`"))
    if top is not None and (type(top) is not int or top < 0):
        problems.append(Problem("not a batch size", f"{where}: max_batch_size", f"`{top}`", "0 or more"))
    if problems:
        raise UsageError(problems=problems)
    return Graph(tuple(steps), tuple(outputs), top)


def _is_names(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(part, str) for pair in value.items() for part in pair)


def _unknown(data: Mapping[str, Any], known: Sequence[str], where: str) -> Iterator[Problem]:
    for key in data:
        if key not in known:
            yield Problem(f"unknown key `{key}`", where, expected=", ".join(known), hint=suggest(str(key), known))


@dataclass(slots=True)
class _Flow:
    """Tensors between the steps, as they come into being."""

    produced: dict[str, str] = field(default_factory=dict)  # tensor → where from
    consumed: set[str] = field(default_factory=set)
    shapes: dict[str, tuple[int, list[int], list[int]]] = field(default_factory=dict)  # data type, dims, whole shape
    problems: list[Problem] = field(default_factory=list)


def build_ensemble(name: str, graph: Graph, models: Mapping[str, ModelConfig]) -> ModelConfig:
    """The config of the ensemble over `models` (configs by name), always with `model_version: -1`.

    Inputs are the tensors that no step gives, outputs `graph.outputs`, or those of the steps of which no step takes
    any: what is left over of others, like a tokenizer's token_type_ids, goes nowhere. The largest batch is the smallest
    one of the steps. Raises UsageError with every rule that the graph breaks.
    """
    problem = name_problem(name)
    flow = _Flow(problems=[problem] if problem else [])
    steps = [step for step in graph.steps if _known(step, models, flow)]
    config = pb().ModelConfig(name=name, platform="ensemble")
    config.max_batch_size = _batch(graph, [(step.model, models[step.model]) for step in steps], flow)
    for number, step in enumerate(steps):
        entry = config.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
        _connect(entry, number, step, models[step.model], flow)
    inputs = [tensor for tensor in flow.shapes if tensor not in flow.produced]
    last = [step for step in config.ensemble_scheduling.step if flow.consumed.isdisjoint(step.output_map.values())]
    ends = [tensor for step in last for tensor in step.output_map.values()]
    _order_problems(config, flow)
    for tensor in graph.outputs:
        if tensor not in flow.produced:
            flow.problems.append(
                Problem(
                    f"output `{tensor}` is never produced",
                    expected=", ".join(flow.produced),
                    hint=suggest(tensor, flow.produced),
                )
            )
    outputs = [tensor for tensor in graph.outputs if tensor in flow.produced] or ends
    for entry in config.ensemble_scheduling.step:  # a tensor that nobody takes makes Triton refuse the ensemble
        for key, tensor in list(entry.output_map.items()):
            if tensor not in flow.consumed and tensor not in outputs:
                del entry.output_map[key]
        if not entry.output_map:
            flow.problems.append(
                Problem(f"nothing takes an output of step `{entry.model_name}`", hint="leave the step out")
            )
    if flow.problems:
        raise UsageError(problems=flow.problems)
    for target, names in ((config.input, inputs), (config.output, outputs)):
        for tensor in names:
            data_type, dims, whole = flow.shapes[tensor]
            target.add(name=tensor, data_type=data_type, dims=dims if config.max_batch_size > 0 else whole)
    return config


def _known(step: Step, models: Mapping[str, ModelConfig], flow: _Flow) -> bool:
    if step.model in models:
        model = models[step.model]
        if model.input and model.output:
            return True
        flow.problems.append(
            Problem(
                f"the config of `{step.model}` does not list its tensors",
                expected="inputs and outputs",
                hint=f"write them with `tritune gen-config REPO/{step.model}`",
            )
        )
        return False
    flow.problems += _missing(step.model, models)
    return False


def _missing(name: str, models: Mapping[str, ModelConfig]) -> Iterator[Problem]:
    yield Problem(
        f"no model `{name}` with a config in the repository",
        expected=", ".join(sorted(models)) or "models with a config.pbtxt",
        hint=suggest(name, models),
    )


def _batch(graph: Graph, steps: Sequence[tuple[str, ModelConfig]], flow: _Flow) -> int:
    """The largest batch every step takes; 0 as soon as one step does not batch."""
    limit = min((config.max_batch_size for _, config in steps), default=0)
    asked = graph.max_batch_size
    if asked is None:
        return limit
    for model, config in steps:
        if asked > config.max_batch_size:
            flow.problems.append(
                Problem(
                    f"the ensemble allows batch {asked} but step `{model}` allows only {config.max_batch_size}",
                    expected=f"max_batch_size {limit} or less",
                )
            )
    return asked


def _connect(entry: Any, number: int, step: Step, model: ModelConfig, flow: _Flow) -> None:
    """Fill the maps of one step and note what it takes and gives."""
    where = f"step {number} ({step.model})"
    for what, given, tensors, target in (
        ("input", step.inputs, model.input, entry.input_map),
        ("output", step.outputs, model.output, entry.output_map),
    ):
        known = {tensor.name: tensor for tensor in tensors}
        for key in given or {}:
            if key not in known:
                expected, hint = ", ".join(known), suggest(key, known)
                flow.problems.append(Problem(f"no {what} called `{key}`", where, expected=expected, hint=hint))
        for tensor in tensors:
            if what == "input" and tensor.optional and tensor.name not in (given or {}):
                continue
            between = (given or {}).get(tensor.name, tensor.name)
            target[tensor.name] = between
            _note(between, tensor, model, where, flow)
            if what == "input":
                flow.consumed.add(between)
            elif flow.produced.setdefault(between, where) != where or list(target.values()).count(between) > 1:
                flow.problems.append(Problem(f"tensor `{between}` is produced twice", where, flow.produced[between]))


def _note(between: str, tensor: Any, model: ModelConfig, where: str, flow: _Flow) -> None:
    """Remember type and shape of a tensor, or compare them with what another step says."""
    dims = list(tensor.dims)
    whole = [-1, *dims] if model.max_batch_size > 0 else dims
    first_type, first_dims, first_whole = flow.shapes.setdefault(between, (tensor.data_type, dims, whole))
    if first_type != tensor.data_type:
        flow.problems.append(
            Problem(
                f"tensor `{between}` has two types",
                where,
                enum_text(pb().DataType, tensor.data_type),
                f"{enum_text(pb().DataType, first_type)}, as the step before has it",
                "make one of the models again with the other type, or put a step between that converts",
            )
        )
    if not _agree(first_dims, dims) and not _agree(first_whole, whole):
        flow.problems.append(Problem(f"tensor `{between}` has two shapes", where, str(whole), str(first_whole)))


def _agree(one: list[int], other: list[int]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


def _order_problems(config: ModelConfig, flow: _Flow) -> None:
    """Steps whose inputs wait for each other in a circle never run."""
    steps = list(config.ensemble_scheduling.step)
    ready = {tensor for tensor in flow.shapes if tensor not in flow.produced}
    while runnable := [step for step in steps if ready.issuperset(step.input_map.values())]:
        for step in runnable:
            ready |= set(step.output_map.values())
            steps.remove(step)
    if steps:
        names = ", ".join(f"`{step.model_name}`" for step in steps)
        flow.problems.append(Problem("the steps wait for each other in a circle", got=names))


def infer_graph(models: Mapping[str, ModelConfig], chosen: Sequence[str] = ()) -> Graph:
    """The graph in which equal names of an output and an input are one tensor, in an order that can run.

    Takes the `chosen` models, or all. Raises UsageError for one that is not there, where no tensor joins two of them,
    and for a model that stands alone.
    """
    names = list(chosen) or sorted(models)
    missing = [problem for name in names if name not in models for problem in _missing(name, models)]
    if missing:
        raise UsageError(problems=missing)
    known = [models[name] for name in names]
    gives = {tensor.name for model in known for tensor in model.output}
    takes = {tensor.name for model in known for tensor in model.input}
    alone = [
        model.name
        for model in known
        if not takes & {tensor.name for tensor in model.output} and not gives & {tensor.name for tensor in model.input}
    ]
    if known and (alone or len(known) < 2):
        raise UsageError(
            "the models share no tensor names",
            got=", ".join(f"`{name}`" for name in alone or names),
            expected="an output of one model with the name of another one's input",
            hint="say how they are joined in a graph file: `--ensemble GRAPH.yaml`",
        )
    order = _in_order(known)
    return Graph(tuple(Step(name) for name in order))


def _in_order(models: Sequence[ModelConfig]) -> list[str]:
    """Names of the models, each after those whose outputs it takes, as far as there is such an order."""
    waiting, order = list(models), []
    while waiting:
        free = [
            model for model in waiting if not any(_feeds(other, model) for other in waiting if other is not model)
        ] or waiting
        order.append(free[0].name)
        waiting.remove(free[0])
    return order


def _feeds(one: ModelConfig, other: ModelConfig) -> bool:
    return not {tensor.name for tensor in one.output}.isdisjoint(tensor.name for tensor in other.input)
