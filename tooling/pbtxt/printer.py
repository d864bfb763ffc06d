"""Protobuf message to config text, driven by the descriptors. Layer: pbtxt."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tooling.pbtxt.scalars import is_set, to_float32
from tooling.pbtxt.schema import Descriptor, Field, Message, fields_of, new_message

INDENT = "  "
# Control characters, and what an editor may not show or may change.
_ESCAPED = re.compile("[\\x00-\\x1f\\x7f-\\x9f\"'\\\\\u00a0\u2028\u2029\ufeff]")
_SHORT = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True, slots=True)
class Style:
    """What is left open by the descriptors: the order of fields, and which fields are written at their default."""

    order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Per message type (`ModelInput`) the fields to write first; the others follow in the order of the .proto file."""
    explicit: Collection[str] = ()
    """Fields (`ModelConfig.max_batch_size`) that are written although they hold their default."""

    def fields(self, descriptor: Descriptor) -> list[Field]:
        """The fields of a message type in the order they are written."""
        known = fields_of(descriptor)
        first = [known[name] for name in self.order.get(descriptor.name, ()) if name in known]
        return first + [field for field in known.values() if field not in first]

    def writes(self, message: Message, field: Field) -> bool:
        """Whether the field stands in the text of this message."""
        return is_present(message, field) or f"{message.DESCRIPTOR.name}.{field.name}" in self.explicit


PLAIN = Style()


def render(message: Message, style: Style = PLAIN) -> str:
    """The whole text of a message, one field per line, ending with a newline unless it is empty."""
    return "".join(f"{line}\n" for line in body_lines(message, style))


def body_lines(message: Message, style: Style = PLAIN) -> list[str]:
    """The lines of a message's fields, not indented."""
    return [line for field in style.fields(message.DESCRIPTOR) for line in field_lines(message, field, style)]


def field_lines(message: Message, field: Field, style: Style = PLAIN) -> list[str]:
    """The lines of one field, not indented; none when it is not set and not explicit."""
    if not style.writes(message, field):
        return []
    if field.message is not None:
        return [line for value in values_of(message, field) for line in value_lines(value, field, style)]
    value = getattr(message, field.name)
    if field.repeated:
        return [f"{field.name}: [{', '.join(scalar(item, field) for item in value)}]"]
    return [f"{field.name}: {scalar(value, field)}"]


def value_lines(value: Any, field: Field, style: Style = PLAIN) -> list[str]:
    """One value of a field with the field's name in front: `count: 2`, or a message as a block in braces."""
    if field.message is None:
        return [f"{field.name}: {scalar(value, field)}"]
    first, *rest = element_lines(value, field, style)
    return [f"{field.name} {first}", *rest]


def element_lines(value: Any, field: Field, style: Style = PLAIN) -> list[str]:
    """One value as it stands in a list, without a name: a scalar, or a message in braces."""
    if field.message is None:
        return [scalar(value, field)]
    return ["{", *(INDENT + line for line in body_lines(value, style)), "}"]


def values_of(message: Message, field: Field) -> list[Any]:
    """The values a field holds, one for a singular field that is set; a map as entry messages, sorted by key."""
    if not is_present(message, field):
        return []
    value = getattr(message, field.name)
    if field.is_map:
        make = type(new_message(field.message))
        return [make(key=key, value=value[key]) for key in sorted(value)]
    return list(value) if field.repeated else [value]


def is_present(message: Message, field: Field) -> bool:
    """Whether a field is set: has elements, was set (messages, oneof members), or differs from its default."""
    if field.repeated:
        return len(getattr(message, field.name)) > 0
    if message.DESCRIPTOR.GetOptions().map_entry:
        return True
    if field.tracked:
        return bool(message.HasField(field.name))
    return is_set(getattr(message, field.name))


def scalar(value: Any, field: Field) -> str:
    """One scalar in text: enums by name, strings in double quotes, floats as short as they read back."""
    if field.kind == "string":
        return f'"{escape(value)}"'
    if field.kind == "bool":
        return "true" if value else "false"
    if field.kind == "enum":
        return field.enum_names.get(value, str(value))
    if field.kind in ("float", "double"):
        return _number(value, single=field.kind == "float")
    return str(value)


def escape(text: str, quote: str = '"') -> str:
    """The inside of a string literal: quotes, backslashes and what cannot be seen escaped, all else as it is."""
    return _ESCAPED.sub(lambda found: _escaped(found[0], quote), text)


def _escaped(character: str, quote: str) -> str:
    if character in "'\"" and character != quote:
        return character
    short = _SHORT.get(character, "\\" + character if character in "'\"" else "")
    return short or "".join(f"\\{byte:03o}" for byte in character.encode())


def _number(value: float, *, single: bool) -> str:
    """The shortest decimal number that reads back as `value`."""
    if math.isnan(value) or math.isinf(value):
        return str(value)
    if not single:
        return repr(value)
    return next(
        (text for text in (f"{value:.{digits}g}" for digits in range(6, 9)) if to_float32(float(text)) == value),
        f"{value:.9g}",
    )
