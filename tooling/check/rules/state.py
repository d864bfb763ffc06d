"""Rules about implicit state, which Triton keeps between the requests of a sequence. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

from tooling.check.files import is_file
from tooling.check.finding import Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load
from tooling.check.sizes import element_bytes, type_name

_SOURCE: Final = "GenerateInitialStateData (core)"


def _state(initial: str, state: str = 'input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [ 1 ]') -> str:
    return (
        'backend: "python"\nmax_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
        f"sequence_batching {{ state {{ {state} {initial} }} }}\n--- 1/model.onnx\nabsent\n--- 1/model.py\n"
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []"
    )


ONE = load(
    "initial-state-count",
    "A state has more than one initial_state.",
    "There is one or none; without one the state starts as uninitialised memory. States are looked at when the "
    "instances are "
    "there already: on 2.51 a refusal then can end the whole server.",
    _state(
        'initial_state { name: "a" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } '
        'initial_state { name: "b" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }'
    ),
    _SOURCE,
)
TYPE = load(
    "initial-state-type",
    "The initial state has another type than the state.",
    "No value is converted.",
    _state('initial_state { name: "a" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }'),
    _SOURCE,
)
NO_NAME = load(
    "initial-state-without-name",
    "The initial state has no name.",
    "The name must be set, whatever it is.",
    _state("initial_state { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }"),
    _SOURCE,
)
TWICE = load(
    "state-twice",
    "A state's input is listed twice.",
    "With an initial state in both it is refused, otherwise the second is ignored at run time.",
    _state(
        'initial_state { name: "a" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }\n state {'
        ' input_name: "s" output_name: "u" data_type: TYPE_FP32 dims: [ 1 ]'
        ' initial_state { name: "b" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }'
    ),
    _SOURCE,
)
RANK = load(
    "initial-state-rank",
    "The initial state has another number of dims than the state.",
    "They must match one by one.",
    _state('initial_state { name: "a" data_type: TYPE_FP32 dims: [ 1, 1 ] zero_data: true }'),
    _SOURCE,
)
FREE = load(
    "initial-state-free-axis",
    "The initial state has an axis of any length.",
    "Its data has a size; every dim must be a number.",
    _state(
        'initial_state { name: "a" data_type: TYPE_FP32 dims: [ -1 ] zero_data: true }',
        'input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [ -1 ]',
    ),
    _SOURCE,
)
DIMS = load(
    "initial-state-dims",
    "A dim of the initial state differs from the state's.",
    "Where the state says -1, any number will do.",
    _state('initial_state { name: "a" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true }'),
    _SOURCE,
)
FILE = load(
    "initial-state-file-missing",
    "The file of an initial state is not in `initial_state/`.",
    "data_file is read from that directory of the model.",
    _state('initial_state { name: "a" data_type: TYPE_FP32 dims: [ 1 ] data_file: "s.bin" }'),
    _SOURCE,
)
FILE_SHORT = load(
    "initial-state-file-short",
    "The file of an initial state is too short.",
    "It holds the raw values: product of dims times the size of the type. A longer file is cut.",
    _state('initial_state { name: "a" data_type: TYPE_FP32 dims: [ 1 ] data_file: "s.bin" }')
    + "\n--- initial_state/s.bin\nx",
    _SOURCE,
)
NO_DATA = load(
    "initial-state-without-data",
    "The initial state says neither zero_data nor data_file.",
    "One of them must be there; the value of zero_data is not looked at.",
    _state('initial_state { name: "a" data_type: TYPE_FP32 dims: [ 1 ] }'),
    _SOURCE,
)
GROWABLE = advice(
    "growable-memory",
    "use_growable_memory needs use_same_buffer_for_input_output and KIND_GPU.",
    "Otherwise the state cannot be used; the log tells it when the first sequence runs.",
    _state("", 'input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [ 1 ] use_growable_memory: true'),
    "SequenceStates (core)",
    stage=Stage.REQUEST,
)
RULES = (ONE, TYPE, NO_NAME, TWICE, RANK, FREE, DIMS, FILE, FILE_SHORT, NO_DATA, GROWABLE)


def states(model: Model) -> Iterator[Finding]:
    """The states of a sequence batcher, in the order in which its scheduler is made."""
    seen: set[str] = set()
    for index, state in enumerate(model.completed.sequence_batching.state):
        where: tuple[str | int, ...] = ("sequence_batching", "state", index)
        if len(state.initial_state) > 1:
            yield model.find(
                ONE,
                f"state {state.input_name} has {len(state.initial_state)} initial states",
                *where,
                says=f"initial_state field for state input '{state.input_name}' must contain exactly one or zero "
                "element. "
                f"Found '{len(state.initial_state)}' elements.",
            )
        elif state.initial_state:
            if state.input_name in seen:
                yield model.find(
                    TWICE,
                    f"state {state.input_name} is listed twice",
                    *where,
                    says=f"State input name '{state.input_name}' specified more than once.",
                )
            seen.add(state.input_name)
            yield from _initial(model, (*where, "initial_state", 0), state, state.initial_state[0])
        if state.use_growable_memory and not state.use_same_buffer_for_input_output:
            yield model.find(
                GROWABLE,
                f"state {state.input_name}: use_growable_memory needs use_same_buffer_for_input_output",
                *where,
                "use_growable_memory",
            )


def _initial(model: Model, where: tuple[str | int, ...], state: Any, initial: Any) -> Iterator[Finding]:
    name = state.input_name
    if initial.data_type != state.data_type:
        types = type_name
        yield model.find(
            TYPE,
            f"state {name} is {types(state.data_type)}, its initial state {types(initial.data_type)}",
            *where,
            "data_type",
            says=f"The data type used for 'initial_state' field of state '{name}' does not match the state data type.",
        )
    if not initial.name:
        yield model.find(
            NO_NAME,
            f"the initial state of {name} has no name",
            *where,
            says=f"Field 'name' must be set when using initial_state for state input '{name}'.",
        )
    yield from _dims(model, where, state, initial)
    yield from _data(model, where, state, initial)


def _dims(model: Model, where: tuple[str | int, ...], state: Any, initial: Any) -> Iterator[Finding]:
    name, dims, expected = state.input_name, list(initial.dims), list(state.dims)
    if len(dims) != len(expected):
        yield model.find(
            RANK,
            f"state {name} has dims {expected}, its initial state {dims}",
            *where,
            "dims",
            says="Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state "
            "input "
            f"'{name}'. {len(dims)} != {len(expected)}",
        )
        return
    for axis, (dim, wanted) in enumerate(zip(dims, expected, strict=True)):
        if dim == -1:
            yield model.find(
                FREE,
                f"the initial state of {name} has dims {dims}: every dim must be a number",
                *where,
                "dims",
                axis,
                says=f"'initial_state' field for state input name '{name}' contains variable dimensions.",
            )
        elif wanted not in (-1, dim):
            yield model.find(
                DIMS,
                f"state {name} has dims {expected}, its initial state {dims}",
                *where,
                "dims",
                axis,
                says=f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {dim} != "
                f"{wanted}",
            )


def _data(model: Model, where: tuple[str | int, ...], state: Any, initial: Any) -> Iterator[Finding]:
    source = initial.WhichOneof("state_data")
    if source is None:
        yield model.find(
            NO_DATA,
            f"the initial state of {state.input_name} says neither zero_data nor data_file",
            *where,
            says=f"initial_state setting expects state'{state.input_name}' to have state_data set",
            hint="zero_data: true",
        )
    elif source == "data_file":
        path = model.directory / "initial_state" / initial.data_file
        size = element_bytes(initial.data_type)
        if not is_file(path):
            yield model.find(
                FILE,
                f"initial_state/{initial.data_file} not found",
                *where,
                "data_file",
                says=f"failed to open text file for read {path}: No such file or directory",
            )
        elif size and -1 not in initial.dims and path.stat().st_size < prod(initial.dims) * size:
            needed, there = prod(initial.dims) * size, path.stat().st_size
            yield model.find(
                FILE_SHORT,
                f"initial_state/{initial.data_file}: {there} bytes, need {needed}",
                *where,
                "data_file",
                says=f"initial_state setting expects {needed} bytes, but the data provided from "
                f"{initial.data_file}only "
                f"has {there} bytes.",
            )
