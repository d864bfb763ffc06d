"""Config text to syntax tree and faults, by the rules of Triton's own parser. Layer: pbtxt."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tooling.pbtxt.cursor import BadValue, Cursor, Enough, Rejected
from tooling.pbtxt.faults import Fault
from tooling.pbtxt.hints import unknown_field_hint
from tooling.pbtxt.lexer import END, FLOAT, IDENTIFIER, INTEGER, STRING
from tooling.pbtxt.scalars import is_set, read_scalar
from tooling.pbtxt.schema import Descriptor, Field, fields_of
from tooling.pbtxt.tree import Body, Entry, Scalar, Value

_COLON, _COMMA, _SEMICOLON, _DOT, _MINUS = b":,;.-"
_BRACE, _ANGLE, _LIST, _LIST_END = b"{<[]"
_CLOSING = {_BRACE: ord("}"), _ANGLE: ord(">"), _LIST: _LIST_END}
_CLOSERS = (ord("}"), ord(">"))
_ATOMS = (IDENTIFIER, INTEGER, FLOAT, STRING)


@dataclass(frozen=True, slots=True)
class Document:
    """A config text with its tree and its faults, in the order they were found."""

    source: bytes
    root: Body
    faults: tuple[Fault, ...]

    @property
    def accepted(self) -> bool:
        """Whether Triton's own parser takes this text."""
        return not any(fault.server for fault in self.faults)


def parse(source: bytes, descriptor: Descriptor) -> Document:
    """Read a config text as a message of type `descriptor`. Nothing is raised: what is wrong stands in `faults`.

    The rules are those of protobuf's C++ text parser (io/tokenizer.cc and text_format.cc of 3.19, which Triton 24.10
    is built with). It stops at its first syntax error; where the end of the wrong part is known, reading goes on here
    so that all problems of a file are told at once.
    """
    cursor = Cursor(source)
    reader = _Reader(cursor, descriptor)
    root = Body(descriptor, -1, len(source))
    seen: dict[str, str] = {}
    with suppress(Enough):
        try:
            cursor.advance()
            while cursor.kind != END:
                reader.entry(root, seen)
        except Rejected as error:
            if not cursor.stopped:
                cursor.stop(str(error))
    return Document(source, root, tuple(cursor.faults))


class _Reader:
    """The grammar: one method per rule, each taking its tokens from the cursor."""

    def __init__(self, cursor: Cursor, root: Descriptor) -> None:
        self.cursor = cursor
        self.root = root

    def entry(self, body: Body, seen: dict[str, str]) -> None:
        """`name: value`, `name { … }` or `name: [ …, … ]`, with one `,` or `;` behind it if there is any.

        `seen` holds what was set before in this body: fields by name, and oneofs with the member that is set.
        """
        cursor = self.cursor
        start = cursor.start
        if cursor.take(_LIST):
            self.extension(body)
        name = self.identifier()
        field = fields_of(body.descriptor).get(name)
        if field is None:
            self.unknown(body, name)
            self.separator()
            return
        self.check_repetition(field, seen)
        entry = Entry(field, start)
        self.values(entry)
        self.separator()
        entry.stop = cursor.last_end
        body.entries.append(entry)
        if field.tracked or (entry.values and is_set(entry.values[-1].value)):
            seen[name] = name
            if field.oneof:
                seen[field.oneof] = name

    def identifier(self) -> str:
        cursor = self.cursor
        if cursor.kind != IDENTIFIER:
            raise Rejected(f"Expected identifier, got: {cursor.text}")
        name = cursor.text
        cursor.advance()
        return name

    def separator(self) -> None:
        if not self.cursor.take(_SEMICOLON):
            self.cursor.take(_COMMA)

    def extension(self, body: Body) -> None:
        """`[full.name]`: Triton's messages have no extensions, so this always ends in a refusal."""
        name = self.identifier()
        while self.cursor.take(_DOT):
            name += f".{self.identifier()}"
        self.cursor.expect(_LIST_END)
        owner = body.descriptor.full_name
        raise Rejected(f'Extension "{name}" is not defined or is not an extension of "{owner}".')

    def check_repetition(self, field: Field, seen: dict[str, str]) -> None:
        """A field without presence may be written again while it holds its default; all others only once."""
        name, oneof = field.name, field.oneof
        if field.repeated:
            return
        if name in seen:
            self.cursor.stop(f'Non-repeated field "{name}" is specified multiple times.')
        elif oneof is not None and oneof in seen:
            self.cursor.stop(
                f'Field "{name}" is specified along with field "{seen[oneof]}", another member of oneof "{oneof}".'
            )

    def values(self, entry: Entry) -> None:
        """What follows a field's name. The colon may be left out before a message or a list of messages."""
        cursor, field = self.cursor, entry.field
        if field.message is None:
            cursor.expect(_COLON)
        else:
            cursor.take(_COLON)
        start = cursor.start
        if field.repeated and cursor.take(_LIST):
            entry.list_start = start
            if not cursor.take(_LIST_END):
                self.elements(entry)
        else:
            entry.values.append(self.value(field))
        entry.end = cursor.last_end

    def elements(self, entry: Entry) -> None:
        cursor = self.cursor
        while True:
            entry.values.append(self.value(entry.field))
            if cursor.take(_LIST_END):
                return
            entry.values[-1].comma = cursor.start
            cursor.expect(_COMMA)

    def value(self, field: Field) -> Value:
        cursor = self.cursor
        start = cursor.start
        value: Scalar | Body
        if field.message is not None:
            value = self.message(field.message)
        else:
            try:
                value = read_scalar(cursor, field)
            except BadValue as error:
                cursor.stop(str(error), error.hint)
                if not error.taken:
                    self.skip_value()
                value = field.default
        return Value(start, cursor.last_end, value)

    def message(self, descriptor: Descriptor) -> Body:
        """`{ … }` or `< … >`. Nesting is bounded by the schema, so there is no recursion to limit."""
        cursor = self.cursor
        body = Body(descriptor, cursor.start)
        closing = _CLOSING[_BRACE]
        if cursor.take(_ANGLE):
            closing = _CLOSING[_ANGLE]
        else:
            cursor.expect(_BRACE)
        seen: dict[str, str] = {}
        while cursor.symbol not in _CLOSERS:
            self.entry(body, seen)
        cursor.expect(closing)
        body.end = cursor.last_end
        return body

    def unknown(self, body: Body, name: str) -> None:
        """A name the message type has not: told, then its value is passed over to find more."""
        cursor, owner = self.cursor, body.descriptor
        message = f'Message type "{owner.full_name}" has no field named "{name}".'
        cursor.stop(message, unknown_field_hint(name, owner, self.root))
        colon = cursor.take(_COLON)
        if cursor.symbol in _CLOSING:
            self.skip_brackets()
        elif colon:
            cursor.take(_MINUS)
            self.skip_value()
        else:
            raise Rejected(name)

    def skip_value(self) -> None:
        """Pass over one scalar of any type; strings side by side are one."""
        cursor = self.cursor
        if cursor.kind not in _ATOMS:
            raise Rejected(cursor.text)
        kind = cursor.kind
        cursor.advance()
        while kind == STRING and cursor.kind == STRING:
            cursor.advance()

    def skip_brackets(self) -> None:
        """Pass over a bracketed value with all that is nested in it."""
        cursor = self.cursor
        open_brackets = [_CLOSING[cursor.symbol]]
        while open_brackets:
            cursor.advance()
            if cursor.symbol in _CLOSING:
                open_brackets.append(_CLOSING[cursor.symbol])
            elif cursor.symbol == open_brackets[-1]:
                open_brackets.pop()
            elif cursor.kind == END:
                raise Rejected(cursor.text)
        cursor.advance()
