"""Which share of the requests a candidate gets while it is on trial. Layer: bottom of perf."""

from __future__ import annotations

import json
import random
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_LOOK_S = 1.0


class Split(NamedTuple):
    """`percent` of the requests for `model` go to `candidate`, a second model of the same server."""

    model: str
    candidate: str
    percent: float

    def choose(self, key: str | None = None) -> str:
        """The model for a request: at random, or always the same one for the same `key` (a user, a session)."""
        place = random.random() if key is None else zlib.crc32(str(key).encode("utf-8", "surrogatepass")) / 2**32
        return self.candidate if place * 100 < self.percent else self.model


class SplitFile:
    """The split that `tritune promote --percent` keeps in a file; looked at once a second."""

    def __init__(self, path: Path) -> None:
        self._path, self._looked, self._mtime_ns = path, float("-inf"), 0
        self._split: Split | None = None

    def current(self) -> Split | None:
        """None while there is no trial. A file that cannot be read leaves the split as it was."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return self._split
        self._looked = now
        try:
            mtime_ns = self._path.stat().st_mtime_ns
        except OSError:
            self._split, self._mtime_ns = None, 0
            return None
        if mtime_ns != self._mtime_ns:
            with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
                data = json.loads(self._path.read_text(encoding="utf-8"))
                self._split = Split(str(data["model"]), str(data["candidate"]), float(data["percent"]))
                self._mtime_ns = mtime_ns
        return self._split
