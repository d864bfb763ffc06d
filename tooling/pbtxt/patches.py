"""Changes to a text by spans and lines that leave every other byte alone. Layer: pbtxt."""

from __future__ import annotations

import re
from collections.abc import Sequence

_BLANK = b" \t\r\v\f"
_TRIVIAL = re.compile(rb"[ \t\r\v\f]*(?:#[^\n]*)?(?=\n|\Z)")


class Patches:
    """Collected changes of one text. Spans are byte offsets of the text as it was."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.newline = "\r\n" if re.match(rb"[^\n]*\r\n", source) else "\n"
        self._changes: list[tuple[int, int, bytes]] = []

    def apply(self) -> bytes:
        """The changed text; additions at one offset stand in the order they were made."""
        parts = []
        offset = 0
        for start, end, text in sorted(self._changes, key=lambda change: change[:2]):
            parts += [self.source[offset:start], text]
            offset = max(offset, end)
        return b"".join([*parts, self.source[offset:]])

    def replace(self, start: int, end: int, text: str) -> None:
        self._changes.append((start, end, text.encode()))

    def insert(self, offset: int, text: str) -> None:
        self.replace(offset, offset, text)

    def insert_lines(self, offset: int, lines: Sequence[str], indent: str) -> None:
        """Add whole lines below the line that `offset` stands on."""
        end = self.line_end(offset)
        self.insert(end, "".join(f"{self.newline}{indent}{line}" for line in lines))

    def insert_lines_before(self, offset: int, lines: Sequence[str], indent: str) -> None:
        """Add whole lines above the line that `offset` stands on."""
        self.insert(self.line_start(offset), "".join(f"{indent}{line}{self.newline}" for line in lines))

    def append_lines(self, lines: Sequence[str]) -> None:
        """Add whole lines at the end of the text."""
        if self.source[-1:] not in (b"", b"\n"):
            self.insert(len(self.source), self.newline)
        self.insert(len(self.source), "".join(f"{line}{self.newline}" for line in lines))

    def remove(self, start: int, end: int) -> None:
        """Take out a span: with its lines and the comment behind it if it shares them with nothing else."""
        if self.has_own_lines(start, end):
            newline = self.source.find(b"\n", end)
            self.replace(self.line_start(start), len(self.source) if newline < 0 else newline + 1, "")
            return
        before, after = self._blank_before(start), self._blank_after(end)
        if before == start or self.starts_line(start):
            end = after
        elif after > end or self.source[end : end + 1] in (b"\r", b"\n"):
            start = before
        self.replace(start, end, "")

    def has_own_lines(self, start: int, end: int) -> bool:
        """Whether a span shares its first line with nothing before it and its last with nothing but a comment."""
        return self.starts_line(start) and _TRIVIAL.match(self.source, end) is not None

    def starts_line(self, offset: int) -> bool:
        """Whether only blanks stand before `offset` on its line."""
        return not self.source[self.line_start(offset) : offset].strip(_BLANK)

    def indent(self, offset: int) -> str:
        """The blanks that the line of `offset` starts with."""
        line = self.source[self.line_start(offset) : offset]
        return line[: len(line) - len(line.lstrip(b" \t"))].decode()

    def line_indent(self, offset: int) -> str:
        """The blanks that the line of `offset` starts with, whatever stands between."""
        start = self.line_start(offset)
        return self.indent(start + len(self.source[start:]) - len(self.source[start:].lstrip(b" \t")))

    def line_start(self, offset: int) -> int:
        return self.source.rfind(b"\n", 0, offset) + 1

    def line_end(self, offset: int) -> int:
        """Where the line of `offset` ends, before its line break."""
        end = self.source.find(b"\n", offset)
        if end < 0:
            return len(self.source)
        return end - 1 if self.source[offset:end].endswith(b"\r") else end

    def _blank_before(self, offset: int) -> int:
        return len(self.source[:offset].rstrip(b" \t"))

    def _blank_after(self, offset: int) -> int:
        return len(self.source) - len(self.source[offset:].lstrip(b" \t"))
