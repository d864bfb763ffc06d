"""`path=value` over the protobuf descriptors: any field set, added to or cleared by its name. Layer: pbtxt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tooling.errors import Problem, UsageError
from tooling.pbtxt.hints import unknown_field_hint
from tooling.pbtxt.message import fill
from tooling.pbtxt.parser import parse
from tooling.pbtxt.printer import escape
from tooling.pbtxt.scalars import unescape
from tooling.pbtxt.schema import INTEGER_RANGES, Descriptor, Field, Message, enum_name, fields_of, new_message
from tooling.units import parse_duration_us

_STEP = re.compile(
    r"""(?P<name>[A-Za-z_]\w*)|\[(?:(?P<index>[0-9]{1,20})|(?P<word>[^\]\["']+)"""
    r"""|(?P<key>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))\]"""
)
_SYNTAX = (
    "path=value, path+=value or -path, with a path such as `input[0].dims`, `input[ids].dims` or `parameters[key]`"
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A field name and what selects one of its values: an index, a key or name, or nothing."""

    name: str
    selector: int | str | None
    text: str


@dataclass(frozen=True, slots=True)
class _Assignment:
    steps: tuple[_Step, ...]
    operator: str
    value: str


def apply(config: Message, assignments: Iterable[str]) -> Message:
    """A copy of the message with every assignment made, in order.

    `path=value` sets, `path+=value` appends to a list or adds to a map, `-path` clears. An element of a list is found
    by its index or its name, and comes into being behind the last one. A value is written as in a config: `8`, `true`,
    `KIND_CPU`, `[1, 2]`, `{ count: 2 }`; a string may stand without quotes, an enum value without its prefix, a time
    with its unit, and a plain value for a parameter's text. Raises UsageError with the problems of all assignments.
    """
    result = type(config)()
    result.CopyFrom(config)
    problems = []
    for text in assignments:
        try:
            _assign(result, _parse(text))
        except UsageError as error:
            problems += [
                Problem(problem.what, where=text, got=problem.got, expected=problem.expected, hint=problem.hint)
                for problem in error.problems
            ]
    if problems:
        raise UsageError(problems=problems)
    return result


def _parse(text: str) -> _Assignment:
    if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError("the text is no UTF-8")
    clears = text.startswith("-")
    offset = int(clears)
    steps: list[_Step] = []
    while found := _STEP.match(text, offset):
        name, index, word, key = found.group("name", "index", "word", "key")
        if name is not None:
            steps.append(_Step(name, None, found[0]))
        elif steps and steps[-1].selector is None:
            quoted = unescape(key.encode()).decode("utf-8", "replace") if key is not None else word
            selector = int(index) if index is not None else quoted
            steps[-1] = _Step(steps[-1].name, selector, steps[-1].text + found[0])
        else:
            break
        offset = found.end()
        if text[offset : offset + 1] == "." and not text.startswith(".[", offset):
            offset += 1
        elif text[offset : offset + 1] != "[":
            break
    rest = text[offset:]
    operator = "-" if clears and not rest else next((sign for sign in ("+=", "=") if rest.startswith(sign)), "")
    if not steps or not operator or clears != (operator == "-") or text[offset - 1] == ".":
        raise UsageError("not an assignment", got=f"`{text}`", expected=_SYNTAX)
    return _Assignment(tuple(steps), operator, rest[len(operator) :].strip())


def _assign(message: Message, assignment: _Assignment) -> None:
    root = message.DESCRIPTOR
    for step in assignment.steps[:-1]:
        field = _field(message.DESCRIPTOR, step.name, root)
        message = _descend(message, field, step, clears=assignment.operator == "-")
    step = assignment.steps[-1]
    field = _field(message.DESCRIPTOR, step.name, root)
    if step.selector is not None:
        _assign_one(message, field, step, assignment)
    elif assignment.operator == "-":
        message.ClearField(field.name)
    else:
        if assignment.operator == "+=" and not field.repeated:
            raise UsageError(f"`{field.name}` holds one value", got="+=", expected="=")
        part = _read(message, field, assignment.value)
        if assignment.operator == "=":
            message.ClearField(field.name)
        message.MergeFrom(part)


def _assign_one(message: Message, field: Field, step: _Step, assignment: _Assignment) -> None:
    """Set, or take out, one element of a list or one key of a map."""
    clears = assignment.operator == "-"
    target, selector = getattr(message, field.name), _selector(message, field, step, clears=clears)
    exists = selector in target if field.is_map else True
    if clears:
        if not exists:
            raise _no_such_key(field, target, step)
        del target[selector]
        return
    if assignment.operator == "+=":
        raise UsageError(f"`{step.text}` is one value", got="+=", expected=f"= here, or += on `{field.name}`")
    if field.is_map:
        value = _map_value(field, assignment.value)
    else:
        values = getattr(_read(message, field, assignment.value), field.name)
        if len(values) != 1:
            raise UsageError(f"`{step.text}` is one value", got=f"{len(values)} values", expected="one value")
        value = values[0]
        if selector == len(target):
            target.append(value)
            return
    if hasattr(value, "DESCRIPTOR"):
        target[selector].CopyFrom(value)
    else:
        target[selector] = value


def _map_value(field: Field, text: str) -> Any:
    """The value of a map's key; a plain one is the text of a parameter."""
    inner = _map_fields(field)["value"]
    owner = new_message(field.message)
    if inner.message is None or inner.message.name != "ModelParameter" or text[:1] in ("{", "<"):
        return _read(owner, inner, text).value
    owner.value.CopyFrom(_read(owner.value, fields_of(inner.message)["string_value"], text))
    return owner.value


def _field(owner: Descriptor, name: str, root: Descriptor) -> Field:
    known = fields_of(owner)
    if name not in known:
        raise UsageError(
            f"`{owner.name}` has no field `{name}`",
            hint=unknown_field_hint(name, owner, root) or f"its fields: {', '.join(known)}",
        )
    return known[name]


def _descend(message: Message, field: Field, step: _Step, *, clears: bool) -> Message:
    """The message that a step leads to; a key or a next element comes into being unless something is to be cleared."""
    inner = _map_fields(field)["value"] if field.is_map else field
    if inner.message is None:
        raise UsageError(f"`{step.text}` is a value of type {inner.kind}", expected="the end of the path")
    target = getattr(message, field.name)
    if not field.repeated:
        if step.selector is not None:
            raise UsageError(f"`{field.name}` is no list", got=f"`{step.text}`", expected=f"`{field.name}`")
        return target
    if step.selector is None:
        example = f'{field.name}["key"]' if field.is_map else f"{field.name}[0]"
        raise UsageError(f"`{field.name}` holds several values", expected=f"one of them, such as `{example}`")
    selector = _selector(message, field, step, clears=clears)
    if field.is_map and clears and selector not in target:
        raise _no_such_key(field, target, step)
    return target.add() if not field.is_map and selector == len(target) else target[selector]


def _selector(message: Message, field: Field, step: _Step, *, clears: bool) -> int | str:
    """The index or key of a step, of the type the field wants."""
    selector = step.selector
    assert selector is not None  # callers look first
    if not field.repeated:
        raise UsageError(f"`{field.name}` is no list", got=f"`{step.text}`", expected=f"`{field.name}`")
    if not field.is_map:
        return _index(getattr(message, field.name), field, step, clears=clears)
    if _map_fields(field)["key"].kind == "string":
        return str(selector)
    low, high = INTEGER_RANGES[_map_fields(field)["key"].kind]
    if not re.fullmatch("[0-9]{1,20}", str(selector)) or not low <= int(selector) <= high:
        raise UsageError(f"the keys of `{field.name}` are numbers", got=f"`{step.text}`", expected=f"{low} to {high}")
    return int(selector)


def _index(elements: Any, field: Field, step: _Step, *, clears: bool) -> int:
    """Where in a list a step leads: by its index, which may be the next free one, or by the name of an element."""
    count = len(elements)
    last = count - 1 if clears else count
    if isinstance(step.selector, int):
        if step.selector <= last:
            return step.selector
        expected = f"an index from 0 to {last}" if last >= 0 else "a list with elements"
    else:
        names = [element.name for element in elements if field.message and "name" in fields_of(field.message)]
        if step.selector in names:
            return names.index(step.selector)
        known = ", ".join(f"`{name}`" for name in names)
        expected = f"one of {known}, or an index" if known else "an index"
    raise UsageError(
        f"`{field.name}` has no such element",
        got=f"`{step.text}`",
        expected=expected,
        hint=f"append with `{field.name}+=…`",
    )


def _map_fields(field: Field) -> Any:
    return fields_of(field.message)


def _no_such_key(field: Field, target: Any, step: _Step) -> UsageError:
    known = ", ".join(f"`{key}`" for key in sorted(target)) or "none"
    return UsageError(f"`{field.name}` has no such key", got=f"`{step.text}`", expected=f"one of its keys: {known}")


def _read(owner: Message, field: Field, value: str) -> Message:
    """A new message of the owner's type in which only `field` is set, to what `value` spells."""
    part = type(owner)()
    text = _spelled(field, value)
    document = parse(f"{field.name}: {text}".encode(), owner.DESCRIPTOR)
    faults = document.faults
    if not faults and [entry.field.name for entry in document.root.entries] == [field.name]:
        fill(part, document.root)
        return part
    raise UsageError(
        problems=[
            Problem(fault.message.rstrip("."), got=f"`{value}`", expected=_expected(field), hint=fault.hint)
            for fault in faults
        ]
        or [Problem("more than one value", got=f"`{value}`", expected=_expected(field))]
    )


def _spelled(field: Field, value: str) -> str:
    """A value as a config has it: strings in quotes, whole names of enum values, times in microseconds."""
    if field.kind == "string" and value[:1] not in ('"', "'") and not (field.repeated and value[:1] == "["):
        return f'"{escape(value)}"'
    if field.kind == "enum":
        return enum_name(field, value) or value
    if field.name.endswith("_microseconds") and value[-1:].isalpha():
        return str(parse_duration_us(value))
    return value


def _expected(field: Field) -> str:
    """What a value of the field looks like."""
    if field.kind in INTEGER_RANGES:
        low, high = INTEGER_RANGES[field.kind]
        one = f"a whole number from {low} to {high}"
    elif field.kind == "enum":
        one = f"one of {', '.join(field.enum_numbers)}"
    elif field.kind == "message":
        one = "a message in braces: `{ … }`"
    else:
        one = {"bool": "true or false", "string": "a string"}.get(field.kind, "a number")
    return f"{one}, or a list `[…, …]` of them" if field.repeated else one
