"""The decision log of a served model: every step of its rollouts, and what may be taken back. Layer: bottom of
rollout."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from perf.record_file import RecordFile
from tooling.errors import UsageError
from tooling.repository import require_writable, writing

Entry = dict[str, Any]
_PATIENCE_S, _POLL_S = 300.0, 0.05
_SWITCHES = ("switching", "promoted", "let go")
"""Steps after which the process that holds the log is past its gates: what it still does ends by itself."""
ENDING = "ending"
"""Noted by a `rollback` that another process keeps waiting: that one is to end its trial."""
_BY_OTHERS = ("drift", ENDING)
"""Steps that a process notes which does not hold the log."""


def beside(model_dir: Path, what: str) -> Path:
    """A file of a rollout: `REPO/NAME.rollout.jsonl` is the log. Beside the model directory, not in it: Triton loads
    every version anew when any file in there but the config has changed, and passes over files of the repository."""
    return model_dir.with_name(f"{model_dir.name}.{what}")


LOG = "rollout.jsonl"
CANARY_FILE = "canary.json"
"""Beside the decision log: the canary requests with the answers of the version that serves."""


@dataclass(slots=True)
class State:
    """Where the rollouts of a model stand: promotions that can be taken back, newest last; the trial whose share has
    held, and one whose share is still watched; a switch that began and whose end is not in the log; the highest version
    ever used. `kept` in a promotion are the versions before it, as long as they stay loaded."""

    promoted: list[Entry] = field(default_factory=list)
    trial: Entry | None = None
    holding: Entry | None = None
    switching: Entry | None = None
    last_version: int = 0

    @property
    def kept(self) -> Entry | None:
        """The last promotion, while what served before it is still loaded."""
        return self.promoted[-1] if self.promoted and self.promoted[-1].get("kept") and not self.switching else None

    @property
    def share(self) -> Entry | None:
        """The trial by which a candidate may have a share of the requests."""
        return self.holding or self.trial

    @property
    def newest(self) -> Entry | None:
        """The step that a rollback takes back."""
        return self.switching or self.share or next(reversed(self.promoted), None)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> State:
        state = cls()
        for entry in entries:
            state._follow(entry)
        return state

    def _follow(self, entry: Entry) -> None:
        self.last_version = max(self.last_version, int(entry.get("version", 0)))
        step = entry["step"]
        if step == "trial begun":
            self.holding = entry
        elif step == "trial":
            self.trial, self.holding = entry, None
        elif step in ("begun", "stopped"):
            self.holding = None
        elif step == "switching":
            self.switching = entry
        elif step == "promoted" and self.switching:
            self.promoted.append(self.switching)
            self.switching = self.trial = self.holding = None
        elif step == "let go" and self.promoted:
            self.promoted[-1] = {**self.promoted[-1], "kept": []}
        elif step == "trial ended":
            self.trial = self.holding = None
        elif step == "switch undone":  # which took the candidate's files
            self.switching = self.trial = self.holding = None
        elif step == "rolled back" and self.promoted:
            self.promoted.pop()


class Held(UsageError):
    """Another process holds the log."""


class Ledger:
    """The log, opened by the one process that may change the model; a context manager. Entering raises Held while
    another process has it, and UsageError for a log that is damaged. `waiting` is asked again and again meanwhile, with
    the entries so far, whether to wait for that process. Without `lock` it is only for notes that change nothing."""

    def __init__(
        self, model_dir: Path, *, lock: bool = True, waiting: Callable[[Sequence[Entry]], bool] | None = None
    ) -> None:
        self._lock, self._waiting = lock, waiting
        self.path = beside(model_dir, LOG)
        self.entries: list[Entry] = []
        self._begins = 0
        self._file = RecordFile(self.path)

    def __enter__(self) -> Ledger:
        try:
            with writing(self.path):
                self._open()
            self.entries = read(self.path)
            self._begins = len(self.entries)
        except BaseException as error:
            self._file.close()
            if isinstance(error.__cause__, BlockingIOError):
                raise Held(
                    "another rollout of this model is under way",
                    where=self.path,
                    expected="one at a time",
                    hint="interrupt it (Ctrl-C, or SIGTERM): it then leaves the version before serving; "
                    "`tritune rollback` ends its trial, too",
                ) from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _open(self) -> None:
        ends = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._file.open(lock=self._lock)
                return
            except BlockingIOError:
                if self._waiting is None or time.monotonic() >= ends or not self._waiting(read(self.path)):
                    raise
            time.sleep(_POLL_S)

    @property
    def state(self) -> State:
        return State.of(self.entries)

    def note(self, step: str, **facts: Any) -> Entry:
        """Write one entry and wait until it is on disk; returns it."""
        entry = {"step": step, "time": datetime.now(timezone.utc).isoformat(timespec="seconds"), **facts}
        with writing(self.path):
            self._file.append(entry)
        self.entries.append(entry)
        return entry

    def asked_to_end(self) -> bool:
        """Whether a `rollback` waits for this process to end its trial."""
        return any(entry["step"] == ENDING for entry in read(self.path)[self._begins :])


def switches(entries: Sequence[Entry]) -> bool:
    """Whether the process that holds this log switches versions, or has done so: it passes no gates that take long."""
    last = next((entry for entry in reversed(entries) if entry["step"] not in _BY_OTHERS), {})
    return last.get("step") in _SWITCHES or (last.get("gate") == "hold" and last.get("percent") == 100)


def require_log(model_dir: Path) -> None:
    """Raise UsageError unless an entry can be added to the log: asked before what is noted there is measured."""
    path = beside(model_dir, LOG)
    read(path)
    there = path.is_file()
    if there:
        with writing(path):
            path.open("ab").close()
    if not there or os.access(path.parent, os.W_OK):
        require_writable(path)


def read(path: Path) -> list[Entry]:
    """The entries of a log; none where there is no file. Raises UsageError for one that is damaged."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror) from error
    entries = []
    for number, line in enumerate(lines[:-1], start=1):  # what a kill tore off the last line was never reported as done
        try:
            entry = json.loads(line.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or not _usable(entry):
            raise UsageError(
                "the decision log is damaged",
                where=f"{path}:{number}",
                got=repr(line[:40].decode(errors="replace")),
                expected="one step a line, with what it needs to be taken back",
                hint="delete that line",
            )
        entries.append(entry)
    return entries


_LISTS = {"served": int, "replaced": str, "added": str, "kept": int}
_NEEDED = {
    "switching": ("version", "served", "replaced", "added"),
    "promoted": ("version",),
    "trial": ("version", "percent"),
    "trial begun": ("version",),
}


def _usable(entry: Entry) -> bool:
    """Whether an entry has what later steps read of it, each of its type."""
    if not isinstance(step := entry.get("step"), str) or not all(key in entry for key in _NEEDED.get(step, ())):
        return False
    lists = [(entry[key], kind) for key, kind in _LISTS.items() if step != "drift" and entry.get(key) is not None]
    return (
        isinstance(entry.get("version", 0), int)
        and isinstance(entry.get("percent", 0), int | float)
        and isinstance(entry.get("config", ""), str)
        and all(isinstance(values, list) and all(isinstance(one, kind) for one in values) for values, kind in lists)
    )
