"""Tensors of a model that Triton itself feeds or keeps: sequence controls, states, batch inputs. Layer: config.

Their types and dims are those of the model's tensors, so a person names them only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tooling.config.proto import ModelConfig, pb
from tooling.errors import Problem, UsageError, suggest

Strategy = Literal["direct", "oldest"]
_FALSE_TRUE: Final = {"TYPE_INT32": "int32_false_true", "TYPE_FP32": "fp32_false_true", "TYPE_BOOL": "bool_false_true"}
_VALUES: Final = {"TYPE_BOOL": (False, True)}
_CORRID: Final = "CORRID"
CONTROLS: Final = ("START", "READY", "END", _CORRID)


@dataclass(frozen=True, slots=True)
class Fed:
    """What is asked: input → kind of control, input state → output state, input → (kind, source) of a batch input.

    Requests of `ragged` inputs are put one behind the other.
    """

    strategy: Strategy | None = None
    iterative: bool | None = None
    controls: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    batch_inputs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    ragged: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.sequences or bool(self.batch_inputs or self.ragged)

    @property
    def sequences(self) -> bool:
        """Whether requests are to be scheduled as sequences."""
        return bool(self.strategy or self.controls or self.states) or self.iterative is not None

    def apply(self, config: ModelConfig) -> None:
        """Put it into `config`; what is there of the same name already stays. Raises UsageError with every fault."""
        problems: list[Problem] = []
        for ask in (self._sequence, self._controls, self._states, self._batch_inputs, self._ragged):
            problems += ask(config)
        if problems:
            raise UsageError(problems=problems)

    def _sequence(self, config: ModelConfig) -> Iterator[Problem]:
        yield from ()
        if not self.sequences:
            return
        batching = config.sequence_batching
        batching.SetInParent()
        if self.strategy and not batching.HasField(self.strategy):
            getattr(batching, self.strategy).SetInParent()
        if self.iterative is not None:
            batching.iterative_sequence = self.iterative

    def _controls(self, config: ModelConfig) -> Iterator[Problem]:
        kinds = pb().ModelSequenceBatching.Control.Kind
        listed = config.sequence_batching.control_input if self.controls else ()
        present = {entry.name for entry in listed}
        for name, kind in self.controls.items():
            if name in present:
                continue
            tensor = yield from _tensor(config.input, name, f"--control {name}={kind}")
            if tensor is None:
                continue
            entry = config.sequence_batching.control_input.add(name=name)
            control = entry.control.add(kind=kinds.Value(f"CONTROL_SEQUENCE_{kind}"))
            type_name = pb().DataType.Name(tensor.data_type)
            if kind == _CORRID:
                control.data_type = tensor.data_type
            elif type_name in _FALSE_TRUE:
                getattr(control, _FALSE_TRUE[type_name])[:] = _VALUES.get(type_name, (0, 1))
            else:
                yield Problem(
                    f"input `{name}` has a type that no control has",
                    f"--control {name}={kind}",
                    type_name,
                    ", ".join(_FALSE_TRUE),
                )

    def _states(self, config: ModelConfig) -> Iterator[Problem]:
        present = {state.input_name for state in config.sequence_batching.state} if self.states else set()
        for name, output in self.states.items():
            where = f"--state {name}={output}"
            if name in present:
                continue
            tensor = yield from _tensor(config.input, name, where)
            given = yield from _tensor(config.output, output, where, "output")
            if tensor is not None and given is not None:
                config.sequence_batching.state.add(
                    input_name=name, output_name=output, data_type=tensor.data_type, dims=tensor.dims
                )

    def _batch_inputs(self, config: ModelConfig) -> Iterator[Problem]:
        kinds = pb().BatchInput.Kind
        present = {target for entry in config.batch_input for target in entry.target_name}
        for name, (kind, source) in self.batch_inputs.items():
            if name in present:
                continue
            tensor = yield from _tensor(config.input, name, f"--batch-input {name}={kind}:{source}")
            if tensor is not None:
                config.batch_input.add(
                    kind=kinds.Value(f"BATCH_{kind}"),
                    target_name=[name],
                    data_type=tensor.data_type,
                    source_input=[source],
                )

    def _ragged(self, config: ModelConfig) -> Iterator[Problem]:
        for name in self.ragged:
            tensor = yield from _tensor(config.input, name, f"--ragged {name}")
            if tensor is not None:
                tensor.allow_ragged_batch = True


def _tensor(listed: Any, name: str, where: str, what: str = "input") -> Generator[Problem, None, Any]:
    """The tensor of this name; yields a problem where there is none."""
    known = {tensor.name: tensor for tensor in listed}
    if name not in known:
        yield Problem(
            f"`{name}` is no {what} of the model", where, expected=", ".join(known), hint=suggest(name, known)
        )
        return None
    return known[name]


def batch_kinds() -> tuple[str, ...]:
    """The kinds of batch inputs, without their prefix."""
    return tuple(value.name.removeprefix("BATCH_") for value in pb().BatchInput.Kind.DESCRIPTOR.values)


def drop_fed(config: ModelConfig) -> None:
    """Take out of the lists what Triton itself feeds or keeps.

    To the backend each of these is one of the model's tensors already; listed twice it would be one too many.
    """
    states = config.sequence_batching.state
    fed = {entry.name for entry in config.sequence_batching.control_input} | {state.input_name for state in states}
    fed |= {target for batch in config.batch_input for target in batch.target_name}
    kept = {state.output_name for state in states}
    for tensors, names in ((config.input, fed), (config.output, kept)):
        for index in reversed([i for i, tensor in enumerate(tensors) if tensor.name in names]):
            del tensors[index]
