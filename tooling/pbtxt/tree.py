"""The syntax tree of a config text: every node is a span of the text, so nothing written is lost. Layer: pbtxt."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tooling.pbtxt.schema import Descriptor, Field

Scalar = int | float | bool | str


@dataclass(slots=True)
class Body:
    """The fields between two delimiters, which `start` and `end` include; `start` is -1 for the whole text."""

    descriptor: Descriptor
    start: int
    end: int = -1
    entries: list[Entry] = dataclasses.field(default_factory=list)

    def of(self, name: str) -> list[Entry]:
        """The entries that set the field `name`, in order."""
        return [entry for entry in self.entries if entry.field.name == name]


@dataclass(slots=True)
class Value:
    """One value: a scalar (for an enum its number) or a message body."""

    start: int
    end: int
    value: Scalar | Body
    comma: int = -1
    """Offset of the comma behind it inside a list; -1 without one."""


@dataclass(slots=True)
class Entry:
    """One `name: value` of the text, with its list brackets and its separator."""

    field: Field
    start: int
    values: list[Value] = dataclasses.field(default_factory=list)
    list_start: int = -1
    """Offset of `[`; -1 when the value stands alone."""
    end: int = -1
    """Behind the last value or `]`."""
    stop: int = -1
    """Behind the `,` or `;` that closes the entry; equal to `end` without one."""
