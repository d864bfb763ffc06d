"""Reads tritonserver's log: the last lines that matter, and the reason of a refusal. Layer: server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

_TAIL_LINES, _LINE_WIDTH = 12, 400
_LINE = re.compile(r"([IWEF])\d{4} [\d:.]+\s+\d+ \S+:\d+\]\s*(.*)")
_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "fatal"}
_HARMLESS = re.compile(
    r"CUDA driver version is insufficient|CUDA memory pool|CudaDriverHelper|initialize NVML|DCGM|Collecting CPU metrics"
)
_VERSION_STATE = re.compile(r"version (-?\d+) is at \w+ state: (.*?);\s*(?=version -?\d+ is at|$)", re.DOTALL)
_PYTHON_ERROR = "Internal: TritonModelException: "
_PYTHON_TRACE = re.compile(r"\s*\n\s*At:\n.*", re.DOTALL)


class ServerLog:
    """The log of one server, readable through the open file even after its directory was removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("x+b")

    def close(self) -> None:
        self._file.close()

    def mark(self) -> int:
        """The present end of the log, for `lines`."""
        return os.fstat(self._file.fileno()).st_size

    def lines(self, since: int = 0) -> Iterator[tuple[str, str]]:
        """(level, message) of each line written after `since`; tables and blank lines are left out."""
        text = os.pread(self._file.fileno(), max(self.mark() - since, 0), since).decode(errors="replace")
        for raw in text.splitlines():
            match = _LINE.fullmatch(raw)
            level, message = (_LEVELS[match[1]], _unquoted(match[2])) if match else ("", raw)
            if message.strip() and not message.startswith(("+-", "| ")):
                yield level, message

    def tail(self) -> str:
        """The last lines, one below the other and indented, without the noise of a machine that has no GPU."""
        kept = [f"{level}: {text}" if level else text for level, text in self.lines() if not _HARMLESS.search(text)]
        shown = "\n".join(line[:_LINE_WIDTH] for line in kept[-_TAIL_LINES:]) or "(nothing was logged)"
        return "    " + shown.replace("\n", "\n    ")


def refusal_reason(name: str, answer: str, log: Iterator[tuple[str, str]]) -> str:
    """Triton's own reason why a model was not loaded.

    A load that fails while the repository is polled answers with a general sentence only: the reason is in the log
    (`Poll failed for model directory ...`). Later failures answer with the reason, one for each version.
    """
    for _, message in log:
        for start in (f"Poll failed for model directory '{name}': ", f"failed to poll model '{name}': "):
            if message.startswith(start):
                return message.removeprefix(start).strip()
    states = [(version, plain_reason(text)) for version, text in _VERSION_STATE.findall(answer)]
    if len(states) == 1:
        return states[0][1]
    return "; ".join(f"version {version}: {text}" for version, text in states) or plain_reason(answer)


def plain_reason(text: str) -> str:
    """A reason without what the Python backend wraps around it: its exception name and its traceback."""
    return _PYTHON_TRACE.sub("", text.strip().removeprefix(_PYTHON_ERROR)).strip()


def _unquoted(message: str) -> str:
    """Triton writes messages as JSON strings; a few of its lines, and those of its libraries, are bare."""
    try:
        value = json.loads(message)
    except ValueError:
        return message
    return value if isinstance(value, str) else message
