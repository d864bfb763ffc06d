"""Scalar values: read by the rules of libprotobuf's text parser, escapes and number ranges included. Layer: pbtxt."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable

from tooling.pbtxt.cursor import BadValue, Cursor
from tooling.pbtxt.hints import enum_hint
from tooling.pbtxt.lexer import FLOAT, IDENTIFIER, INTEGER, STRING
from tooling.pbtxt.schema import INTEGER_RANGES, Field
from tooling.pbtxt.tree import Scalar

_BOOLS = {b"true": True, b"True": True, b"t": True, b"false": False, b"False": False, b"f": False}
_OTHER_BASE = re.compile(rb"0[xX0-7]")
_INFINITIES = (b"inf", b"infinity")
_MINUS = ord("-")
_LONGEST_INTEGER = 400
"""Significant digits looked at: Python refuses to convert thousands, and none so long is in range."""

_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})"
    rb"|u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))",
    re.DOTALL,
)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def read_scalar(cursor: Cursor, field: Field) -> Scalar:
    """Take one value of the field's type.

    Raises BadValue, worded as the C++ parser words it, when there is none.
    """
    return _READERS[field.kind](cursor, field)


def is_set(value: object) -> bool:
    """Whether a field without presence that holds this value counts as set; a negative zero does."""
    return bool(value) or (isinstance(value, float) and math.copysign(1.0, value) < 0)


def to_float32(number: float) -> float:
    """The nearest single-precision number, as a `float` field stores it."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def parse_integer(text: bytes) -> int | None:
    """The value of an integer token (decimal, `0x…`, octal with a leading 0); None for a digit outside its base."""
    if len(text) < 20 and text[:1] != b"0":
        return int(text)
    base, digits = (16, text[2:]) if text[:2] in (b"0x", b"0X") else (8 if text[:1] == b"0" else 10, text)
    try:
        return int(digits.lstrip(b"0")[:_LONGEST_INTEGER] or b"0", base)
    except ValueError:
        return None


def unescape(literal: bytes) -> bytes:
    """The bytes a string token stands for; `literal` includes its quotes."""
    inner = literal[1:-1]
    return _ESCAPE.sub(_unescaped, inner) if b"\\" in inner else inner


def _unescaped(found: re.Match[bytes]) -> bytes:
    octal, hexadecimal, head, trail, short, long, letter = found.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal:
        return bytes([int(hexadecimal, 16)])
    if head:
        return _utf8(0x10000 + ((int(head, 16) - 0xD800) << 10) + (int(trail, 16) - 0xDC00))
    if short or long:
        return _utf8(int(short or long, 16))
    return _LETTERS.get(letter, letter)


def _utf8(code: int) -> bytes:
    """UTF-8 of a code point; for a lone surrogate or one above 10ffff a byte that is no UTF-8 either."""
    try:
        return chr(code).encode()
    except (ValueError, UnicodeEncodeError):
        return b"\xff"


def _string(cursor: Cursor, _: Field) -> str:
    if cursor.kind != STRING:
        raise BadValue(f"Expected string, got: {cursor.text}")
    start = cursor.start
    parts = []
    while cursor.kind == STRING:
        parts.append(unescape(cursor.source[cursor.start : cursor.end]))
        cursor.advance()
    try:
        return b"".join(parts).decode()
    except UnicodeDecodeError:
        # libprotobuf's text parser lets it pass; its serialiser, and Python's messages, do not.
        cursor.report(start, "String is not valid UTF-8.", "save the file as UTF-8", server=False)
        return ""


def _unsigned(cursor: Cursor, high: int) -> int:
    if cursor.kind != INTEGER:
        raise BadValue(f"Expected integer, got: {cursor.text}")
    value = parse_integer(cursor.source[cursor.start : cursor.end])
    if value is None or value > high:
        raise BadValue(f"Integer out of range ({cursor.text})")
    cursor.advance()
    return value


def _integer(cursor: Cursor, field: Field) -> int:
    low, high = INTEGER_RANGES[field.kind]
    if low < 0 and cursor.take(_MINUS):
        return -_unsigned(cursor, -low)
    return _unsigned(cursor, high)


def _double(cursor: Cursor, field: Field) -> float:
    sign = -1.0 if cursor.take(_MINUS) else 1.0
    text = cursor.source[cursor.start : cursor.end]
    if cursor.kind == INTEGER:
        if _OTHER_BASE.match(text):
            raise BadValue(f"Expect a decimal number, got: {cursor.text}")
        value = float(text)
    elif cursor.kind == FLOAT:
        value = _float_token(text)
    elif cursor.kind == IDENTIFIER and text.lower() in _INFINITIES:
        value = float("inf")
    elif cursor.kind == IDENTIFIER and text.lower() == b"nan":
        value = float("nan")
    else:
        # The C++ parser quotes an identifier in lower case here.
        got = cursor.text.lower() if cursor.kind == IDENTIFIER else cursor.text
        raise BadValue(f"Expected double, got: {got}")
    cursor.advance()
    return to_float32(sign * value) if field.kind == "float" else sign * value


def _float_token(text: bytes) -> float:
    """The value of a float token: an `f` may follow; a bad exponent was reported by the lexer and counts as none."""
    try:
        return float(text.rstrip(b"fF"))
    except ValueError:
        return 0.0


def _bool(cursor: Cursor, field: Field) -> bool:
    if cursor.kind == INTEGER:
        return bool(_unsigned(cursor, 1))
    if cursor.kind != IDENTIFIER:
        raise BadValue(f"Expected identifier, got: {cursor.text}")
    text = cursor.source[cursor.start : cursor.end]
    got = cursor.text
    cursor.advance()
    if text not in _BOOLS:
        raise BadValue(f'Invalid value for boolean field "{field.name}". Value: "{got}".', taken=True)
    return _BOOLS[text]


def _enum(cursor: Cursor, field: Field) -> int:
    """The number of an enum value; unknown numbers are kept, as proto3 enums are open."""
    if cursor.kind == IDENTIFIER:
        name = cursor.text
        cursor.advance()
        if name not in field.enum_numbers:
            raise BadValue(
                f'Unknown enumeration value of "{name}" for field "{field.name}".', enum_hint(name, field), taken=True
            )
        return field.enum_numbers[name]
    if cursor.kind == INTEGER or cursor.symbol == _MINUS:
        return -_unsigned(cursor, 2**31) if cursor.take(_MINUS) else _unsigned(cursor, 2**31 - 1)
    raise BadValue(f"Expected integer or identifier, got: {cursor.text}")


_READERS: dict[str, Callable[[Cursor, Field], Scalar]] = {
    **dict.fromkeys(INTEGER_RANGES, _integer),
    "double": _double,
    "float": _double,
    "bool": _bool,
    "enum": _enum,
    "string": _string,
}
