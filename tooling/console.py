"""stdout and stderr of the tool: results, messages, progress, the JSON envelope; nothing else prints. Layer: bottom."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tooling.errors import TrituneError
from tooling.units import format_duration_us

SCHEMA_VERSION = 1
_ERASE = "\r\x1b[K"


class StdoutFailed(Exception):
    """The result could not be written to stdout; the cause is the OSError."""


class Progress:
    """Steps of a long run on stderr with the time that is left at the pace so far: on a terminal one line that changes,
    elsewhere a plain line a step."""

    def __init__(self, console: Console, label: str, total: int) -> None:
        self._console, self._label, self.total = console, label, total
        self._done, self._started = 0, time.monotonic()

    def step(self, note: str, steps: int = 1) -> None:
        """`steps` more are done; `note` says what was."""
        self._done = min(self._done + steps, self.total)
        elapsed = time.monotonic() - self._started
        left_us = elapsed / self._done * (self.total - self._done) * 1e6 if self._done else 0
        eta = f"ETA {format_duration_us(left_us)}" if self._done < self.total else f"in {elapsed:.0f}s"
        width = len(str(self.total))
        self._console.progress_line(f"{self._label} [{self._done:>{width}}/{self.total}] {eta} · {note}")


@dataclass(slots=True)
class Console:
    """Where everything is printed. stdout is data; messages and progress go to stderr."""

    command: str = ""
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    show_progress: bool = True
    _result: dict[str, Any] | None = field(default=None, init=False)
    _on_line: bool = field(default=False, init=False)

    def info(self, message: str) -> None:
        if not self.quiet:
            self._say(message)

    def detail(self, message: str) -> None:
        if self.verbose:
            self.info(message)

    def warning(self, message: str) -> None:
        self._say(f"warning: {message}")

    def progress_line(self, line: str) -> None:
        if not self.show_progress or self.quiet:
            return
        if not _is_terminal():
            self._say(line)
            return
        width = shutil.get_terminal_size().columns
        self._write_err(f"{_ERASE}{line[: width - 1]}")
        self._on_line = True

    @contextmanager
    def progress(self, label: str, total: int) -> Iterator[Progress]:
        """A run of `total` steps; its last line stays."""
        try:
            yield Progress(self, label, total)
        finally:
            if self._on_line:
                self._on_line = False
                self._write_err("\n")

    def result(self, data: dict[str, Any], text: str) -> None:
        """The command's answer: `text` on stdout, or `data` inside the envelope with --json."""
        if self.json:
            self._result = data
        elif text:
            self._write(text if text.endswith("\n") else text + "\n")

    def error(self, error: TrituneError) -> None:
        for problem in error.problems:
            self._say(f"error: {problem}")
            if problem.hint:
                self._say(f"hint: {problem.hint}")

    def close(self, exit_code: int, error: TrituneError | None = None) -> None:
        """Write the one JSON object of a run with --json; otherwise nothing."""
        if not self.json:
            return
        envelope = {
            "schema_version": SCHEMA_VERSION,
            "command": self.command,
            "exit_code": exit_code,
            "data": self._result,
            "error": None if error is None else {"kind": error.kind, "problems": [p.as_dict() for p in error.problems]},
        }
        self._write(json.dumps(envelope) + "\n")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            raise StdoutFailed from error

    def _say(self, line: str) -> None:
        """A line on stderr, in the place of a progress line, which comes again with its next step."""
        self._write_err(f"{_ERASE if self._on_line else ''}{line}\n")
        self._on_line = False

    @staticmethod
    def _write_err(text: str) -> None:
        """Whether anybody can read it must not change what the command does."""
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _is_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain text table: first column left-aligned, the others right-aligned; readable without colour."""
    cells = [list(header), *[list(r) for r in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()

    return "\n".join([line(cells[0]), "  ".join("─" * w for w in widths), *(line(r) for r in cells[1:])])
