"""Bytes to tokens by the rules of libprotobuf 3.19's tokenizer, the one inside Triton 24.10. Layer: pbtxt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

IDENTIFIER, INTEGER, FLOAT, STRING, SYMBOL, END = range(1, 7)

# Kind, start and end offset. A plain tuple: a config of one megabyte has a million tokens.
Token = tuple[int, int, int]
Report = Callable[[int, str], None]

_ESCAPE = rb"\\(?:[abfnrtv\\?'\"0-7]|x[0-9a-fA-F]|u[0-9a-fA-F]{4}|U00[01][0-9a-fA-F]{5})"
_INSIDE = {quote: rb"[^\\\n\0%c]*(?:%s[^\\\n\0%c]*)*" % (quote, _ESCAPE, quote) for quote in b"\"'"}

# One alternative per kind, in the order of the constants above; every alternative is one the C++ tokenizer takes
# without complaint. The last one takes any other byte and goes through the slow, complaining path; as it always
# matches, the trivia before it never backtracks.
_TOKEN = re.compile(
    rb"[ \t\n\r\v\f]*(?:#[^\n\0]*\n?[ \t\n\r\v\f]*)*"
    rb"(?:([A-Za-z_]\w*)"
    rb"|((?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)(?![\w.]))"
    rb"|((?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?[fF]?(?![\w.]))"
    rb"|(\"%s\"|'%s')"
    rb"|([!$%%&()*+,\-/:;<=>?@\[\\\]^`{|}~\x7f])"
    rb"|(\Z)"
    rb"|([\x00-\xff]))" % tuple(_INSIDE.values())
)
_CONTROL = re.compile(rb"[\x00-\x1f]+")
_HEX = re.compile(rb"0[xX][0-9a-fA-F]*")
_OCTAL = re.compile(rb"0(?=[0-9])[0-7]*")
_DECIMAL = re.compile(rb"[0-9]*(?P<point>\.[0-9]*)?(?:[eE][+-]?(?P<digits>[0-9]*))?(?P<suffix>[fF])?")
_DIGITS = re.compile(rb"[0-9]*")
_TO_BAD_ESCAPE = {quote: re.compile(inside) for quote, inside in _INSIDE.items()}
_BAD_ESCAPES = (
    (re.compile(rb"x"), "Expected hex digits for escape sequence."),
    (re.compile(rb"u[0-9a-fA-F]{0,3}"), "Expected four hex digits for \\u escape sequence."),
    (
        re.compile(rb"U(?:0(?:0(?:[01][0-9a-fA-F]{0,4})?)?)?"),
        "Expected eight hex digits up to 10ffff for \\U escape sequence",
    ),
    (re.compile(rb""), "Invalid escape sequence in string literal."),
)


def tokens(source: bytes, report: Report) -> Iterator[Token]:
    """Yield the tokens of `source`, then `END` for ever; `report(offset, message)` hears what the lexer refuses.

    Nothing is raised: like the C++ tokenizer this one complains and goes on. It works one token at a time, so a parser
    that stops early has heard exactly the complaints that Triton prints.
    """
    match = _TOKEN.match
    offset = 0
    previous: Token = (END, -1, -1)
    while found := match(source, offset):
        kind = found.lastindex or END
        start, offset = found.span(kind)
        if kind > END:
            if source[start] < 0x20:
                offset = _end(_CONTROL, source, start)
                report(start, "Invalid control characters encountered in text.")
                continue
            kind, offset = _unusual(source, start, previous, report)
        previous = (kind, start, offset)
        yield previous


def _end(pattern: re.Pattern[bytes], source: bytes, offset: int) -> int:
    """Where a match of `pattern` at `offset` ends; `offset` itself when there is none."""
    found = pattern.match(source, offset)
    return found.end() if found else offset


def _unusual(source: bytes, start: int, previous: Token, report: Report) -> tuple[int, int]:
    """Kind and end of a token outside the common pattern, its faults reported."""
    first = source[start]
    if first in b"\"'":
        return STRING, _string(source, start, report)
    if first in b"0123456789":
        return _number(source, start, report)
    if first == ord(".") and source[start + 1 : start + 2].isdigit():
        if previous[0] == IDENTIFIER and previous[2] == start:
            report(start, "Need space between identifier and decimal point.")
        return _number(source, start, report)
    if first >= 0x80:
        report(start, f"Interpreting non ascii codepoint {first}.")
    return SYMBOL, start + 1


def _number(source: bytes, start: int, report: Report) -> tuple[int, int]:
    is_float = False
    if (end := _end(_HEX, source, start)) > start:
        if end == start + 2:
            report(end, '"0x" must be followed by hex digits.')
    elif (end := _end(_OCTAL, source, start)) > start:
        if source[end : end + 1].isdigit():
            report(end, "Numbers starting with leading zero must be in octal.")
            end = _end(_DIGITS, source, end)
    elif found := _DECIMAL.match(source, start):
        end = found.end()
        is_float = any(part is not None for part in found.groups())
        if found["digits"] == b"":
            report(found.end("digits"), '"e" must be followed by exponent.')
    following = source[end : end + 1]
    if following.isalpha() or following == b"_":
        report(end, "Need space between number and identifier.")
    elif following == b"." and is_float:
        report(end, "Already saw decimal point or exponent; can't have another one.")
    elif following == b".":
        report(end, "Hex and octal numbers must be integers.")
    return (FLOAT if is_float else INTEGER), end


def _string(source: bytes, start: int, report: Report) -> int:
    """End of the literal at `start`: behind its closing quote, or where the line, the text or a NUL byte ends it."""
    quote = source[start]
    offset = start + 1
    while True:
        offset = _end(_TO_BAD_ESCAPE[quote], source, offset)
        stop = source[offset : offset + 1]
        if stop in (b"", b"\0"):
            report(offset, "Unexpected end of string.")
            return offset
        if stop == b"\n":
            report(offset, "String literals cannot cross line boundaries.")
            return offset
        offset += 1
        if stop != b"\\":
            return offset
        found, message = next(
            (found, text) for pattern, text in _BAD_ESCAPES if (found := pattern.match(source, offset))
        )
        offset = found.end()
        report(offset, message)
