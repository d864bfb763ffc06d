"""The rollout as a whole: stage, gates, trial, switch. Layer: above gates, trial and back."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.operands import CURRENT, Base, Side, sides
from perf.rollout.back import Patience, open_release, take_back
from perf.rollout.gates import GATES, Demands, Gates, Passage
from perf.rollout.ledger import CANARY_FILE, Entry, Held, Ledger, State, beside, read
from perf.rollout.release import Release
from perf.rollout.trial import Hold, failed_share, watch, watch_whole
from tooling.console import table
from tooling.errors import Refused, TrituneError, UsageError
from tooling.repository import config_path, read_config

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer
    from tooling.console import Console

WHOLE = 100.0
_AGAIN = ("parity", "slo")
"""Gates that are passed again before a trial is widened."""
_TAKEN_BACK = "it was taken back meanwhile"


@dataclass(frozen=True, slots=True)
class PromoteRequest:
    """What to promote into which served model: `candidate` is a model directory, a config file or settings, None for
    the one that is on trial. Below 100 `percent` it goes on trial, and must hold for `hold_s`. So must a version that
    gets all requests: as long the one before stays loaded where it can, and serves again if it does not hold; with 0
    that one is let go at once."""

    model_dir: Path
    url: str
    candidate: str | None
    demands: Demands
    percent: float = WHOLE
    hold_s: float = 60


@dataclass(frozen=True, slots=True)
class Promotion:
    """What came out. `serves` are the versions that serve now, `percent` the share that the candidate has."""

    model: str
    version: int
    passages: tuple[Passage, ...]
    promoted: bool
    serves: tuple[int, ...]
    percent: float
    log: Path

    @property
    def passed(self) -> bool:
        return all(passage.outcome != "failed" for passage in self.passages)

    @property
    def conclusion(self) -> str:
        """The answer in one sentence."""
        serves = ", ".join(map(str, self.serves)) or "none"
        if self.promoted and self.version not in self.serves:
            return f"Version {self.version} of {self.model} served, until version {serves} did."
        if self.promoted:
            return f"Version {self.version} of {self.model} serves."
        if not self.passed:
            beside = f", with {self.percent:g} % for version {self.version}" if self.percent else ""
            return f"Stopped at `{self.passages[-1].gate}`: version {serves} serves as before{beside}."
        return f"Version {self.version} of {self.model} gets {self.percent:g} %, version {serves} the rest."

    def text(self) -> str:
        rows = [(passage.gate, passage.outcome) for passage in self.passages]
        lines = [table(("gate", ""), rows), "", *(f"{p.gate}: {p.why}" for p in self.passages), "", self.conclusion]
        return "\n".join([*lines, "", f"log     {self.log}"])

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "version": self.version,
            "promoted": self.promoted,
            "passed": self.passed,
            "serves": list(self.serves),
            "percent": self.percent,
            "gates": [passage.to_dict() for passage in self.passages],
            "conclusion": self.conclusion,
            "log": str(self.log),
        }


def promote(request: PromoteRequest, *, analyzer: Callable[[], PerfAnalyzer], console: Console) -> Promotion:
    """Put a candidate into a served model, or a share of its traffic; stopped by the first gate that fails.

    Whatever ends it early, an exception or Ctrl-C, the old version serves and the candidate is gone; a trial that is
    widened in vain goes on with the share it had, unless it was the switch that Triton refused. Ended while the new
    version is watched, that one serves on, and what stayed loaded does so until the next promotion or rollback.
    Raises UsageError for what cannot be promoted, MissingError and ExternalError as the server does.
    """
    release = open_release(request.model_dir, request.url, request.demands.config_name)
    release.served()
    with Ledger(release.model_dir) as ledger:
        trial = _trial(ledger, release, request.candidate)
        current, candidate = _sides(release, request)
        gates = Gates(release, current, candidate, request.demands, analyzer, console)
        if left := ledger.state.kept:
            release.let_go(ledger, left)
        served, failed_before = tuple(release.served()), failed_share(release)
        run = _Run(request, release, ledger, gates, candidate, served, console)
        result = run.widen(trial) if trial else run.begin()
    if not result.promoted:
        return result
    _keep_answers(release, gates, result.version, console)
    return _watched(request, release, result, failed_before, console) if request.hold_s > 0 else result


def _after_switch(release: Release, console: Console) -> Ledger:
    """The log, once a switch of versions that another process makes just now has come to its end."""
    return Ledger(release.model_dir, waiting=Patience(release.model_dir, console))


def _keep_answers(release: Release, gates: Gates, version: int, console: Console) -> None:
    """Ask the new version for the canary's answers, and keep them unless it was taken back meanwhile. Asked with the
    log free for `rollback`, since a version that answers slowly is one that may have to go."""
    try:
        answers = gates.answers()
        with _after_switch(release, console) as ledger:
            promoted = ledger.state.promoted
            if promoted and int(promoted[-1]["version"]) == version:
                gates.keep(beside(release.model_dir, CANARY_FILE), answers)
    except TrituneError as error:
        console.warning(f"no canary answers are kept for `tritune drift`: {error}")


def _watched(
    request: PromoteRequest, release: Release, result: Promotion, failed_before: float, console: Console
) -> Promotion:
    """Watch the new version, with the log free for `rollback` and for the next promotion."""
    hold = Hold(request.hold_s, request.demands.slo)

    def ended() -> Passage | None:
        return _ended_by_others(read(result.log), result.version)

    held = watch_whole(release, result.version, hold, failed_before, ended, console)
    try:
        with _after_switch(release, console) as ledger:
            if ended() is None:
                return _decided(release, ledger, result, held)
    except Held:
        if ended() is None:
            raise
    passage = ended()
    assert passage is not None, "asked before"
    serves = tuple(release.server.versions(release.name))
    promoted = passage.outcome == "skipped"
    return replace(result, passages=(*result.passages, passage), promoted=promoted, serves=serves)


def _ended_by_others(entries: Sequence[Entry], version: int) -> Passage | None:
    """What of the log ends the watch of a version: it was taken back, or another promotion began."""
    if all(int(entry["version"]) != version for entry in State.of(entries).promoted):
        return Passage("hold", "failed", _TAKEN_BACK)
    steps = [entry["step"] for entry in entries if int(entry.get("version", 0)) > version]
    return Passage("hold", "skipped", "the next promotion ended the watch") if "begun" in steps else None


def _decided(release: Release, ledger: Ledger, result: Promotion, held: Passage | None) -> Promotion:
    """The end of the watch: what stayed loaded is let go when the version has held; else what was before serves again,
    unless the version is gone already."""
    version, entry = result.version, ledger.state.promoted[-1]
    gone = f"version {version} serves no more, and no rollback did that: was it unloaded, or the server ended?"
    passage = held or Passage("hold", "failed", gone)
    ledger.note("gate", version=version, percent=WHOLE, **passage.to_dict())
    result = replace(result, passages=(*result.passages, passage))
    if passage.outcome == "passed":
        if entry.get("kept"):
            release.let_go(ledger, entry)
        return result
    if held is None:
        return replace(result, promoted=False, serves=tuple(release.server.versions(release.name)))
    back = take_back(release, entry)
    release.drop_candidate()
    ledger.note("rolled back", version=version, served=back)
    return replace(result, promoted=False, serves=tuple(back))


class _Run:
    """One promotion under the lock of the log."""

    def __init__(
        self,
        request: PromoteRequest,
        release: Release,
        ledger: Ledger,
        gates: Gates,
        candidate: Side,
        served: tuple[int, ...],
        console: Console,
    ) -> None:
        self._request, self._release, self._ledger, self._gates = request, release, ledger, gates
        self._candidate, self._served, self._console = candidate, served, console

    def begin(self) -> Promotion:
        """A new candidate: stage it and pass every gate; then all traffic, or a first share."""
        release, variant = self._release, self._candidate.variant
        release.drop_candidate()  # what a killed run left
        version = release.new_version(self._ledger)
        self._ledger.note("begun", version=version, candidate=self._candidate.label, served=list(self._served))
        with self._tidying(version):
            files, keep = variant.model_dir or release.model_dir, self._request.hold_s > 0
            release.stage(variant.config, self._config_source(), files, version, keep=keep)
            return self._after_gates(version, GATES, 0)

    def widen(self, trial: Entry) -> Promotion:
        """The candidate on trial: the gates that may answer otherwise by now, then a larger share, or all."""
        version = int(trial["version"])
        with self._tidying(version):
            return self._after_gates(version, _AGAIN, float(trial["percent"]))

    @contextmanager
    def _tidying(self, version: int) -> Iterator[None]:
        """Notes what ended the run early, and leaves the candidate loaded only while it is on trial."""
        try:
            yield
        except BaseException as error:
            self._ledger.note("stopped", version=version, at=type(error).__name__, why=str(error))
            raise
        finally:
            if self._ledger.state.kept:
                self._release.unload_candidate()
            elif self._ledger.state.share is None:
                self._release.drop_candidate()

    def _after_gates(self, version: int, names: tuple[str, ...], had: float) -> Promotion:
        passages = []
        for passage in self._gates.run(names, self._ledger.asked_to_end):
            self._ledger.note("gate", version=version, **passage.to_dict())
            passages.append(passage)
        if self._ledger.asked_to_end():
            return self._taken_back(version, passages)
        if passages[-1].outcome == "failed":
            return self._result(version, passages, had)
        if self._request.percent < WHOLE:
            return self._held(version, passages, had)
        return self._switched(version, passages)

    def _held(self, version: int, passages: list[Passage], had: float) -> Promotion:
        """Give the candidate its share and watch it; the share before comes back unless it holds, and none when a
        `rollback` ends it."""
        request, release, share = self._request, self._release, had
        self._ledger.note("trial begun", version=version, percent=request.percent)
        try:
            release.split(request.percent)
            hold = Hold(request.hold_s, request.demands.slo)
            held = watch(release, hold, request.percent, self._ledger.asked_to_end, self._console)
            if held is None:
                share = 0
                return self._taken_back(version, passages)
            self._ledger.note("gate", version=version, percent=request.percent, **held.to_dict())
            if held.outcome == "passed":
                share = request.percent
                self._ledger.note("trial", version=version, percent=share)
        finally:
            release.split(share)
        return self._result(version, [*passages, held], share)

    def _taken_back(self, version: int, passages: list[Passage]) -> Promotion:
        """A `rollback` waits: the trial is at its end."""
        self._release.split(0)
        self._ledger.note("trial ended", version=version, served=list(self._served))
        passages = [*passages, Passage("hold", "failed", _TAKEN_BACK)]
        return Promotion(self._release.name, version, tuple(passages), False, self._served, 0, self._ledger.path)

    def _switched(self, version: int, passages: list[Passage]) -> Promotion:
        try:
            kept = self._release.switch(self._ledger, version, keep=self._request.hold_s > 0)
        except Refused as refusal:
            failed = Passage("switch", "failed", f"Triton refuses it: {refusal.problems[0].what}")
            self._ledger.note("gate", version=version, **failed.to_dict())
            return self._result(version, [*passages, failed], 0)
        self._ledger.note("promoted", version=version, served=[version], kept=kept)
        if (hold_s := self._request.hold_s) > 0:
            old = ", ".join(map(str, self._served))
            rest = "stays loaded" if kept else "does not stay loaded: it has another config, or other files"
            self._console.info(f"version {version} serves, and is watched for {hold_s:g} s; version {old} {rest}")
        return self._result(version, passages, 0, promoted=True)

    def _result(self, version: int, passages: list[Passage], percent: float, *, promoted: bool = False) -> Promotion:
        serves = (version,) if promoted else self._served
        result = Promotion(self._release.name, version, tuple(passages), promoted, serves, percent, self._ledger.path)
        if not result.passed:
            self._ledger.note("stopped", version=version, at=passages[-1].gate, percent=percent)
        return result

    def _config_source(self) -> Path:
        """The file whose text, with its comments, the candidate's config is written from."""
        word, files = Path(self._candidate.label), self._candidate.variant.model_dir
        if word.is_file():
            return word
        return config_path(files) if word.is_dir() and files else self._release.config_file


def _trial(ledger: Ledger, release: Release, candidate: str | None) -> Entry | None:
    """The trial that is to be widened; None for a new candidate. Raises UsageError when the request does not fit."""
    state = ledger.state
    if state.switching:
        raise UsageError(
            "an earlier run was ended while it switched versions",
            where=release.model_dir,
            hint=f"make what was before serve again: `tritune rollback {shlex.quote(str(release.model_dir))}`",
        )
    if candidate is None and state.trial is None:
        raise UsageError(
            "nothing is on trial",
            where=release.model_dir,
            got=f"the watch of version {state.holding['version']} was cut off" if state.holding else None,
            expected="a candidate",
            hint="name it behind the model",
        )
    if candidate is not None and state.trial:
        raise UsageError(
            f"version {state.trial['version']} is on trial, with {state.trial['percent']:g} %",
            where=release.model_dir,
            hint="leave the candidate out to widen the trial, or end it with `tritune rollback`",
        )
    return state.trial


def _sides(release: Release, request: PromoteRequest) -> tuple[Side, Side]:
    """The model as it is, and the candidate. Raises UsageError when their requests differ."""
    config_name = request.demands.config_name
    base = Base(release.name, read_config(release.model_dir, config_name), release.model_dir)
    word = request.candidate or str(release.next_dir)
    if config_name and request.candidate and Path(word).is_dir():
        own = config_path(Path(word), config_name)
        word = str(own) if own.is_file() else word
    current, candidate = sides([CURRENT, word], base)
    return current, candidate
