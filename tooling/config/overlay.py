"""Settings under the schema's own names, as YAML gives them, merged into a ModelConfig. Layer: config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tooling.config.proto import ModelConfig
from tooling.errors import Problem, UsageError, suggest
from tooling.pbtxt.hints import unknown_field_hint
from tooling.pbtxt.schema import INTEGER_RANGES, Field, Message, enum_name, fields_of
from tooling.units import parse_duration_us

_BY_NAME: Final = ("input", "output")  # lists whose elements are told apart by their name: settings join what is there


class _Wrong(Exception):
    """A value that the field cannot hold."""

    def __init__(self, expected: str, hint: str | None = None) -> None:
        super().__init__(expected)
        self.expected, self.hint = expected, hint


def merge(config: ModelConfig, settings: Mapping[str, Any], where: str) -> None:
    """Put `settings` over the fields of `config`.

    Messages and maps are merged, lists replaced; elements of `input` and `output` are found by their `name`; null
    clears a field. Durations may carry a unit (`max_queue_delay_microseconds: 2ms`), enum values leave their prefix
    out (`kind: GPU`), and a plain value stands for a parameter's text. Raises UsageError with every fault.
    """
    problems = _Merge(config, where).run(settings)
    if problems:
        raise UsageError(problems=problems)


class _Merge:
    """One merge: where the settings come from, and the faults found so far."""

    def __init__(self, config: ModelConfig, where: str) -> None:
        self._config, self._where = config, where
        self._problems: list[Problem] = []

    def run(self, settings: Mapping[Any, Any]) -> list[Problem]:
        self._message(self._config, settings, "")
        return self._problems

    def _fault(
        self, what: str, place: str, got: Any = None, expected: str | None = None, hint: str | None = None
    ) -> None:
        self._problems.append(
            Problem(what, f"{self._where}: {place}", None if got is None else f"`{got}`", expected, hint)
        )

    def _message(self, message: Message, settings: Mapping[Any, Any], path: str) -> None:
        fields = fields_of(message.DESCRIPTOR)
        chosen: dict[str, str] = {}
        for name, value in settings.items():
            place = f"{path}{name}"
            field = fields.get(name)
            if field is None:
                hint = unknown_field_hint(str(name), message.DESCRIPTOR, self._config.DESCRIPTOR)
                hint = hint or f"its fields: {', '.join(fields)}"
                self._fault(f"`{message.DESCRIPTOR.name}` has no field `{name}`", place, hint=hint)
            elif field.oneof and value is not None and chosen.setdefault(field.oneof, name) != name:
                self._fault(f"`{chosen[field.oneof]}` and `{name}` exclude each other", place)
            else:
                try:
                    self._field(message, field, value, place)
                except _Wrong as wrong:
                    self._fault("not a value of this field", place, value, wrong.expected, wrong.hint)

    def _field(self, message: Message, field: Field, value: Any, place: str) -> None:
        target = getattr(message, field.name)
        if value is None:
            message.ClearField(field.name)
        elif field.is_map:
            self._map(target, field, value, place)
        elif field.message is None:
            if field.repeated:
                target[:] = [_scalar(field, item) for item in (value if isinstance(value, list) else [value])]
            else:
                setattr(message, field.name, _scalar(field, value))
        elif field.repeated:
            self._messages(message, field, value, place)
        else:
            target.SetInParent()
            self._message(target, _mapping(value), f"{place}.")

    def _messages(self, message: Message, field: Field, value: Any, place: str) -> None:
        """A list of messages; of inputs and outputs those that are there are changed, others replaced as a whole."""
        if not isinstance(value, list):
            raise _Wrong("a list (lines that start with `-`)")
        target = getattr(message, field.name)
        by_name = message is self._config and field.name in _BY_NAME
        if not by_name:
            del target[:]
        for index, item in enumerate(value):
            settings = _mapping(item)
            present = [element for element in target if by_name and element.name == settings.get("name")]
            self._message(present[0] if present else target.add(), settings, f"{place}[{index}].")

    def _map(self, target: Any, field: Field, value: Any, place: str) -> None:
        inner = fields_of(field.message)
        for raw, item in _mapping(value).items():
            key = _text(raw) if inner["key"].kind == "string" else _scalar(inner["key"], raw)
            if item is None:
                target.pop(key, None)
            elif inner["value"].message is None:
                target[key] = _text(item)
            elif inner["value"].message.name == "ModelParameter" and not isinstance(item, dict):
                target[key].string_value = _text(item)
            else:
                target[key].SetInParent()
                self._message(target[key], _mapping(item), f"{place}[{raw}].")


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise _Wrong("a mapping (`name: value` lines)")
    return value


def _text(value: Any) -> str:
    """The text of a parameter: backends read 1 and 0 as yes and no."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int | float | str):
        return str(value)
    raise _Wrong("a string, a number, or true or false")


def _scalar(field: Field, value: Any) -> Any:
    """The value as the field holds it. Raises _Wrong."""
    if field.kind == "enum":
        return _enum(field, value)
    if field.kind in INTEGER_RANGES:
        return _integer(field, value)
    kinds, expected = {
        "bool": ((bool,), "true or false"),
        "string": ((str,), "a string"),
    }.get(field.kind, ((int, float), "a number"))
    if type(value) not in kinds:
        raise _Wrong(expected)
    return value


def _integer(field: Field, value: Any) -> int:
    if field.name.endswith("_microseconds") and isinstance(value, str):
        try:
            value = parse_duration_us(value)
        except UsageError as error:
            raise _Wrong(error.problems[0].expected or "a duration like 2ms") from error
    low, high = INTEGER_RANGES[field.kind]
    if type(value) is not int or not low <= value <= high:
        raise _Wrong(f"a whole number from {low} to {high}")
    return value


def _enum(field: Field, value: Any) -> int:
    names = field.enum_numbers
    meant = enum_name(field, value) if isinstance(value, str) else None
    if meant is None:
        raise _Wrong(", ".join(names), suggest(str(value).upper(), names))
    return names[meant]
