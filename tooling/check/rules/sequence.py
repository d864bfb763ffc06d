"""Rules about sequence batching: controls, strategies, implicit state. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tooling.check.finding import Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.dynamic import preferred
from tooling.check.rules.kinds import advice, poll
from tooling.check.sizes import type_name
from tooling.config.proto import pb

_SOURCE: Final = "GetBooleanSequenceControlProperties (core)"
_FIELD: Final = "sequence_batching"
_LISTS: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")
_EITHER: Final = "'int32_false_true', 'fp32_false_true' or 'bool_false_true'"
_CORRID: Final = "CONTROL_SEQUENCE_CORRID"
# Triton looks for one kind after the other, each time through all controls.
_PASSES: Final = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY", _CORRID)
_CORRID_TYPES: Final = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def _control(text: str, name: str = "START") -> str:
    return f'max_batch_size: 8\nsequence_batching {{ control_input {{ name: "{name}" control {{ {text} }} }} }}'


CACHE = poll(
    "cache-with-sequences",
    "The response cache does not work with sequence batching.",
    "An answer of a sequence depends on what came before it.",
    "max_batch_size: 8\nsequence_batching { }\nresponse_cache { enable: true }",
    "ValidateModelConfig (core)",
)
NO_NAME = poll(
    "control-without-name",
    "A sequence control has no name.",
    "The name is that of the model's input which takes the control.",
    _control("kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]", ""),
    _SOURCE,
)
TWICE = poll(
    "control-input-twice",
    "A control input stands twice.",
    "One entry of control_input may hold several controls; two entries of one name may not be.",
    "max_batch_size: 8\nsequence_batching {\n"
    '  control_input { name: "C" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }\n'
    '  control_input { name: "C" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }\n}',
    _SOURCE,
)
KIND_TWICE = poll(
    "control-kind-twice",
    "A kind of control is given to two tensors.",
    "Each kind feeds one tensor.",
    "max_batch_size: 8\nsequence_batching {\n"
    '  control_input { name: "A" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }\n'
    '  control_input { name: "B" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }\n}',
    _SOURCE,
)
NO_VALUES = poll(
    "control-without-values",
    "A control does not say which values mean false and true.",
    "START, END and READY need exactly one of int32_false_true, fp32_false_true and bool_false_true.",
    _control("kind: CONTROL_SEQUENCE_START"),
    _SOURCE,
)
MANY_VALUES = poll(
    "control-with-several-values",
    "A control gives its values in several types.",
    "The type of the values is the type of the tensor; there is one.",
    _control("kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]"),
    _SOURCE,
)
TWO_VALUES = poll(
    "control-values-count",
    "A control has other than two values.",
    "The first means false, the second true.",
    _control("kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1, 2 ]"),
    _SOURCE,
)
CORRID_VALUES = poll(
    "corrid-with-values",
    "The correlation id takes no false and true values.",
    "CONTROL_SEQUENCE_CORRID carries an id; it has a data_type.",
    _control("kind: CONTROL_SEQUENCE_CORRID int32_false_true: [ 0, 1 ] data_type: TYPE_UINT64"),
    "GetTypedSequenceControlProperties (core)",
)
CORRID_TYPE = poll(
    "corrid-type",
    "The correlation id has a type that ids cannot have.",
    f"Ids are {', '.join(_CORRID_TYPES)}.",
    _control("kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"),
    "ValidateModelConfig (core)",
)
UTILIZATION = poll(
    "slot-utilization",
    "minimum_slot_utilization is a share of the slots.",
    "It lies between 0 and 1; 0 is accepted in spite of the server's text.",
    "max_batch_size: 8\nsequence_batching { direct { minimum_slot_utilization: 1.5 } }",
    "ValidateModelConfig (core)",
)
DELAY_UNUSED = advice(
    "direct-delay-without-utilization",
    "The delay of the direct strategy has no effect without minimum_slot_utilization.",
    "The strategy waits only to fill that share of the slots, and the share is 0.",
    "max_batch_size: 8\nsequence_batching { direct { max_queue_delay_microseconds: 100 } }",
    "SequenceBatch (core)",
    stage=Stage.POLL,
)
RULES = (
    *(CACHE, NO_NAME, TWICE, KIND_TWICE, NO_VALUES, MANY_VALUES, TWO_VALUES, CORRID_VALUES, CORRID_TYPE, UTILIZATION),
    DELAY_UNUSED,
)


def sequence_batching(model: Model) -> Iterator[Finding]:
    """What the core refuses, in its order."""
    config = model.config
    if not config.HasField(_FIELD):
        return
    if config.response_cache.enable:
        yield model.find(
            CACHE,
            "response_cache does not work with sequence_batching",
            "response_cache",
            says=f"Response Cache does not currently support model {config.name} with sequence batching scheduler. "
            "Please disable the response cache.",
            hint="switch one of the two off",
            fix=("-response_cache",),
        )
    told: set[str] = set()
    for kind in _PASSES:
        for finding in _controls(model, kind):
            if finding.message not in told:
                told.add(finding.message)
                yield finding
    yield from _strategy(model)


def _controls(model: Model, kind: str) -> Iterator[Finding]:
    """One pass over the controls, for one kind."""
    name, seen, found = model.config.name, set[str](), ""
    last: tuple[tuple[str | int, ...], str, Any] | None = None
    kinds = pb().ModelSequenceBatching.Control.Kind
    for index, entry in enumerate(model.config.sequence_batching.control_input):
        where: tuple[str | int, ...] = (_FIELD, "control_input", index)
        if not entry.name:
            yield model.find(
                NO_NAME,
                f"control_input {index} has no name",
                *where,
                says=f"sequence batching control tensor must have a name for {name}",
            )
        elif entry.name in seen:
            yield model.find(
                TWICE,
                f"control_input {entry.name} stands twice",
                *where,
                says=f"sequence batching control tensor '{entry.name}' is specified for multiple control kinds for "
                f"{name}",
                hint="put its controls into one entry",
            )
        seen.add(entry.name)
        for number, control in enumerate(entry.control):
            if control.kind != kinds.Value(kind):
                continue
            if found:
                yield model.find(
                    KIND_TWICE,
                    f"{kind} is given to {found} and {entry.name}",
                    *where,
                    says=f"sequence batching specifies multiple {kind} tensors for {name}",
                )
            found = entry.name or str(index)
            yield from _values(model, (*where, "control", number), found, control, kind)
            last = ((*where, "control", number), found, control)
    if last and kind == _CORRID:
        yield from _id_type(model, *last)


def _values(model: Model, where: tuple[str | int, ...], tensor: str, control: Any, kind: str) -> Iterator[Finding]:
    name, what = model.config.name, f"{kind} {tensor}"
    given = [field for field in _LISTS if getattr(control, field)]
    if kind == _CORRID:
        if given:
            yield model.find(
                CORRID_VALUES,
                f"{what} takes no {', '.join(given)}",
                *where,
                says=f"sequence batching must not specify either {_EITHER} for {kind} for {name}",
            )
    elif not given:
        yield model.find(
            NO_VALUES,
            f"{what} does not say which values mean false and true",
            *where,
            says=f"sequence batching must specify either {_EITHER} for {kind} for {name}",
            hint="int32_false_true: [ 0, 1 ]",
        )
    elif len(given) > 1:
        yield model.find(
            MANY_VALUES,
            f"{what} has {' and '.join(given)}",
            *where,
            says="sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {kind} for {name}",
            hint="keep the one of the tensor's type",
        )
    elif len(getattr(control, given[0])) != 2:
        yield model.find(
            TWO_VALUES,
            f"{what}: {given[0]} has {len(getattr(control, given[0]))} values, and needs 2",
            *where,
            given[0],
            says=f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for {name}",
        )


def _id_type(model: Model, where: tuple[str | int, ...], tensor: str, control: Any) -> Iterator[Finding]:
    """The type of the correlation id, which is looked at when the whole pass is done."""
    data_type = type_name(control.data_type)
    if data_type not in _CORRID_TYPES:
        yield model.find(
            CORRID_TYPE,
            f"{_CORRID} cannot be {data_type} ({tensor}); it is one of {', '.join(_CORRID_TYPES)}",
            *where,
            "data_type",
            says=f"unexpected data type for control {_CORRID} for {model.config.name}. Allowed data types are "
            "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            hint="TYPE_UINT64",
        )


def _strategy(model: Model) -> Iterator[Finding]:
    batching = model.config.sequence_batching
    if batching.HasField("oldest") and model.written.sequence_batching.oldest.preferred_batch_size:
        sizes = list(batching.oldest.preferred_batch_size)
        yield from preferred(model, (_FIELD, "oldest"), sizes, "sequence batching preferred batch size")
    if not batching.HasField("direct"):
        return
    share = batching.direct.minimum_slot_utilization
    if share < 0 or share > 1:  # a NaN passes, as it does in the server
        yield model.find(
            UTILIZATION,
            f"minimum_slot_utilization {share:g} is not between 0 and 1",
            _FIELD,
            "direct",
            "minimum_slot_utilization",
            says=f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {model.config.name}",
        )
    if batching.direct.max_queue_delay_microseconds and not share:
        yield model.find(
            DELAY_UNUSED,
            "max_queue_delay_microseconds has no effect while minimum_slot_utilization is 0",
            _FIELD,
            "direct",
            "max_queue_delay_microseconds",
            hint="set minimum_slot_utilization, or take the delay out",
            fix=(f"-{_FIELD}.direct.max_queue_delay_microseconds",),
        )
