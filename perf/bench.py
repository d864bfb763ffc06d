"""Paired runs of the current config and a candidate, side by side on one server, kept in the study. Layer: above
analyzer and study."""

from __future__ import annotations

import math
import statistics
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from perf.compare import Side, pair_order
from perf.grid import Candidate
from perf.measurement import Measurement
from perf.study import Record, Study, measurement_of
from tooling.config.knobs import apply
from tooling.errors import ExternalError, Refused

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer
    from perf.workload import Workload
    from tooling.config.proto import ModelConfig
    from tooling.runtime import Runtime
    from tooling.server import EmbeddedServer

Stage = Literal["screen", "paired"]

_BY_ACCIDENT = ("hung", "crashed", "interrupted", "missing", "unreachable")
"""Outcomes that say nothing about the setting: they end its comparison now, and the next tuning tries again."""
_TRANSIENT = ("saturated", "unstable", "no_samples")
"""Outcomes a busy host can cause by chance: such a run is repeated once before it counts."""
_WINDOWS_PER_RUN = 3 * 1.2
_REQUESTS_PER_WINDOW = 15
_LATENCIES_PER_WINDOW = 2
_LONGEST_WINDOW_MS = 20_000


class CandidateFailed(Exception):
    """A candidate that Triton refused or that could not be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: a model with its current config, the traffic, and the window asked for."""

    model_dir: Path
    config: ModelConfig
    workload: Workload
    input_file: Path
    window_ms: int


class Bench:
    """Measures pairs; what the study holds already is returned from there, so a server starts only when needed.

    A context manager: leaving it ends the server. `spent_s` adds up the time of all that was asked so far, whether
    measured now or recalled, so that decisions on a time budget are the same when a study is resumed; `measured`
    counts the runs made now.
    """

    def __init__(self, subject: Subject, study: Study, runtime: Runtime, analyzer: PerfAnalyzer) -> None:
        self._subject, self._study, self._runtime, self._analyzer = subject, study, runtime, analyzer
        self._stack = ExitStack()
        self._server: EmbeddedServer | None = None
        self._loaded: Candidate | None = None
        self._mark = time.monotonic()
        self._known = {_key(r): r for r in study.records if r["record"] in ("measurement", "failure", "window")}
        self.window_ms = subject.window_ms
        self._walls: list[float] = []
        self.spent_s = 0.0
        self.measured = 0

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def run_s(self) -> float:
        """About how long one run takes, in seconds, going by those so far."""
        if not self._walls:
            return _WINDOWS_PER_RUN * self.window_ms / 1000 + 0.3
        return statistics.fmean(self._walls) + 0.1

    def prepare(self) -> None:
        """Settle the window of every run: as asked, or longer for a slow model, found by warming the default up."""
        if _WINDOW not in self._known:
            self._serving()
        record = self._known[_WINDOW]
        self.window_ms = int(record["window_ms"])
        self.spent_s += record["spent_s"]

    def holds(self, candidate: Candidate, number: int) -> bool:
        """Whether the study has this pair of the comparison already, so that it costs nothing more."""
        identity = {"record": "measurement", "candidate": candidate.id, "stage": "paired", "pair": number}
        return all(
            any(_key({**identity, "side": side, "attempt": attempt}) in self._known for attempt in (1, 2))
            for side in ("A", "B")
        )

    def pair(self, candidate: Candidate, stage: Stage, number: int) -> tuple[Measurement, Measurement]:
        """The pair of runs numbered from 0: the current config's and the candidate's.

        Raises CandidateFailed when the candidate's fails; Refused or ExternalError when the current config's does;
        ExternalError when the server died.
        """
        points = {side: self._measure(candidate, stage, number, side) for side in pair_order(number)}
        return points["A"], points["B"]

    def _measure(self, candidate: Candidate, stage: Stage, pair: int, side: Side) -> Measurement:
        identity = {"candidate": candidate.id, "stage": stage, "pair": pair, "side": side}
        point = self._point(candidate, {**identity, "attempt": 1})
        if point.status in _TRANSIENT:
            point = self._point(candidate, {**identity, "attempt": 2})
        if point.ok:
            return point
        reason = f"{point.status}: {point.message}" if point.message else point.status
        if side == "B":
            raise CandidateFailed(reason)
        kind = Refused if point.status == "saturated" else ExternalError
        raise kind(f"the current config cannot be measured: {reason}", where=self._name, hint=point.hint)

    def _point(self, candidate: Candidate, identity: Record) -> Measurement:
        """A run from the study, or a new one."""
        measured, failed = {"record": "measurement", **identity}, {"record": "failure", "candidate": candidate.id}
        record = self._known.get(_key(measured)) or self._known.get(_key(failed)) or self._take(candidate, identity)
        if record["record"] == "failure":
            self.spent_s += record["spent_s"]
            raise CandidateFailed(record["reason"])
        point, spent_s = measurement_of(record, self._study.path)
        self.spent_s += spent_s
        self._walls.append(point.wall_s)
        return point

    def _take(self, candidate: Candidate, identity: Record) -> Record:
        """Load what is needed and measure. A failure of the current config is noted but never recalled: it ends this
        tuning, and the next one tries again."""
        try:
            self._with(candidate)
        except Refused as refusal:
            reason = f"Triton refuses it: {refusal.problems[0].what}"
            return self._keep({"record": "failure", "candidate": candidate.id, "reason": reason})
        ours, first = identity["side"] == "B", identity["attempt"] == 1
        where = "-".join(str(identity[part]) for part in ("stage", "candidate", "pair", "side", "attempt"))
        point = self._run(self._alias if ours else self._name, where)
        self.measured += 1
        kept = ours and point.status not in _BY_ACCIDENT
        final = point.ok or kept or (first and point.status in _TRANSIENT)
        record = {"record": "measurement" if final else "aborted", **identity}
        return self._keep({**record, "raw": f"raw/{where}", "measurement": point.to_dict()})

    def _keep(self, record: Record) -> Record:
        """Write a record with the time since the last one; loading and warming up count for the run after them."""
        now = time.monotonic()
        kept = self._study.append({**record, "spent_s": round(now - self._mark, 3)})
        self._mark = now
        self._known[_key(kept)] = kept
        return kept

    @property
    def _name(self) -> str:
        return self._subject.model_dir.name

    @property
    def _alias(self) -> str:
        return f"{self._name}.candidate"

    def _run(self, name: str, where: str) -> Measurement:
        server, subject = self._serving(), self._subject
        point = self._analyzer.measure(
            name,
            server.grpc_url,
            subject.workload,
            subject.input_file,
            raw_dir=self._study.directory / "raw" / where,
            window_ms=self.window_ms,
            server_pid=server.pid,
        )
        if not point.ok:
            with suppress(Refused):  # a model that is gone is the setting's fault; a server that is gone raises
                server.stats(name)
        return point

    def _serving(self) -> EmbeddedServer:
        """The server with the current config loaded and warm; started at the first use."""
        if self._server is None:
            from tooling.server import EmbeddedServer

            server = EmbeddedServer(self._subject.model_dir.parent, self._runtime)
            self._server = self._stack.enter_context(server)
            server.load(self._name, self._subject.config)
            self._warm_up_current()
            server.alias(self._alias, self._subject.model_dir)
        return self._server

    def _with(self, candidate: Candidate) -> None:
        """Load the candidate beside the current config and warm it up, in place of the one before. Raises Refused."""
        server = self._serving()
        if self._loaded == candidate:
            return
        if self._loaded:
            self._loaded = None
            server.unload(self._alias)
        config = apply(candidate.knobs, self._subject.config)
        config.name = self._alias
        server.load(self._alias, config)
        self._loaded = candidate
        self._run(self._alias, f"warm-up-{candidate.id}")

    def _warm_up_current(self) -> None:
        """One discarded run; the first in a study also finds a window that holds enough requests of a slow model."""
        point = self._run(self._name, "warm-up-default")
        if _WINDOW in self._known:
            return
        while point.status == "no_samples" and self.window_ms < _LONGEST_WINDOW_MS:
            self.window_ms = min(4 * self.window_ms, _LONGEST_WINDOW_MS)
            point = self._run(self._name, "warm-up-default")
        if point.throughput_rps and point.avg_us:
            enough_s = max(_REQUESTS_PER_WINDOW / point.throughput_rps, _LATENCIES_PER_WINDOW * point.avg_us / 1e6)
            self.window_ms = min(max(self.window_ms, math.ceil(1000 * enough_s)), _LONGEST_WINDOW_MS)
        self._keep({"record": "window", "window_ms": self.window_ms})


def _key(record: Record) -> tuple[Any, ...]:
    return (record["record"], *(record.get(name) for name in ("candidate", "stage", "pair", "side", "attempt")))


_WINDOW = _key({"record": "window"})
