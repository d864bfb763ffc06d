"""The rollout as a whole: stage, gates, trial, switch; and the one step back. Layer: above gates and trial."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.operands import CURRENT, Base, Side, sides
from perf.rollout.canary import CANARY_FILE
from perf.rollout.gates import GATES, Demands, Gates, Passage
from perf.rollout.ledger import LOG, Entry, Ledger, State, beside, read
from perf.rollout.release import Release
from perf.rollout.trial import Hold, failed_share, watch, watch_whole
from tooling.console import table
from tooling.errors import Refused, TrituneError, UsageError
from tooling.repository import absolute, config_path, read_config, writing
from tooling.server.running import RunningServer

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer
    from tooling.console import Console

WHOLE = 100.0
_ANSWER_S = 60.0
"""A server on full cores may take long to say what it serves; no switch is undone for that."""
_AGAIN = ("parity", "slo")
"""Gates that are passed again before a trial is widened."""


@dataclass(frozen=True, slots=True)
class PromoteRequest:
    """What to promote into which served model: `candidate` is a model directory, a config file or settings, None for
    the one that is on trial. Below 100 `percent` it goes on trial, and must hold for `hold_s`. So must a version that
    gets all requests: as long the one before stays loaded where it can; 0 lets it go at once."""

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
        serves = ", ".join(map(str, self.serves))
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
    widened in vain goes on with the share it had. Ended while the new version is watched, that one serves on, and the
    old one stays loaded until the next promotion or rollback. Raises UsageError for what cannot be promoted,
    MissingError and ExternalError as the server does.
    """
    release = open_release(request.model_dir, request.url, request.demands.config_name)
    release.served()
    with Ledger(release.model_dir) as ledger:
        trial = _trial(ledger, release, request.candidate)
        if left := ledger.state.kept:
            release.let_go(ledger, left)
        served, failed_before = tuple(release.served()), failed_share(release)
        current, candidate = _sides(release, request)
        gates = Gates(release, current, candidate, request.demands, analyzer, console)
        run = _Run(request, release, ledger, gates, candidate, served, console)
        result = run.widen(trial) if trial else run.begin()
        kept = ledger.state.kept if result.promoted else None
    if result.promoted:
        _keep_answers(release, gates, result.version, console)
    return _watched(request, release, result, failed_before, console) if kept else result


def _after_switch(release: Release, console: Console) -> Ledger:
    """The log, once a switch of versions that another process makes just now has come to its end."""
    return Ledger(release.model_dir, waiting=lambda: console.info("waiting for the switch that is under way"))


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
    """Watch the new version, with the log free for `rollback`; the old one is let go when it has held, and serves again
    when it has not."""
    version, hold = result.version, Hold(request.hold_s, request.demands.slo)
    console.info(f"version {version} serves, and the one before stays loaded for {hold.seconds:g} s")
    held = watch_whole(release, version, hold, failed_before, console)
    with _after_switch(release, console) as ledger:
        entry = ledger.state.kept
        if held is None or entry is None or int(entry["version"]) != version:
            held = Passage("hold", "failed", "it was taken back meanwhile")
            return replace(
                result, passages=(*result.passages, held), promoted=False, serves=tuple(release.served()), percent=0
            )
        ledger.note("gate", version=version, percent=WHOLE, **held.to_dict())
        result = replace(result, passages=(*result.passages, held))
        if held.outcome == "passed":
            release.let_go(ledger, entry)
            return result
        serves = _take_back(release, entry)
        release.drop_candidate()
        ledger.note("rolled back", version=version, served=serves)
    return replace(result, promoted=False, serves=tuple(serves))


def open_release(model_dir: Path, url: str, config_name: str | None) -> Release:
    """The release of a model directory on a running server. Raises UsageError unless models may be loaded there."""
    model_dir = absolute(model_dir)
    if not model_dir.is_dir():
        raise UsageError("not a model directory", where=model_dir, expected="REPO/NAME of the served repository")
    server = RunningServer(url, _ANSWER_S)
    server.identity()
    server.require_control("server not in explicit mode: it loads no new version while it runs", "")
    return Release(model_dir, server, config_name)


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
        kept = False
        try:
            release.stage(variant.config, self._config_source(), variant.model_dir or release.model_dir, version)
            promotion = self._after_gates(version, GATES, 0)
            kept = promotion.passed and not promotion.promoted
            return promotion
        except BaseException as error:
            self._ledger.note("stopped", version=version, at=type(error).__name__, why=str(error))
            raise
        finally:
            if self._ledger.state.kept:
                release.unload_candidate()
            elif not kept:
                release.drop_candidate()

    def widen(self, trial: Entry) -> Promotion:
        """The candidate on trial: the gates that may answer otherwise by now, then a larger share, or all."""
        promotion = self._after_gates(int(trial["version"]), _AGAIN, float(trial["percent"]))
        if promotion.promoted and self._ledger.state.kept:
            self._release.unload_candidate()
        elif promotion.promoted:
            self._release.drop_candidate()
        return promotion

    def _after_gates(self, version: int, names: tuple[str, ...], had: float) -> Promotion:
        passages = self._gates.run(names)
        for passage in passages:
            self._ledger.note("gate", version=version, **passage.to_dict())
        if passages[-1].outcome == "failed":
            return self._result(version, passages, had)
        if self._request.percent < WHOLE:
            return self._held(version, passages, had)
        return self._switched(version, passages, had)

    def _held(self, version: int, passages: list[Passage], had: float) -> Promotion:
        """Give the candidate its share and watch it; the share before comes back unless it holds."""
        request, release, share = self._request, self._release, had
        try:
            release.split(request.percent)
            held = watch(release, Hold(request.hold_s, request.demands.slo), request.percent, self._console)
            self._ledger.note("gate", version=version, percent=request.percent, **held.to_dict())
            if held.outcome == "passed":
                share = request.percent
                self._ledger.note("trial", version=version, percent=share)
        finally:
            release.split(share)
        return self._result(version, [*passages, held], share)

    def _switched(self, version: int, passages: list[Passage], had: float) -> Promotion:
        try:
            kept = self._release.switch(self._ledger, version, keep=self._request.hold_s > 0)
        except Refused as refusal:
            failed = Passage("switch", "failed", f"Triton refuses it: {refusal.problems[0].what}")
            self._ledger.note("gate", version=version, **failed.to_dict())
            return self._result(version, [*passages, failed], had)
        self._ledger.note("promoted", version=version, served=[version], kept=kept)
        old = ", ".join(map(str, self._served))
        if self._request.hold_s > 0 and not kept:
            self._console.info(f"version {old} does not stay loaded: it has another config, or other files")
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


def rollback(model_dir: Path, url: str, console: Console) -> Rollback:
    """End the trial that is under way, else take the last promotion back; one that switches versions just now is waited
    for. Raises UsageError when there is neither, or when another process took it back first; Refused when Triton no
    longer takes the old version, and the newer one then goes on."""
    release, started = open_release(model_dir, url, None), time.monotonic()
    log = beside(release.model_dir, LOG)
    before = State.of(read(log))
    meant = before.newest if log.exists() else _newest(before, release)  # which leaves no log where there was none
    with _after_switch(release, console) as ledger:
        state = ledger.state
        entry = _newest(state, release)
        if meant is None or entry["version"] != meant["version"]:
            raise UsageError(
                "another rollout came first, and this one would take back what it was not asked to",
                where=ledger.path,
                got=f"version {entry['version']} is the newest",
                expected=f"{meant['version'] if meant else 'none'}, as when this began",
                hint="look at the end of the log, and go on from there",
            )
        if entry is state.trial:
            ended, step, serves = "trial", "trial ended", release.served()
        else:
            ended, step = ("switch", "switch undone") if state.switching else ("promotion", "rolled back")
            serves = release.take_back(entry) if state.switching else _take_back(release, entry)
        release.drop_candidate()
        ledger.note(step, version=entry["version"], served=serves)
    seconds = round(time.monotonic() - started, 2)
    return Rollback(release.name, ended, int(entry["version"]), tuple(serves), seconds, ledger.path)


def _newest(state: State, release: Release) -> Entry:
    """The step that a rollback takes back. Raises UsageError when there is none."""
    if entry := state.newest:
        return entry
    log = beside(release.model_dir, LOG)
    raise UsageError("there is nothing to take back", where=log, expected="an earlier `tritune promote`")


def _take_back(release: Release, entry: Entry) -> list[int]:
    """Serve what served before this promotion; the canary's answers are those of the version that goes, and go too."""
    serves = release.take_back(entry)
    path = beside(release.model_dir, CANARY_FILE)
    with writing(path):
        path.unlink(missing_ok=True)
    return serves


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
            "nothing is on trial", where=release.model_dir, expected="a candidate", hint="name it behind the model"
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
