"""A position in the token stream of a config text, and the faults heard on the way. Layer: pbtxt."""

from __future__ import annotations

from tooling.pbtxt.faults import Fault, position
from tooling.pbtxt.hints import syntax_hint
from tooling.pbtxt.lexer import END, SYMBOL, tokens

LIMIT = 100
"""Faults collected before reading stops: more help nobody, and a hostile text could hold a million."""


class Rejected(Exception):
    """The text cannot be read any further from the current token on."""


class BadValue(Exception):
    """The value is wrong, but reading can go on behind it; `taken` when its token is taken already."""

    def __init__(self, message: str, hint: str | None = None, *, taken: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.taken = taken


class Enough(Exception):
    """`LIMIT` faults are collected."""


class Cursor:
    """The current token: `kind`, `start`, `end`, and its byte in `symbol` (-1 when it is no symbol)."""

    __slots__ = ("_tokens", "end", "faults", "kind", "last_end", "source", "start", "stopped", "symbol")

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.faults: list[Fault] = []
        self.stopped = False
        """Set when the C++ parser would have given up: faults found from here on are ours alone."""
        self.kind, self.start, self.end, self.symbol = END, 0, 0, -1
        self.last_end = 0
        self._tokens = tokens(source, self.report)

    def report(self, offset: int, message: str, hint: str | None = None, *, server: bool = True) -> None:
        """Note a fault that does not end the reading. Raises Enough at the limit."""
        line, column = position(self.source, offset)
        hint = hint or syntax_hint(message, self.source, offset)
        self.faults.append(Fault(offset, line, column, message, server=server and not self.stopped, hint=hint))
        if len(self.faults) >= LIMIT:
            raise Enough

    def stop(self, message: str, hint: str | None = None) -> None:
        """Note the fault at which the C++ parser gives up; by its habit it points at the current token."""
        self.report(self.start, message, hint)
        self.stopped = True

    def advance(self) -> None:
        """Take the current token; the end of the text stays current for ever."""
        self.last_end = self.end
        self.kind, self.start, self.end = next(self._tokens)
        self.symbol = self.source[self.start] if self.kind == SYMBOL else -1

    @property
    def text(self) -> str:
        """The current token as the C++ parser quotes it; bytes that are no UTF-8 as `\\xff`."""
        return self.source[self.start : self.end].decode("utf-8", "backslashreplace")

    def take(self, symbol: int) -> bool:
        """Whether the current token is this symbol; if so it is taken."""
        if self.symbol != symbol:
            return False
        self.advance()
        return True

    def expect(self, symbol: int) -> None:
        """Take this symbol. Raises Rejected when another token stands here."""
        if not self.take(symbol):
            raise Rejected(f'Expected "{chr(symbol)}", found "{self.text}".')
