"""A config text changed into another message with every untouched byte kept: comments, order, quotes. Layer: pbtxt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tooling.pbtxt.alignment import align_list, align_map
from tooling.pbtxt.message import fill, load, message_of
from tooling.pbtxt.parser import parse
from tooling.pbtxt.patches import Patches
from tooling.pbtxt.printer import (
    INDENT,
    PLAIN,
    Style,
    element_lines,
    escape,
    field_lines,
    is_present,
    render,
    scalar,
    value_lines,
    values_of,
)
from tooling.pbtxt.schema import Field, Message, new_message
from tooling.pbtxt.tree import Body, Entry, Value

_NEEDS_NO_GAP = (b" ", b"\t", b"\r", b"\n", b"}", b">")


def edit(source: bytes, new: Message, where: object, style: Style = PLAIN) -> bytes:
    """The text changed so that it stands for `new`; only what stands for a changed value is touched.

    A scalar that goes back to its default is taken out, or written out if `style` has it explicit. Raises UsageError
    when the text has faults.
    """
    document = parse(source, new.DESCRIPTOR)
    old = message_of(document, new, where)
    patches = Patches(source)
    _Editor(patches, style).body(document.root, old, new)
    result = patches.apply()
    if render(load(result, new, where)) != render(new):  # as text, because a NaN differs from itself
        raise AssertionError(f"the edited text is not the message it was made for:\n{result!r}")
    return result


@dataclass(frozen=True, slots=True)
class _Slot:
    """One value of a repeated field in the text: its entry, its node, and the value itself."""

    entry: Entry
    node: Value
    value: Any


class _Editor:
    def __init__(self, patches: Patches, style: Style) -> None:
        self.patches = patches
        self.style = style

    def body(self, body: Body, old: Message, new: Message) -> None:
        """Change the entries of one message."""
        fields = self.style.fields(body.descriptor)
        removed: list[Entry] = []
        missing = []
        for field in fields:
            if field_lines(old, field) == field_lines(new, field):
                continue
            entries = body.of(field.name)
            if not entries:
                missing.append(field)
            elif field.repeated:
                removed += self.repeated(field, entries, new)
            else:
                removed += self.singular(field, entries, old, new)
        for entry in removed:
            self.patches.remove(entry.start, entry.stop)
        rest = [entry for entry in body.entries if not any(entry is other for other in removed)]
        ranks = {field.name: rank for rank, field in enumerate(fields)}
        for field in missing:
            before = [entry for entry in rest if ranks[entry.field.name] < ranks[field.name]]
            self.add(body, before, rest, field_lines(new, field, self.style))

    def singular(self, field: Field, entries: list[Entry], old: Message, new: Message) -> list[Entry]:
        """Change the value where it stands; returns the entries to take out."""
        value = getattr(new, field.name)
        node = entries[-1].values[0]
        explicit = f"{new.DESCRIPTOR.name}.{field.name}" in self.style.explicit
        if not (is_present(new, field) or explicit):
            return entries
        self.value(field, node, getattr(old, field.name), value)
        return []

    def value(self, field: Field, node: Value, old: Any, new: Any) -> None:
        """Change one value; a string keeps its kind of quotes."""
        if isinstance(node.value, Body):
            self.body(node.value, old, new)
        elif field.kind == "string":
            quote = chr(self.patches.source[node.start])
            self.patches.replace(node.start, node.end, f"{quote}{escape(new, quote)}{quote}")
        else:
            self.patches.replace(node.start, node.end, scalar(new, field))

    def repeated(self, field: Field, entries: list[Entry], new: Message) -> list[Entry]:
        """Change, add and take out elements; returns the entries that lose all of theirs."""
        values = values_of(new, field)
        slots = [_Slot(entry, node, _value_of(node)) for entry in entries for node in entry.values]
        if not slots:  # only empty lists
            inline = ", ".join(self.inline(element_lines(value, field, self.style)) for value in values)
            self.patches.insert(entries[-1].list_start + 1, inline)
            return []
        align = align_map if field.is_map else align_list
        plan = align([_label(slot.value, field) for slot in slots], [_label(value, field) for value in values])
        for index, target in plan.kept.items():
            slot = slots[index]
            if target is not None and _text(slot.value, field) != _text(values[target], field):
                self.value(field, slot.node, slot.value, values[target])
        for index, targets in plan.added.items():
            fresh = [values[target] for target in targets]
            if index < 0:
                self.add_in_front(field, slots[0], fresh)
            else:
                self.add_behind(field, slots[index], fresh)
        return self.take_out(entries, [slot.node for index, slot in enumerate(slots) if index in plan.kept])

    def take_out(self, entries: list[Entry], kept: list[Value]) -> list[Entry]:
        """Take the elements that are not kept out of their lists; returns the entries of which nothing is kept."""
        removed = []
        for entry in entries:
            stays = [any(node is other for other in kept) for node in entry.values]
            if not any(stays) and entry.values:
                removed.append(entry)
                continue
            last = max((index for index, stay in enumerate(stays) if stay), default=-1)
            for index, node in enumerate(entry.values):
                if not stays[index]:
                    self.patches.remove(node.start, node.end if node.comma < 0 else node.comma + 1)
                elif index == last and node.comma >= 0:
                    self.patches.replace(node.comma, node.comma + 1, "")
        return removed

    def add_behind(self, field: Field, slot: _Slot, values: list[Any]) -> None:
        """Add elements behind one, in the form that one has: in its list, or as entries of their own."""
        entry, node, patches = slot.entry, slot.node, self.patches
        if entry.list_start < 0:
            self.entries_behind(entry, [value_lines(value, field, self.style) for value in values])
            return
        blocks = [element_lines(value, field, self.style) for value in values]
        last = node.comma < 0
        if patches.has_own_lines(node.start, node.end if last else node.comma + 1):
            if last:
                patches.insert(node.end, ",")
            lines = [line for block in blocks for line in [*block[:-1], block[-1] + ","]]
            lines[-1] = lines[-1][: -1 if last else None]
            patches.insert_lines(node.end if last else node.comma + 1, lines, patches.indent(node.start))
        else:
            patches.insert(node.end, "".join(f", {self.inline(block)}" for block in blocks))

    def add_in_front(self, field: Field, slot: _Slot, values: list[Any]) -> None:
        """Add elements in front of the first one."""
        if slot.entry.list_start < 0:
            self.entries_before(
                slot.entry, [line for value in values for line in value_lines(value, field, self.style)]
            )
            return
        blocks = [element_lines(value, field, self.style) for value in values]
        start = slot.node.start
        if self.patches.starts_line(start):
            lines = [line for block in blocks for line in [*block[:-1], block[-1] + ","]]
            self.patches.insert_lines_before(start, lines, self.patches.indent(start))
        else:
            self.patches.insert(start, "".join(f"{self.inline(block)}, " for block in blocks))

    def add(self, body: Body, before: list[Entry], rest: list[Entry], lines: list[str]) -> None:
        """Add a field that is not in the text: behind the fields that come before it, or where there is room."""
        patches, source = self.patches, self.patches.source
        if before:
            self.entries_behind(before[-1], [lines])
        elif rest:
            self.entries_before(rest[0], lines)
        elif body.start < 0:
            patches.append_lines(lines)
        elif b"\n" in source[body.start : body.end]:
            patches.insert_lines(body.start, lines, patches.line_indent(body.start) + INDENT)
        else:
            gap = "" if source[body.start + 1 : body.start + 2] in (b" ", b"\t") else " "
            patches.insert(body.start + 1, f" {self.inline(lines)}{gap}")

    def entries_behind(self, entry: Entry, blocks: list[list[str]]) -> None:
        patches, source = self.patches, self.patches.source
        if patches.has_own_lines(entry.start, entry.stop):
            patches.insert_lines(entry.stop, [line for block in blocks for line in block], patches.indent(entry.start))
            return
        separator = source[entry.stop - 1 : entry.stop].decode() if entry.stop > entry.end else ""
        gap = "" if source[entry.stop : entry.stop + 1] in (b"", *_NEEDS_NO_GAP) else " "
        patches.insert(entry.stop, "".join(f" {self.inline(block)}{separator}" for block in blocks) + gap)

    def entries_before(self, entry: Entry, lines: list[str]) -> None:
        if self.patches.starts_line(entry.start):
            self.patches.insert_lines_before(entry.start, lines, self.patches.indent(entry.start))
        else:
            self.patches.insert(entry.start, f"{self.inline(lines)} ")

    @staticmethod
    def inline(lines: Sequence[str]) -> str:
        return " ".join(line.strip() for line in lines)


def _value_of(node: Value) -> Any:
    """What a node of the text stands for: a scalar, or a message of its own."""
    if not isinstance(node.value, Body):
        return node.value
    message = new_message(node.value.descriptor)
    fill(message, node.value)
    return message


def _text(value: Any, field: Field) -> str:
    return "\n".join(element_lines(value, field))


def _label(value: Any, field: Field) -> str:
    """What an element is recognised by: the key of a map entry, the name of a message that has one, or all of it."""
    if field.is_map:
        return repr(value.key)
    name = getattr(value, "name", "") if field.message is not None else ""
    return f"name {name}" if name else _text(value, field)
