"""What the engine's processes write, passed on to the server's log and searched for why they ended. Layer: backend."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import deque

_KEPT = 200
_CAUSE = re.compile(r"\b(\w*(?:Error|Exception): .+)")


class EngineOutput:
    """Stands between the processes that are started within `catching` and the log, as long as they live."""

    def __init__(self):
        self._lines = deque(maxlen=_KEPT)
        self._log = os.dup(2)
        self._reader, self._writer = os.pipe()
        threading.Thread(target=self._pass_on, name="engine output", daemon=True).start()

    @contextlib.contextmanager
    def catching(self):
        """What is started inside writes to the pipe; afterwards only it holds its end."""
        own = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(self._writer, number)
        try:
            yield
        finally:
            for number, kept in zip((1, 2), own, strict=True):
                os.dup2(kept, number)
                os.close(kept)
            os.close(self._writer)

    def cause(self, unknown):
        """The last error that was written, or `unknown`."""
        found = (_CAUSE.search(line) for line in reversed(self._lines))
        return next((match[1] for match in found if match), unknown)

    def _pass_on(self):
        rest = b""
        while chunk := os.read(self._reader, 1 << 16):
            os.write(self._log, chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            self._lines.extend(line.decode(errors="replace") for line in lines)
        os.close(self._reader)
        os.close(self._log)
