"""What is wrong with a config text and where, in the words of the C++ parser. Layer: pbtxt, its bottom."""

from __future__ import annotations

from dataclasses import dataclass

TAB = 8


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing the text gets wrong.

    `line` and `column` count from 1 as libprotobuf prints them: columns are bytes, a tab goes to the next multiple of
    eight. `server` tells whether Triton's own parser prints this fault; it stops at its first syntax error, so faults
    behind that one are only found here.
    """

    offset: int
    line: int
    column: int
    message: str
    server: bool = True
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.message}"


def position(source: bytes, offset: int) -> tuple[int, int]:
    """Line and column of a byte offset, both from 1, counted as libprotobuf's tokenizer counts them."""
    start = source.rfind(b"\n", 0, offset) + 1
    # A carriage return is an ordinary column for the C++ tokenizer, but a new line for bytes.expandtabs.
    prefix = source[start:offset].replace(b"\r", b" ")
    return source.count(b"\n", 0, offset) + 1, len(prefix.expandtabs(TAB)) + 1
