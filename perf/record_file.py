"""A file of JSON lines that only grows: one writer, each line whole and on disk or not there. Layer: bottom of perf."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from tooling.repository import encode


class RecordFile:
    """Opened by `open`, which makes the file where it is not there. Failures are OSErrors: BlockingIOError while
    another process holds the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def open(self, *, lock: bool = True) -> bytes:
        """The whole lines that are there. What a kill tore off the last line is cut off, as it was never reported as
        done: under the lock, which is kept with `lock`, and is else left to a process that has it."""
        self._file = self.path.open("a+b", buffering=0)  # so that closing writes no rest of a line
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if lock:
                    raise
                return self._whole_lines(cut=False)
            content = self._whole_lines(cut=True)
            if not lock:
                fcntl.flock(self._file, fcntl.LOCK_UN)
            return content
        except BaseException:
            self.close()
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line and wait until it is on disk; what a full disk cut off is taken away again."""
        assert self._file is not None, "the file is not open"
        end = self._file.seek(0, os.SEEK_END)
        try:
            line = encode(json.dumps(record, ensure_ascii=False)) + b"\n"
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), end)
            raise

    def close(self) -> None:
        """Give the file and its lock up."""
        if self._file:
            self._file.close()
            self._file = None

    def _whole_lines(self, *, cut: bool) -> bytes:
        assert self._file is not None, "the file is not open"
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if cut and whole < len(content):
            self._file.truncate(whole)
        return content[:whole]
