"""Laws of the text engine, tried on generated messages over the whole schema and on texts in every legal spelling."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tooling.config.proto import pb
from tooling.pbtxt.editor import edit
from tooling.pbtxt.message import load
from tooling.pbtxt.parser import parse
from tooling.pbtxt.printer import render, values_of
from tooling.pbtxt.schema import Field, fields_of, new_message
from tooling.pbtxt.tree import Body, Entry

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
SCALARS = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float": st.floats(width=32, allow_nan=False) | st.just(math.nan),
    "double": st.floats(allow_nan=False) | st.just(math.nan),
    "bool": st.booleans(),
    "string": TEXTS,
}


@st.composite
def messages(draw: st.DrawFn, kind: Any = None) -> Any:
    """A message with up to five fields set, from all fields of its type, nested ones alike."""
    message = (kind or pb().ModelConfig)()
    fields = list(fields_of(message.DESCRIPTOR).values())
    for field in draw(st.lists(st.sampled_from(fields), max_size=5, unique=True)) if fields else ():
        assign(draw, message, field)
    return message


def assign(draw: st.DrawFn, message: Any, field: Field) -> None:
    """Give a field a drawn value."""
    count = draw(st.integers(0, 3)) if field.repeated else 1
    drawn = [draw(values(field)) for _ in range(count)]
    message.ClearField(field.name)
    target = getattr(message, field.name)
    if field.is_map:
        for entry in drawn:
            if fields_of(field.message)["value"].message is not None:
                target[entry.key].CopyFrom(entry.value)
            else:
                target[entry.key] = entry.value
    elif field.repeated:
        target.extend(drawn)
    elif field.message is not None:
        target.SetInParent()
        target.CopyFrom(drawn[0])
    else:
        setattr(message, field.name, drawn[0])


@cache
def values(field: Field) -> st.SearchStrategy[Any]:
    if field.message is not None:
        return messages(type(new_message(field.message)))
    if field.kind == "enum":
        return st.one_of(st.sampled_from(list(field.enum_names)), st.integers(-(2**31), 2**31 - 1))
    return SCALARS[field.kind]


def content(message: Any) -> bytes:
    """A message as comparable bytes: a NaN equals itself."""
    return message.SerializeToString(deterministic=True)


class Scribe:
    """Writes a message in any of the spellings Triton takes, chosen by a seeded generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.newline = self.random.choice(["\n", "\n", "\r\n"])
        self.comments = 0

    def text(self, message: Any) -> bytes:
        head = self.random.choice(["", f"# head{self.newline}", self.newline])
        body = self.body(message, self.random.random() < 0.3)
        return (head + body).encode() + self.random.choice([b"", b"", b"# end \xff"])

    def body(self, message: Any, one_line: bool) -> str:
        entries = [
            entry for field in fields_of(message.DESCRIPTOR).values() for entry in self.field(message, field, one_line)
        ]
        self.random.shuffle(entries)
        separators = ["", "", "", ",", ";"]
        if one_line:
            return "".join(f"{entry}{self.random.choice(separators)} " for entry in entries)
        return "".join(
            f"{self.random.choice(['', '  ', chr(9)])}{entry}{self.random.choice(separators)}{self.end_of_line()}"
            for entry in entries
        )

    def end_of_line(self) -> str:
        self.comments += 1
        extra = self.random.choice(
            ["", "", f" # c{self.comments}", f"{self.newline}  # above {self.comments}", self.newline]
        )
        return extra + self.newline

    def field(self, message: Any, field: Field, one_line: bool) -> list[str]:
        """The entries of a field; elements of a repeated one keep their order because they are glued to each other."""
        parts = [self.value(value, field, one_line) for value in values_of(message, field)]
        colon = ":" if field.message is None or self.random.random() < 0.5 else ""
        gap = self.random.choice(["", " ", "  "])
        if not parts or not field.repeated:
            return [f"{field.name}{colon}{gap}{part}" for part in parts]
        form = self.random.random()
        if form < 0.4:
            return [" ".join(f"{field.name}{colon}{gap}{part}" for part in parts)]
        if one_line or form < 0.7:
            return [f"{field.name}{colon}{gap}[{', '.join(parts)}]"]
        lines = f",{self.newline}    ".join(parts)
        return [f"{field.name}{colon} [{self.newline}    {lines}{self.end_of_line()}]"]

    def value(self, value: Any, field: Field, one_line: bool) -> str:
        if field.message is not None:
            start, end = self.random.choice(["{}", "<>"])
            inner = one_line or self.random.random() < 0.4
            return f"{start}{' ' if inner else self.newline}{self.body(value, inner)}{end}"
        if field.kind == "bool":
            return self.random.choice(
                ["true", "True", "t", "1", "0x1"] if value else ["false", "False", "f", "0", "00"]
            )
        if field.kind == "enum":
            return self.random.choice([str(value), field.enum_names.get(value, str(value))])
        if field.kind == "string":
            return self.string(value)
        if field.kind in ("float", "double"):
            return (
                str(value) + self.random.choice(["", "f"])
                if value == value and abs(value) != float("inf")
                else str(value)
            )
        sign, digits = ("- " if self.random.random() < 0.2 else "-", -value) if value < 0 else ("", value)
        return sign + self.random.choice([str(digits), hex(digits), f"0{digits:o}" if digits else "0"])

    def string(self, value: str) -> str:
        raw = value.encode()
        cut = self.random.randint(0, len(raw))
        return self.random.choice([" ", "", f" # in{self.newline} "]).join(
            self.literal(part) for part in ([raw[:cut], raw[cut:]] if self.random.random() < 0.3 else [raw])
        )

    def literal(self, raw: bytes) -> str:
        quote = self.random.choice("\"'")
        forms = (lambda b: f"\\{b:03o}", lambda b: f"\\x{b:02x}")
        return (
            quote
            + "".join(
                chr(byte) if 32 <= byte < 127 and chr(byte) not in "\"'\\" else self.random.choice(forms)(byte)
                for byte in raw
            )
            + quote
        )


@given(messages())
@settings(max_examples=100, deadline=None)
def test_printed_text_reads_back_as_the_message(message: Any) -> None:
    text = render(message).encode()
    assert content(load(text, message, "text")) == content(message)


@given(messages(), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_every_spelling_reads_as_the_same_message(message: Any, seed: int) -> None:
    text = Scribe(seed).text(message)
    assert content(load(text, message, "text")) == content(message)


@given(messages(), messages(), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_any_text_can_be_edited_into_any_message(old: Any, new: Any, seed: int) -> None:
    text = Scribe(seed).text(old)
    assert content(load(edit(text, new, "text"), new, "text")) == content(new)
    assert edit(text, old, "text") == text


@given(messages(), st.integers(0, 2**32), st.data())
@settings(max_examples=150, deadline=None)
def test_an_edit_touches_only_what_stands_for_the_changed_field(old: Any, seed: int, data: st.DataObject) -> None:
    text = Scribe(seed).text(old)
    new = type(old)()
    new.CopyFrom(old)
    body, part, path = parse(text, old.DESCRIPTOR).root, new, []
    while True:
        entry = data.draw(st.sampled_from([None, *(e for e in body.entries if e.field.message and not e.field.is_map)]))
        fields = list(fields_of(part.DESCRIPTOR).values())
        if entry is None or not entry.values:
            break
        index = data.draw(st.integers(0, len(entry.values) - 1))
        offset = sum(
            len(other.values) for other in body.entries[: body.entries.index(entry)] if other.field is entry.field
        )
        path.append((entry.field.name, offset + index))
        part = getattr(part, entry.field.name)
        part = part[offset + index] if entry.field.repeated else part
        inner = entry.values[index].value
        assert isinstance(inner, Body)
        body = inner
    if not fields:
        return
    field = data.draw(st.sampled_from(fields))
    data.draw(st.composite(lambda draw: assign(draw, part, field))())
    changed = {field.name, *(other.name for other in fields if other.oneof and other.oneof == field.oneof)}
    result = edit(text, new, "text")
    assert content(load(result, new, "text")) == content(new)
    before, after = (entries_at(source, path, changed, old) for source in (text, result))
    cuts = [(False, True) if len(before) >= len(after) else (False,) for _ in before]
    assert outside(result, after, [False] * len(after)) in {outside(text, before, cut) for cut in product(*cuts)}


def entries_at(text: bytes, path: list[tuple[str, int]], names: set[str], message: Any) -> list[Entry]:
    """The entries of the named fields in the message at `path`."""
    body = parse(text, message.DESCRIPTOR).root
    for name, index in path:
        inner = [value for entry in body.of(name) for value in entry.values][index].value
        assert isinstance(inner, Body)
        body = inner
    return [entry for entry in body.entries if entry.field.name in names]


def outside(text: bytes, entries: list[Entry], cuts: Sequence[bool]) -> bytes:
    """The text without these entries, without the comments behind those that `cuts` names, and without blanks."""
    parts, offset = [], 0
    for entry, cut in zip(entries, cuts, strict=True):
        parts.append(text[offset : entry.start])
        offset = entry.stop
        if cut and (comment := re.compile(rb"[ \t]*#[^\n]*").match(text, offset)):
            offset = comment.end()
    return re.sub(rb"\s+", b"", b"".join([*parts, text[offset:]]))
