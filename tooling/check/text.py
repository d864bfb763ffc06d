"""A config file as text: its tree, its message, where a field stands, what is silenced. Layer: check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tooling.check.finding import Place
from tooling.config.proto import ModelConfig, pb
from tooling.pbtxt.faults import position
from tooling.pbtxt.message import fill
from tooling.pbtxt.parser import Document, parse
from tooling.pbtxt.tree import Body, Value

LARGEST: Final = 2**20
"""Bytes of a config that is looked at; a person's has some kilobytes."""

# What may hold a placeholder only by chance comes first: comments.
_MARKS: Final = re.compile(
    rb"(?P<comment>#[^\n]*)"
    rb"|(?P<string>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    rb"|(?P<placeholder>\$\{[^}\n]*\}|\{\{.*?\}\}|\{%.*?%\})"
)
_IN_STRING: Final = re.compile(rb"\$\{[^}\"'\n]*\}|\{\{[^}\n]*\}\}")
_IGNORE: Final = re.compile(rb"#\s*tritune:\s*ignore\[([^\]\n]*)\]([^\n]*)")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A part of a template that nobody filled in; inside a string it does not hurt the parser."""

    text: str
    place: Place
    in_string: bool


@dataclass(frozen=True, slots=True)
class Ignore:
    """`# tritune: ignore[RULE] reason`: silences these rules on `lines` of its file."""

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
        """Every `${…}`, `{{ … }}` and `{% … %}` outside comments."""
        found = []
        for mark in _MARKS.finditer(self.source):
            if mark.lastgroup == "placeholder":
                found.append(Placeholder(mark[0].decode(errors="replace"), self.at(mark.start()), False))
            elif mark.lastgroup == "string":
                found += [
                    Placeholder(inner[0].decode(errors="replace"), self.at(mark.start() + inner.start()), True)
                    for inner in _IN_STRING.finditer(mark[0])
                ]
        return found

    def ignores(self) -> list[Ignore]:
        """Every comment that silences rules: those of its own line, or of the next line when it stands alone."""
        found = []
        for mark in _MARKS.finditer(self.source):
            comment = _IGNORE.match(mark[0]) if mark.lastgroup == "comment" else None
            if comment is None:
                continue
            place = self.at(mark.start())
            alone = not self.source[self.source.rfind(b"\n", 0, mark.start()) + 1 : mark.start()].strip()
            line = place.line or 1
            rules = tuple(word.strip() for word in comment[1].decode(errors="replace").split(",") if word.strip())
            lines = (line, line + 1) if alone else (line,)
            found.append(Ignore(rules, comment[2].decode(errors="replace").strip(), place, lines))
        return found


def _offset(body: Body, path: Sequence[str | int]) -> int | None:
    """The offset of the deepest part of `path` that is written, None when not even its first part is."""
    entries = body.of(str(path[0])) if path else []
    if not entries:
        return None
    rest = path[1:]
    slots = [(entry, value) for entry in entries for value in entry.values]
    entry = entries[-1]
    if not slots or not entry.field.repeated:
        inner = slots[-1][1] if slots else None
        found = _offset(inner.value, rest) if inner is not None and isinstance(inner.value, Body) else None
        return entry.start if found is None else found
    if not rest:
        return entries[0].start
    if entry.field.is_map:
        chosen = [slot for slot in slots if _half(slot[1], "key") == rest[0]][-1:]
    else:
        chosen = [slots[rest[0]]] if isinstance(rest[0], int) and rest[0] < len(slots) else []
    if not chosen:
        return entries[0].start
    owner, value = chosen[0]
    start = owner.start if owner.list_start < 0 else value.start
    if isinstance(value.value, Body):
        deeper = ["value", *rest[1:]] if entry.field.is_map else rest[1:]
        found = _offset(value.value, deeper)
        return start if found is None else found
    return start


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
