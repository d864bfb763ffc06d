"""A config file as text: its tree, its message, where a field stands, what is silenced. Layer: check."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from tooling.check.finding import Place
from tooling.config.proto import ModelConfig, pb
from tooling.pbtxt.cursor import LIMIT
from tooling.pbtxt.faults import position
from tooling.pbtxt.message import fill
from tooling.pbtxt.parser import Document, parse
from tooling.pbtxt.tree import Body, Entry, Value

LARGEST: Final = 2**18
"""Bytes of a config that is looked at; a person's has some kilobytes."""

# What may hold a placeholder only by chance comes first: comments.
_MARKS: Final = re.compile(
    rb"(?P<comment>#[^\n]*)"
    rb"|(?P<string>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    rb"|(?P<placeholder>\$\{[^}\n]*\}|\{\{.*?\}\}|\{%.*?%\})"
)
_IN_STRING: Final = re.compile(rb"\$\{[^}\"'\n]*\}|\{\{[^}\n]*\}\}")
_IGNORE: Final = re.compile(rb"#\s*tritune:\s*ignore\b(?:\s*\[([^\]\n]*)\])?([^\n]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A part of a template that nobody filled in; inside a string it does not hurt the parser."""

    text: str
    place: Place
    in_string: bool


@dataclass(frozen=True, slots=True)
class Ignore:
    """`# tritune: ignore[RULE] reason`: silences these rules on `lines` of its file. Without rules it does nothing."""

    rules: tuple[str, ...]
    reason: str
    place: Place
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConfigText:
    """A config file that was read. `name` is its path as messages show it."""

    name: str
    path: Path
    source: bytes
    document: Document

    @classmethod
    def of(cls, name: str, path: Path, source: bytes) -> ConfigText:
        return cls(name, path, source, parse(source, pb().ModelConfig.DESCRIPTOR))

    def message(self) -> ModelConfig:
        """The message the text stands for; where the text has faults, as much of it as could be read."""
        config = pb().ModelConfig()
        fill(config, self.document.root)
        return config

    def place(self, path: Sequence[str | int]) -> Place:
        """Where a field stands: names, indices and map keys from the root; of what is not there the nearest parent."""
        offset = _offset(self.document.root, path)
        if offset is None:
            return Place(self.name)
        return self.at(offset)

    def at(self, offset: int) -> Place:
        return Place(self.name, *position(self.source, offset))

    def map_entries(self, *path: str) -> list[tuple[str, str]]:
        """Keys and scalar values of a map as they are written, repeated keys too; `path` holds names and indices."""
        return [(str(_half(value, "key")), str(_half(value, "value"))) for value in _values(self.document.root, path)]

    def placeholders(self) -> list[Placeholder]:
        """The first hundred `${…}`, `{{ … }}` and `{% … %}` outside comments."""
        return list(islice(self._placeholders(), LIMIT))

    def _placeholders(self) -> Iterator[Placeholder]:
        for mark in _MARKS.finditer(self.source):
            if mark.lastgroup == "placeholder":
                yield Placeholder(mark[0].decode(errors="replace"), self.at(mark.start()), False)
            elif mark.lastgroup == "string":
                for inner in _IN_STRING.finditer(mark[0]):
                    yield Placeholder(inner[0].decode(errors="replace"), self.at(mark.start() + inner.start()), True)

    def ignores(self) -> list[Ignore]:
        """Every comment that silences rules: on its own line, or on the next line with a field when it stands alone.

        Of a field that begins on that line, all lines belong to it.
        """
        marks = [mark for mark in _MARKS.finditer(self.source) if mark.lastgroup == "comment"]
        found = [(mark.start() + text.start(), text) for mark in marks if (text := _IGNORE.search(mark[0]))]
        if not found:
            return []
        lines = _Lines(self.source)
        ends: dict[int, int] = {}
        for start, end in _spans(self.document.root):
            first = lines.number(start)
            ends[first] = max(ends.get(first, first), lines.number(end))
        return [self._ignore(start, text, lines, ends) for start, text in found]

    def _ignore(self, start: int, text: re.Match[bytes], lines: _Lines, ends: Mapping[int, int]) -> Ignore:
        line = lines.number(start)
        first = lines.next_field(line) if lines.texts[line - 1].startswith(b"#") else line
        covered = (line, *range(first, ends.get(first, first) + 1))
        rules = tuple(word.strip() for word in (text[1] or b"").decode(errors="replace").split(",") if word.strip())
        return Ignore(rules, text[2].decode(errors="replace").strip(), self.at(start), covered)


class _Lines:
    """The lines of a text, and on which of them an offset stands."""

    def __init__(self, source: bytes) -> None:
        self.texts = [line.strip() for line in source.split(b"\n")]
        self._breaks = [at for at, byte in enumerate(source) if byte == ord("\n")]

    def number(self, offset: int) -> int:
        return bisect_left(self._breaks, offset) + 1

    def next_field(self, line: int) -> int:
        """The next line that holds more than a comment; the same line where none follows."""
        below = range(line, len(self.texts))
        return next((at + 1 for at in below if self.texts[at] and not self.texts[at].startswith(b"#")), line)


def _spans(body: Body) -> Iterator[tuple[int, int]]:
    """Start and end of every field, at any depth."""
    for entry in body.entries:
        yield entry.start, entry.end
        for value in entry.values:
            if isinstance(value.value, Body):
                yield value.start, value.end
                yield from _spans(value.value)


def _offset(body: Body, path: Sequence[str | int]) -> int | None:
    """The offset of the deepest part of `path` that is written, None when not even its first part is."""
    entries = body.of(str(path[0])) if path else []
    if not entries:
        return None
    rest = path[1:]
    entry = entries[-1]
    if not entry.field.repeated:
        return _deeper(entry.values[-1] if entry.values else None, rest, entry.start)
    if not rest:
        return entries[0].start
    owner, value = _slot(entries, rest[0])
    if owner is None or value is None:
        return entries[0].start
    inner = ["value", *rest[1:]] if owner.field.is_map else rest[1:]
    return _deeper(value, inner, owner.start if owner.list_start < 0 else value.start)


def _deeper(value: Value | None, rest: Sequence[str | int], start: int) -> int:
    found = _offset(value.value, rest) if value is not None and isinstance(value.value, Body) else None
    return start if found is None else found


def _slot(entries: Sequence[Entry], wanted: str | int) -> tuple[Entry | None, Value | None]:
    """One value of a repeated field, by its index or its key (of a repeated key the last one), with its entry."""
    slots = ((entry, value) for entry in entries for value in entry.values)
    if entries[0].field.is_map:
        chosen = [slot for slot in slots if _half(slot[1], "key") == wanted]
        return chosen[-1] if chosen else (None, None)
    return next(islice(slots, wanted, None), (None, None)) if isinstance(wanted, int) else (None, None)


def _values(body: Body, path: Sequence[str]) -> list[Value]:
    values: list[Value] = [Value(0, 0, body)]
    for name in path:
        if name.isdecimal():
            values = values[int(name) : int(name) + 1]
            continue
        bodies = [value.value for value in values if isinstance(value.value, Body)]
        values = [value for inner in bodies for entry in inner.of(name) for value in entry.values]
    return values


def _half(value: Value, name: str) -> str | int | None:
    """The key or the scalar value of a map entry; None when it is not written."""
    assert isinstance(value.value, Body)
    entries = value.value.of(name)
    half = entries[-1].values[-1].value if entries and entries[-1].values else None
    return half if isinstance(half, str | int) else None
