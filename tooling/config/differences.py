"""Where two configurations differ, field by field. Layer: config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tooling.config.proto import ModelConfig
from tooling.pbtxt.printer import element_lines, escape, is_present, scalar
from tooling.pbtxt.schema import Field, Message, fields_of

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A field with two values as config text; None for a message, list or map entry that one side has not.

    `path` holds names, indices and map keys from the root, `label` is how a person writes it: `input[ids].dims`.
    """

    path: Path
    label: str
    left: str | None
    right: str | None


def differences(left: ModelConfig, right: ModelConfig) -> Iterator[Difference]:
    """Every field of two configs that differs, in the order of the schema.

    Elements of a list that all have a name are matched by it, others by their place; an index in `path` is the left
    config's, or counts on behind it.
    """
    yield from _messages(left, right, (), "")


def _messages(left: Message, right: Message, path: Path, label: str) -> Iterator[Difference]:
    for field in fields_of(left.DESCRIPTOR).values():
        here, named = (*path, field.name), f"{label}.{field.name}" if label else field.name
        if field.is_map:
            yield from _maps(left, right, field, here, named)
        elif field.repeated and field.message is not None:
            yield from _lists(left, right, field, here, named)
        elif field.message is not None:
            mine = getattr(left, field.name) if is_present(left, field) else None
            other = getattr(right, field.name) if is_present(right, field) else None
            yield from _pair(mine, other, field, here, named)
        elif getattr(left, field.name) != getattr(right, field.name):
            yield Difference(here, named, _plain(left, field), _plain(right, field))


def _pair(left: Any, right: Any, field: Field, path: Path, label: str) -> Iterator[Difference]:
    """Two messages or two scalars of a map, either of which may be absent."""
    if left is not None and right is not None and field.message is not None:
        yield from _messages(left, right, path, label)
    elif left != right:
        yield Difference(path, label, _value(left, field), _value(right, field))


def _maps(left: Message, right: Message, field: Field, path: Path, label: str) -> Iterator[Difference]:
    mine, other = getattr(left, field.name), getattr(right, field.name)
    inner = fields_of(field.message)["value"]
    for key in sorted({*mine, *other}):
        yield from _pair(mine.get(key), other.get(key), inner, (*path, key), f"{label}[{escape(str(key))}]")


def _lists(left: Message, right: Message, field: Field, path: Path, label: str) -> Iterator[Difference]:
    mine, other = getattr(left, field.name), getattr(right, field.name)
    names, others = _keys(mine, field), _keys(other, field)
    for index, key in enumerate([*names, *(key for key in others if key not in names)]):
        values = (mine[names[key]] if key in names else None, other[others[key]] if key in others else None)
        yield from _pair(*values, field, (*path, index), f"{label}[{key}]")


def _keys(values: Any, field: Field) -> dict[str, int]:
    """What tells the elements of a list apart, with their places: their names, else their places themselves."""
    if field.message is not None and "name" in fields_of(field.message):
        names = {value.name: index for index, value in enumerate(values) if value.name}
        if len(names) == len(values):
            return names
    return {str(index): index for index in range(len(values))}


def _plain(message: Message, field: Field) -> str:
    value = getattr(message, field.name)
    return f"[{', '.join(scalar(item, field) for item in value)}]" if field.repeated else scalar(value, field)


def _value(value: Any, field: Field) -> str | None:
    if value is None:
        return None
    lines = element_lines(value, field)
    return "{ }" if lines == ["{", "}"] else " ".join(line.strip() for line in lines)
