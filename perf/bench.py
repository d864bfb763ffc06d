"""Runs of one variant of a model and others in common rounds, on one server, kept in the study. Layer: above analyzer,
study and target."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perf.client import encode
from perf.compare import Side, round_order
from perf.curve import ServiceCurve, read_curve, write_curve
from perf.measurement import Measurement
from perf.study import Record, Study, measurement_of
from perf.subject import CandidateFailed, Identified, Load, Round, Stage, Subject, group_name, members
from perf.transport import Transport
from tooling.errors import ExternalError, Refused

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer
    from perf.target import Target, Variant

_BY_ACCIDENT = ("hung", "crashed", "interrupted", "missing", "unreachable")
"""Outcomes that say nothing about the setting: they end its comparison now, and the next tuning tries again."""
_TRANSIENT = ("saturated", "unstable", "no_samples")
"""Outcomes a busy host can cause by chance: such a run is repeated once before it counts."""
_IN_VAIN = 3
"""After so many repeats that were disturbed too, the host is taken to be busy: repeating helps no more."""
_CLOCK_STEP_S, _MOST_CLOCK_STEPS = 0.05, 3
_WINDOWS_PER_RUN = 3 * 1.2
_RUN_EXTRA_S = 0.3
_REQUESTS_PER_WINDOW, _LATENCIES_PER_WINDOW = 15, 2
"""What a window holds where there is time for it."""
_LEAST_LATENCIES = 1
"""What it holds at least, so that there is an answer in it: perf_analyzer stretches a window by a fifth."""
_LONGEST_WINDOW_MS = 20_000
_WARM = 7
_WARM_SHARE, _LEAST_WARM_MS = 3, 100
"""A warm-up run has windows of such a share of the others'."""
_LOAD_S = 4.0
_LOAD_SHARE = 0.5
"""Of the time of the base, by itself and with a whole run: loads go side by side."""
CURVE_FILE = "curve.json"


class Bench:
    """Measures rounds; what the study holds already is returned from there, so a server starts only when needed.

    A context manager: leaving it leaves the target. `spent_s` adds up the time of all that was asked so far, whether
    measured now or recalled, so that decisions on a time budget are the same when a study is resumed; `measured`
    counts the runs made now.
    """

    def __init__(self, subject: Subject, study: Study, target: Target, analyzer: PerfAnalyzer) -> None:
        self._subject, self._study, self._target, self._analyzer = subject, study, target, analyzer
        self._stack = ExitStack()
        self._entered = self._settled = self._based = False
        self._beside: Sequence[Identified] = ()
        self._mark = time.monotonic()
        kinds = ("measurement", "failure", "window", "curve", "restart")
        self._known = {_key(r): r for r in study.records if r["record"] in kinds}
        self.window_ms = subject.window_ms
        self._walls: list[float] = []
        self._in_vain = 0
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
            return _WINDOWS_PER_RUN * self.window_ms / 1000 + _RUN_EXTRA_S
        return statistics.fmean(self._walls) + 0.1

    @property
    def load_s(self) -> float:
        """About how long loading a variant and warming it up takes, in seconds, going by the base."""
        return min(_LOAD_S, _LOAD_SHARE * self._known[_WINDOW]["spent_s"]) if self._settled else _LOAD_S

    def curve(self, measure: Callable[[], ServiceCurve]) -> ServiceCurve:
        """The service curve of the model on the entered target, kept beside the study. Raises what `measure` does."""
        path = self._study.directory / CURVE_FILE
        if _CURVE not in self._known or not path.is_file():
            self._enter()
            write_curve(measure(), path)
            self._keep({"record": "curve", "file": CURVE_FILE})
        self.spent_s += self._known[_CURVE]["spent_s"]
        return read_curve(path)

    def prepare(self, longest_run_s: float = math.inf) -> None:
        """Settle the window of every run: as asked, or longer for a slow model, found by warming the base up; not so
        long that a run takes more than `longest_run_s`, unless it would be without an answer."""
        if self._settled:
            return
        self._settled = True
        if _WINDOW not in self._known:
            self._find_window(longest_run_s)
        record = self._known[_WINDOW]
        self.window_ms = int(record["window_ms"])
        self.spent_s += record["spent_s"]

    def restart(self, candidate: Identified) -> Record | None:
        """Load a candidate anew: `load_s` until Triton says it is ready, then `first_ms` of one request and `warm_ms`,
        the median of the next few. None where the target cannot tell, and of a decoupled model. Raises Refused when
        Triton refuses it now.
        """
        known = self._known.get(_key({"record": "restart", "candidate": candidate.id}))
        if known is None:
            variant = self._subject.others[candidate.id]
            asked = self._subject.asked or variant.config
            if asked.model_transaction_policy.decoupled:  # one plain request has no stream for its answers
                return None
            self._serve(variant)
            served = self._target.reload(variant)
            if served is None:
                return None
            name, load_s = served
            request = _one_request(self._subject.load(candidate.id).input_file, name, self._subject)
            times_ms = self._target.ask(request, 1 + _WARM)
            figures = {"load_s": load_s, "first_ms": times_ms[0], "warm_ms": statistics.median(times_ms[1:])}
            known = self._keep({"record": "restart", "candidate": candidate.id, **figures})
        self.spent_s += known["spent_s"]
        return known

    def groups(self, number: int) -> dict[str, tuple[str, ...]]:
        """Those that the study compares together in this round, by the name of their group: the ids of its members."""
        about = {"record": "measurement", "stage": "paired", "pair": number, "side": "A"}
        found = (r for r in self._known.values() if about.items() <= r.items())
        return {record["candidate"]: members(record["candidate"]) for record in found}

    def holds(self, candidates: Sequence[Identified], number: int, group: str = "") -> bool:
        """Whether the study has this round of the comparison already, so that it costs nothing more."""
        runs = [(group or group_name(candidates), "A"), *((one.id, "B") for one in candidates)]
        identity = {"record": "measurement", "stage": "paired", "pair": number}
        return all(
            any(_key({**identity, "candidate": id_, "side": side, "attempt": n}) in self._known for n in (1, 2))
            for id_, side in runs
        )

    def pair(
        self, candidate: Identified, stage: Stage, number: int, load: Load | None = None
    ) -> tuple[Measurement, Measurement]:
        """A round of one: the runs of the base and the candidate. Raises CandidateFailed when the candidate's fails,
        and what `round` does."""
        found = self.round([candidate], stage, number, load)
        if found.base is None or found.failed:
            raise CandidateFailed(found.failed[candidate.id])
        return found.base, found.others[candidate.id]

    def round(
        self, candidates: Sequence[Identified], stage: Stage, number: int, load: Load | None = None, group: str = ""
    ) -> Round:
        """The round numbered from 0: the base and the candidates one after the other, under the subject's traffic or
        another. All are loaded meanwhile, where the target can. `group` is the name of the candidates' runs in common,
        by default made of theirs: the same in every round, though some leave.

        Raises Refused or ExternalError when the base's run fails; ExternalError when the server died or another one
        has its address.
        """
        self._beside = candidates
        points: dict[str, Measurement] = {}
        base: Measurement | None = None
        failed: dict[str, str] = {}
        for one in round_order([None, *candidates], number):
            try:
                if one is None:
                    base = self._measure(group or group_name(candidates), None, stage, number, load)
                else:
                    points[one.id] = self._measure(one.id, one, stage, number, load)
            except CandidateFailed as failure:
                if one:  # else all of them failed, and each is told of when its turn comes
                    failed[one.id] = str(failure)
        return Round(base, points, failed)

    def _measure(self, id_: str, other: Identified | None, stage: Stage, pair: int, load: Load | None) -> Measurement:
        """A run that counts, of another or of the base: the second one after a bad one that chance explains, and a calm
        one after a disturbed.

        Never the better of two: on a full host others get less where we get more, so the calmer is the faster one.
        """
        side: Side = "B" if other else "A"
        identity = {"candidate": id_, "stage": stage, "pair": pair, "side": side}
        load = load or self._subject.load(id_ if other else "")
        point = self._point(other, {**identity, "attempt": 1}, load)
        if point.status in _TRANSIENT or self._worth_repeating(point):
            again = self._point(other, {**identity, "attempt": 2}, load)
            self._in_vain = self._in_vain + 1 if again.disturbed else 0
            point = again if not point.ok or (again.ok and not again.disturbed) else point
        if point.ok:
            return point
        reason = f"{point.status}: {point.message}" if point.message else point.status
        if other:
            raise CandidateFailed(reason)
        kind = Refused if point.status == "saturated" else ExternalError
        what = f"{self._subject.base_name} cannot be measured: {reason}"
        raise kind(what, where=self._subject.model, hint=point.hint)

    def _worth_repeating(self, point: Measurement) -> bool:
        """Whether other programs disturbed the run, on a host that is calm at other times."""
        if not point.disturbed:
            self._in_vain = 0
        return point.ok and point.disturbed and self._in_vain < _IN_VAIN

    def _point(self, other: Identified | None, identity: Record, load: Load) -> Measurement:
        """A run from the study, or a new one."""
        record = self._known.get(_key({"record": "measurement", **identity})) or (other and self._failure(other))
        record = record or self._take(other, identity, load)
        if record["record"] == "failure":
            self.spent_s += record["spent_s"]
            raise CandidateFailed(record["reason"])
        point, spent_s = measurement_of(record, self._study.path)
        self.spent_s += spent_s
        self._walls.append(point.wall_s)
        return point

    def _take(self, other: Identified | None, identity: Record, load: Load) -> Record:
        """Load what is needed and measure. A failure of the base is noted but never recalled: it ends this
        tuning, and the next one tries again."""
        others = self._subject.others
        if not all(map(self._failure, self._beside)):
            if not self._based:
                self._serve(self._subject.base)
            self._target.hold(*(others[one.id] for one in self._beside if not self._failure(one)))
            for one in self._beside if self._target.side_by_side else filter(None, [other]):  # idle, equal for all
                self._load(one)
        if other and (failure := self._failure(other)):
            return failure
        if all(map(self._failure, self._beside)):
            raise CandidateFailed("none is left to compare with")
        name = self._serve(others[other.id] if other else self._subject.base)
        parts = ("stage", "candidate", "pair", "side", "attempt")
        where = "-".join(str(identity[part]) for part in parts).replace(" ", "_")
        point = self._run(name, where, load)
        self.measured += 1
        kept = other is not None and point.status not in _BY_ACCIDENT
        final = point.ok or kept or (identity["attempt"] == 1 and point.status in _TRANSIENT)
        record = {"record": "measurement" if final else "aborted", **identity}
        return self._keep({**record, "raw": f"raw/{where}", "measurement": point.to_dict()})

    def _load(self, other: Identified) -> None:
        """Load another; a refusal is kept as its failure."""
        if self._failure(other) is None:
            try:
                self._serve(self._subject.others[other.id])
            except Refused as refusal:
                reason = f"Triton refuses it: {refusal.problems[0].what}"
                self._keep({"record": "failure", "candidate": other.id, "reason": reason})

    def _failure(self, other: Identified) -> Record | None:
        """Why another cannot be loaded, if that is known."""
        return self._known.get(_key({"record": "failure", "candidate": other.id}))

    def _keep(self, record: Record) -> Record:
        """Write a record with the time since the last one; loading and warming up count for the run after them."""
        now = time.monotonic()
        kept = self._study.append({**record, "spent_s": round(now - self._mark, 3)})
        self._mark = now
        self._known[_key(kept)] = kept
        return kept

    def _run(self, name: str, where: str, load: Load, window_ms: int | None = None) -> Measurement:
        """One run; again when the system's clock, by which perf_analyzer measures, was set meanwhile."""
        target = self._target
        for _ in range(_MOST_CLOCK_STEPS):
            offset_s = time.time() - time.monotonic()
            target.scatter()
            asking = _Asking(target, name)
            point = self._analyzer.measure(
                name,
                target.url,
                load.workload,
                load.input_file,
                raw_dir=self._study.directory / "raw" / where,
                window_ms=window_ms or self.window_ms,
                transport=Transport(target.protocol),
                server_pid=target.pid,
                batching=self._subject.batching,
                statistics=asking.statistics,
                metrics=target.metrics,
            )
            if asking.found_dead:
                raise asking.found_dead
            target.check(name)
            if abs(time.time() - time.monotonic() - offset_s) < _CLOCK_STEP_S:
                return point
        raise ExternalError(
            "the system's clock is set again and again, so nothing can be measured",
            where=self._subject.model,
            hint="let the clock be slewed, not stepped",
        )

    def _enter(self) -> None:
        if not self._entered:
            self._stack.enter_context(self._target)
            self._entered = True

    def _serve(self, variant: Variant) -> str:
        """The name under which the variant answers, warm; the target is entered at the first use."""
        self._enter()
        if not self._based and variant != self._subject.base:
            self._serve(self._subject.base)
        self._based = True
        served = self._target.serve(variant)
        if served.fresh:
            window_ms = max(self.window_ms // _WARM_SHARE, _LEAST_WARM_MS)
            self._run(served.name, f"warm-up-{variant.id}", self._subject.load(variant.id), window_ms)
        return served.name

    def _find_window(self, longest_run_s: float) -> None:
        """The window, from the first run of the base, which warms it up and is discarded."""
        self._enter()
        name, _ = self._target.serve(self._subject.base)
        self._based = True
        point = self._run(name, "warm-up-window", self._subject.load())
        while point.status == "no_samples" and self.window_ms < _LONGEST_WINDOW_MS:
            self.window_ms = min(4 * self.window_ms, _LONGEST_WINDOW_MS)
            point = self._run(name, "warm-up-window", self._subject.load())
        self.window_ms = long_enough_ms(point, self.window_ms, longest_run_s)
        self._keep({"record": "window", "window_ms": self.window_ms})


def long_enough_ms(point: Measurement, asked_ms: int, longest_run_s: float = math.inf) -> int:
    """The window for runs like this one: at least as asked, with enough requests in it if a run may take that long."""
    if not (point.throughput_rps and point.avg_us):
        return asked_ms
    latency_s = point.avg_us / 1e6
    wished_s = max(_REQUESTS_PER_WINDOW / point.throughput_rps, _LATENCIES_PER_WINDOW * latency_s)
    paid_s = (longest_run_s - _RUN_EXTRA_S) / _WINDOWS_PER_RUN
    window_s = max(_LEAST_LATENCIES * latency_s, min(wished_s, paid_s))
    return min(max(asked_ms, round(1000 * window_s)), _LONGEST_WINDOW_MS)


class _Asking:
    """Questions to the target about one model; how it was found dead is told to the first question only, so kept."""

    def __init__(self, target: Target, name: str) -> None:
        self._target, self._name = target, name
        self.found_dead: ExternalError | None = None

    def statistics(self) -> dict[str, Any]:
        try:
            return self._target.stats(self._name)
        except ExternalError as error:
            self.found_dead = self.found_dead or error
            raise


def _one_request(input_file: Path, name: str, subject: Subject) -> bytes:
    """The first of the requests, of one row."""
    from tooling.config.proto import pb

    first = json.loads(input_file.read_text(encoding="utf-8"))["data"][0]
    step: Mapping[str, Any] = first[0] if isinstance(first, list) else first
    given = {key: value if isinstance(value, dict) else {"content": value} for key, value in step.items()}
    dims = {spec.name: list(spec.dims) for spec in (subject.asked or subject.base.config).input}
    stack = [1] if subject.batching else []
    tensors = {key: {**value, "shape": [*stack, *value.get("shape", dims[key])]} for key, value in given.items()}
    types = {spec.name: pb().DataType.Name(spec.data_type) for spec in (subject.asked or subject.base.config).input}
    return encode(name, tensors, types)


def _key(record: Record) -> tuple[Any, ...]:
    return (record["record"], *(record.get(name) for name in ("candidate", "stage", "pair", "side", "attempt")))


_WINDOW = _key({"record": "window"})
_CURVE = _key({"record": "curve"})
