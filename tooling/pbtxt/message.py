"""Config text to protobuf message: the tree, once it is free of faults, written into the message. Layer: pbtxt."""

from __future__ import annotations

from typing import Any

from tooling.errors import Problem, UsageError
from tooling.pbtxt.parser import Document, parse
from tooling.pbtxt.schema import Message, fields_of, new_message
from tooling.pbtxt.tree import Body


def load(source: bytes, template: Message, where: object) -> Message:
    """The message a text stands for; `template` is a message of its type (its content is not looked at).

    Raises UsageError with every fault of the text, each placed `WHERE:LINE:COLUMN`.
    """
    return message_of(parse(source, template.DESCRIPTOR), template, where)


def message_of(document: Document, template: Message, where: object) -> Message:
    """The message of a text that is parsed already. Raises UsageError as `load` does."""
    if document.faults:
        raise UsageError(
            problems=[
                Problem(what=fault.message, where=f"{where}:{fault.line}:{fault.column}", hint=fault.hint)
                for fault in document.faults
            ]
        )
    message = type(template)()
    fill(message, document.root)
    return message


def fill(message: Message, body: Body) -> None:
    """Write the fields of `body` into `message`; where a map key stands twice the last one wins."""
    for entry in body.entries:
        field, values = entry.field, entry.values
        if field.is_map:
            for value in values:
                _fill_map(getattr(message, field.name), value.value)
        elif field.message is not None:
            target = getattr(message, field.name)
            for value in values:
                part = target.add() if field.repeated else target
                part.SetInParent()
                fill(part, _body(value.value))
        elif field.repeated:
            getattr(message, field.name).extend([value.value for value in values])
        else:
            setattr(message, field.name, values[-1].value)


def _fill_map(target: Any, body: object) -> None:
    entry = new_message(_body(body).descriptor)
    fill(entry, _body(body))
    if fields_of(entry.DESCRIPTOR)["value"].message is not None:
        target[entry.key].CopyFrom(entry.value)
    else:
        target[entry.key] = entry.value


def _body(value: object) -> Body:
    assert isinstance(value, Body)  # a message field holds a body: the parser made it so
    return value
