"""What a candidate must pass before it serves: check, load, parity, Slo, and pairs against the current one. Layer:
above release."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perf.ab import CompareRequest, Comparison, compare
from perf.input_data import write_input_data
from perf.lengths import fit_to_model, traffic_lengths
from perf.measurement import Measurement
from perf.operands import Base, Side, request_signature
from perf.preflight import fitted
from perf.rollout.canary import Canary, Tensors, difference
from perf.rollout.pair import Pair
from perf.slo import Goal, Slo
from perf.transport import Transport
from perf.trial import together
from perf.workload import Workload
from tooling.errors import ExternalError, Refused
from tooling.repository import require_writable

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer
    from perf.rollout.release import Release
    from tooling.console import Console

GATES = ("check", "load", "parity", "slo", "ab")
"""In the order in which they are passed."""
MAX_ERROR = 0.02
_CANARY_STEPS = 16
_SLO_RUNS, _SLO_WINDOW_MS, _LONGEST_WINDOW_MS = 3, 600, 20_000
"""The window of a run, and how far it grows for a model that answers nothing in it."""
_BURST, _BURST_SHARE = 8, 0.5
"""The second comparison sends as many at a time, or as many as there are clients, at this share of the throughput."""
_BROKEN = ("hung", "crashed", "interrupted", "missing", "unreachable")

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Passage:
    """What one gate said: `why` in one sentence, `evidence` as plain JSON values."""

    gate: str
    outcome: Outcome
    why: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"gate": self.gate, "outcome": self.outcome, "why": self.why, **self.evidence}


@dataclass(frozen=True, slots=True)
class Demands:
    """What the gates ask: the traffic, the limits, the canary requests with their answers if the current ones are not
    the reference, how far numbers may be off, seconds for each comparison, and the gates that are left out."""

    workload: Workload
    slo: Slo = field(default_factory=Slo)
    canary: Path | None = None
    max_error: float = MAX_ERROR
    budget_s: float = 60
    skip: Sequence[str] = ()
    config_name: str | None = None
    studies: Path = Path(".tritune") / "studies"
    tokenizer_dir: Path | None = None
    vocab_size: int | None = None


class Gates:
    """The gates for the candidate of a release, staged but not loaded yet."""

    def __init__(
        self,
        release: Release,
        current: Side,
        candidate: Side,
        demands: Demands,
        analyzer: Callable[[], PerfAnalyzer],
        console: Console,
    ) -> None:
        self._release, self._current, self._candidate = release, current, candidate
        self._demands, self._analyzer, self._console = demands, analyzer, console
        self._base = Base(release.name, current.variant.config, release.model_dir)
        self._canary: Canary | None = None
        if demands.canary:
            self._requests()  # what is wrong with the file is told before anything is done
        measuring = {"ab", "slo"} if demands.slo.terms else {"ab"}
        if demands.canary is None or not measuring <= set(demands.skip):
            require_writable(self._scratch / "slo.json")

    def run(self, gates: Sequence[str], ended: Callable[[], bool]) -> Iterator[Passage]:
        """Pass them in order, each told when it is passed; the first that fails is the last, as is the one after which
        somebody has `ended` it."""
        with self._console.progress("gates", len(gates)) as progress:
            for name in gates:
                passage = self._skipped(name) or getattr(self, f"_{name}")()
                progress.step(f"{name}: {passage.outcome}")
                yield passage
                if passage.outcome == "failed" or ended():
                    break

    def answers(self) -> list[Tensors]:
        """What the served model answers to the canary requests now."""
        return self._requests().ask(self._release.server.url, self._release.name, self._current.variant.config)

    def keep(self, path: Path, answers: Sequence[Tensors]) -> None:
        """Write the canary requests with these answers."""
        self._requests().write(path, answers)

    def _skipped(self, name: str) -> Passage | None:
        if name in self._demands.skip:
            return Passage(name, "skipped", "left out by --skip")
        if name == "slo" and not self._demands.slo.terms:
            return Passage(name, "skipped", "no --slo was given")
        return None

    def _check(self) -> Passage:
        from tooling.check.runner import check
        from tooling.check.target import Target
        from tooling.releases import current_release

        target = Target(current_release(), config_name=self._demands.config_name)
        report = check(self._release.next_dir.parent, target, [self._release.next_name])
        errors = [f"[{f.rule.id}] {f.message}" for f in report.findings if f.severity.value == "error"]
        others = len(report.findings) - len(errors)
        if errors:
            return Passage("check", "failed", "; ".join(errors), {"errors": errors})
        return Passage("check", "passed", f"nothing that Triton would refuse, {others} other findings")

    def _load(self) -> Passage:
        try:
            self._release.server.load(self._release.next_name)
        except Refused as refusal:
            why = f"Triton refuses it: {refusal.problems[0].what}"
            if "failed to poll from model repository" in why:  # it says no more when there is no such directory
                why += f"; does the server at {self._release.server.url} serve {self._release.model_dir.parent}?"
            return Passage("load", "failed", why)
        return Passage("load", "passed", f"loaded as `{self._release.next_name}`")

    def _parity(self) -> Passage:
        """The canary's own answers, or those of the current model, against the candidate's."""
        release, limit = self._release, self._demands.max_error
        canary = self._requests()
        try:
            got = canary.ask(release.server.url, release.next_name, self._candidate.variant.config)
        except Refused as refusal:
            return Passage("parity", "failed", f"a request failed: {refusal.problems[0].what}")
        try:
            expected = canary.answers or self.answers()
        except Refused as refusal:
            why = f"the current version fails a request: {refusal.problems[0].what}; give the right answers by --canary"
            return Passage("parity", "failed", why)
        found = difference(expected, got)
        of = "the answers of the canary file" if canary.answers else "those of the current version"
        why = f"{len(got)} answers, {found.text(limit, of)}"
        outcome: Outcome = "passed" if found.error <= limit else "failed"
        return Passage("parity", outcome, why, {"error": min(found.error, 1e30), "where": found.where})

    def _slo(self) -> Passage:
        """The candidate by itself, under the workload: three runs after those that warm it up and find a window long
        enough, taken together."""
        window_ms = _SLO_WINDOW_MS
        while self._measured(0, window_ms).status == "no_samples" and window_ms < _LONGEST_WINDOW_MS:
            window_ms = min(4 * window_ms, _LONGEST_WINDOW_MS)
        points = [self._measured(number, window_ms) for number in range(1, _SLO_RUNS + 1)]
        bad = next((point for point in points if not point.ok), None)
        if bad is not None:
            return Passage("slo", "failed", f"{bad.status}: {bad.message}")
        judgements = self._demands.slo.judge(together(points))
        outcome: Outcome = "passed" if self._demands.slo.met(together(points)) else "failed"
        return Passage("slo", outcome, "; ".join(map(str, judgements)), {"figures": together(points)})

    def _measured(self, number: int, window_ms: int) -> Measurement:
        release, workload = self._release, self._workload()
        point = self._analyzer().measure(
            release.next_name,
            release.server.url,
            workload,
            self._input_file("slo.json", workload),
            raw_dir=self._scratch / f"slo-{number}",
            window_ms=window_ms,
            transport=Transport("http"),
            batching=self._batching,
            statistics=lambda: release.server.stats(release.next_name),
        )
        if point.status in _BROKEN:
            raise ExternalError(f"it cannot be measured: {point.status}", got=point.message, hint=point.hint)
        return point

    def _ab(self) -> Passage:
        """Against the current version in pairs, under the workload and then in bursts: not worse in either."""
        workload, goal = self._demands.workload, Goal("throughput")
        if workload.mode == "request_rate":
            goal = Goal("p95")
        first = self._compared(workload, goal)
        passage = _judged("under the workload", first)
        if passage.outcome == "failed" or workload.burst > 1 or workload.timestamps:
            return passage
        second = _judged("in bursts", self._compared(_bursts(workload, first), Goal("p95")))
        evidence = {**passage.evidence, "bursts": second.evidence}
        return Passage("ab", second.outcome, f"{passage.why}; {second.why}", evidence)

    def _compared(self, workload: Workload, goal: Goal) -> Comparison:
        release, demands = self._release, self._demands
        return compare(
            CompareRequest(
                self._base,
                [self._current, self._candidate],
                workload,
                goal,
                demands.budget_s,
                studies=demands.studies,
                tokenizer_dir=demands.tokenizer_dir,
                vocab_size=demands.vocab_size,
            ),
            target=Pair(release.server, release.name, release.next_name),
            analyzer=self._analyzer(),
            console=self._console,
        )

    def _requests(self) -> Canary:
        """The user's canary requests, or some of the workload's."""
        if self._canary is None:
            path = self._demands.canary
            if path is None:
                path = self._input_file("canary.json", self._workload())
            canary = Canary.read(path, self._current.variant.config)
            self._canary = canary if self._demands.canary else replace(canary, steps=canary.steps[:_CANARY_STEPS])
        return self._canary

    def _input_file(self, name: str, workload: Workload) -> Path:
        signature = request_signature(self._base)
        tokenizer, size = self._tokenizer, self._demands.vocab_size
        path = self._scratch / name
        return write_input_data(path, signature, workload, tokenizer, batching=self._batching, vocab_size=size).path

    def _workload(self) -> Workload:
        """The traffic with lengths, where the model has a free axis and none are given."""
        workload, model_dir = self._demands.workload, self._release.model_dir
        signature = request_signature(self._base)
        asked, texts = workload.lengths, workload.texts
        found = traffic_lengths(asked, signature, self._tokenizer, batching=self._batching, texts=texts)
        lengths = fit_to_model(found, model_dir, asked=bool(asked))
        return fitted(workload.model_copy(update={"lengths": lengths}), self._current.variant.config)

    @property
    def _tokenizer(self) -> Path:
        return self._demands.tokenizer_dir or self._release.model_dir / "tokenizer"

    @property
    def _batching(self) -> bool:
        return int(self._current.variant.config.max_batch_size) > 0

    @property
    def _scratch(self) -> Path:
        """Where raw results of this release go."""
        return self._demands.studies / f"{self._release.name}-rollout"


def _judged(where: str, found: Comparison) -> Passage:
    one = found.compared[0]
    evidence = {"study": str(found.study), "verdict": one.verdict.to_dict() if one.verdict else None}
    if found.too_busy or not (one.decided or one.failed):
        return Passage(
            "ab", "failed", f"{where} nothing was decided: {found.conclusions[0]} {' '.join(found.notes)}", evidence
        )
    worse = one.failed or (one.verdict and one.verdict.outcome == "worse")
    return Passage("ab", "failed" if worse else "passed", f"{where}: {found.conclusions[0]}", evidence)


def _bursts(workload: Workload, found: Comparison) -> Workload:
    """The same traffic in bursts, at a rate that both can answer."""
    figures = found.compared[0].against
    rate = workload.request_rate or _BURST_SHARE * (figures.throughput_rps.middle if figures else 1.0)
    size = max(_BURST, workload.concurrency or 0)
    change: dict[str, Any] = {"concurrency": None, "request_rate": round(rate, 3), "burst": size}
    return workload.model_copy(update=change)
