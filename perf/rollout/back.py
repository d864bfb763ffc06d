"""The one step back: the end of a trial, or what served before. It needs no gates, so it starts without them. Layer:
above release."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perf.rollout.ledger import CANARY_FILE, ENDING, LOG, Entry, Ledger, State, beside, read, switches
from perf.rollout.release import ANSWER_S, SPLIT_FILE, Release
from tooling.errors import ExternalError, Refused, UsageError
from tooling.repository import absolute, writing
from tooling.server.running import RunningServer

if TYPE_CHECKING:
    from tooling.console import Console


@dataclass(frozen=True, slots=True)
class Rollback:
    """What one step back did: `ended` is a trial, a promotion, or a switch that was cut off; `serves` are the versions
    that serve now."""

    model: str
    ended: str
    version: int
    serves: tuple[int, ...]
    seconds: float
    log: Path

    def text(self) -> str:
        serves = ", ".join(map(str, self.serves))
        took = f"The {self.ended} of version {self.version} is taken back"
        return f"{took}: version {serves} serves, after {self.seconds} s."


class Patience:
    """Asked while another process has the log: a switch of versions ends by itself and is waited for. With
    `ends_trials` so is a process that watches or widens a trial, once it was told to end it; `ended` is that trial.
    Nothing else is waited for."""

    def __init__(self, model_dir: Path, console: Console, *, ends_trials: bool = False) -> None:
        self.ended: Entry | None = None
        self._model_dir, self._console, self._ends_trials, self._told = model_dir, console, ends_trials, False

    def __call__(self, entries: Sequence[Entry]) -> bool:
        if self.ended is None and not switches(entries):
            trial = State.of(entries).share if self._ends_trials else None
            if trial is None:
                return False
            with Ledger(self._model_dir, lock=False) as log:
                log.note(ENDING, version=trial["version"])
            self.ended = trial
            self._console.info("waiting for the run that watches the trial to end it")
        elif not self._told and self.ended is None:
            self._console.info("waiting for the switch that is under way")
            self._told = True
        return True


def open_release(model_dir: Path, url: str, config_name: str | None) -> Release:
    """The release of a model directory on a running server. Raises UsageError unless models may be loaded there; one
    question tells that and that it answers."""
    model_dir = served_dir(model_dir)
    server = RunningServer(url, ANSWER_S)
    try:
        server.require_control("server not in explicit mode: it loads no new version while it runs", "")
    except (ExternalError, Refused):
        server.identity()  # which says so where no Triton is
        raise
    return Release(model_dir, server, config_name)


def served_dir(model_dir: Path) -> Path:
    """The absolute path of a served model's directory. Raises UsageError where there is none."""
    model_dir = absolute(model_dir)
    if not model_dir.is_dir():
        raise UsageError("not a model directory", where=model_dir, expected="REPO/NAME of the served repository")
    return model_dir


def rollback(model_dir: Path, url: str, console: Console) -> Rollback:
    """End the trial that is under way, else take the last promotion back. A process that switches versions just now is
    waited for, one that watches or widens the trial is told to end it.

    Before anything else is asked, a candidate on trial loses its share. Raises UsageError when there is nothing to take
    back, or when another process took it back first; Refused when Triton no longer takes the old version, and the newer
    one then goes on.
    """
    model_dir, started = served_dir(model_dir), time.monotonic()
    log = beside(model_dir, LOG)
    before = State.of(read(log))
    if before.share:
        _end_share(model_dir, before.share, console)
    release = open_release(model_dir, url, None)
    meant = before.newest if log.exists() else _newest(before, release)  # which leaves no log where there was none
    patience = Patience(model_dir, console, ends_trials=True)
    with Ledger(model_dir, waiting=patience) as ledger:
        state, ended = ledger.state, patience.ended
        if ended and (state.newest is None or state.newest["version"] != ended["version"]):  # it has done so
            return _done(release, "trial", ended, release.served(), started)
        entry = _newest(state, release)
        if meant is None or entry["version"] != meant["version"]:
            raise UsageError(
                "another rollout came first, and this one would take back what it was not asked to",
                where=ledger.path,
                got=f"version {entry['version']} is the newest",
                expected=f"{meant['version'] if meant else 'none'}, as when this began",
                hint="look at the end of the log, and go on from there",
            )
        if entry is state.share:
            what, step, serves = "trial", "trial ended", release.served()
        else:
            what, step = ("switch", "switch undone") if state.switching else ("promotion", "rolled back")
            serves = release.take_back(entry) if state.switching else take_back(release, entry)
        release.drop_candidate()
        ledger.note(step, version=entry["version"], served=serves)
    return _done(release, what, entry, serves, started)


def take_back(release: Release, entry: Entry) -> list[int]:
    """Serve what served before this promotion; the canary's answers are those of the version that goes, and go too."""
    serves = release.take_back(entry)
    path = beside(release.model_dir, CANARY_FILE)
    with writing(path):
        path.unlink(missing_ok=True)
    return serves


def _end_share(model_dir: Path, trial: Entry, console: Console) -> None:
    """Clients follow the split file within a second, whatever the server is busy with."""
    path = beside(model_dir, SPLIT_FILE)
    with writing(path):
        path.unlink(missing_ok=True)
    console.info(f"version {trial['version']} gets no more requests")


def _done(release: Release, what: str, entry: Entry, serves: Sequence[int], started: float) -> Rollback:
    seconds = round(time.monotonic() - started, 2)
    log = beside(release.model_dir, LOG)
    return Rollback(release.name, what, int(entry["version"]), tuple(serves), seconds, log)


def _newest(state: State, release: Release) -> Entry:
    """The step that a rollback takes back. Raises UsageError when there is none."""
    if entry := state.newest:
        return entry
    log = beside(release.model_dir, LOG)
    raise UsageError("there is nothing to take back", where=log, expected="an earlier `tritune promote`")
