"""Compare variants of a model with the first of them, in rounds on one server, within a time budget. Layer: above bench
and operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.bench import Bench
from perf.compare import LOOKS, Verdict, settle
from perf.contest import Contender, Contest
from perf.footprint import free_main_bytes, packed, taken_bytes
from perf.grid import BASE
from perf.input_data import write_input_data
from perf.lengths import fit_to_model, traffic_lengths
from perf.load import window_ms as planned_window_ms
from perf.measurement import ENOUGH_FOR_P99, FOREIGN_CORES, Measurement
from perf.operands import Base, Side, request_signature
from perf.preflight import cache_cautions, fitted, notes
from perf.provenance import conditions, session
from perf.result import figures_of
from perf.slo import Goal
from perf.study import Record, Study, resumable, study_dir
from perf.subject import Round, Subject
from perf.target import RunningTarget, Target
from perf.trial import Figures
from perf.workload import Workload
from tooling.console import Console, table
from tooling.repository import usable_cores

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer

_LOAD_S = 4.0
"""About what loading a variant and warming it up takes; only decides what still fits into the budget."""
_MOST_FOREIGN = 0.5
_WINDOW_MS = {"throughput": 300, "avg": 300, "p50": 300, "p90": 400, "p95": 600, "p99": 1_000}


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """Which sides to compare, the first with each of the others, under which traffic, by what, and for how long."""

    base: Base
    sides: Sequence[Side]
    workload: Workload
    objective: Goal = field(default_factory=lambda: Goal("throughput"))
    budget_s: float = 60
    study: Path | None = None
    studies: Path = Path(".tritune") / "studies"
    tokenizer_dir: Path | None = None
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """What came out for one side. `verdict` is None when it `failed` or when nothing was decided; `against` are the
    figures of A in the same pairs."""

    id: str
    label: str
    identical: bool
    verdict: Verdict | None = None
    failed: str | None = None
    figures: Figures | None = None
    against: Figures | None = None

    @property
    def decided(self) -> bool:
        """Whether there is an answer; identical sides must tie, else the host is too restless for any."""
        if self.verdict is None or self.verdict.word.startswith("undecided"):
            return False
        return not self.identical or self.verdict.outcome == "tie"

    def conclusion(self, *, too_busy: bool = False) -> str:
        """The answer in one sentence; on a host that is `too_busy` nothing wins."""
        if self.failed:
            return f"{self.id} failed: {self.failed}."
        if self.verdict is None:
            return f"{self.id} was not compared within the time budget: give a larger --budget."
        found = f"{self.verdict} in {self.verdict.pairs} pairs"
        if self.identical and self.verdict.outcome != "tie":
            return f"{self.id} is identical with A and yet {self.verdict.word}, {found}: this host is too restless."
        if self.identical:
            return f"{self.id} is identical with A: {self.verdict.word}, {found}. So much is noise here."
        if self.verdict.outcome == "tie":
            return f"{self.id} against A: {self.verdict.word}, {found}."
        if too_busy:
            return f"{self.id} looks {self.verdict.outcome} than A, {found}, and may be so by the other programs alone."
        winner = self.id if self.verdict.outcome == "better" else "A"
        return f"{winner} wins: {self.id} is {self.verdict.outcome} than A, {found}."


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole answer; `runs` counts the measurements used, `disturbed` those in which other programs took part."""

    model: str
    workload: str
    objective: str
    a: str
    compared: tuple[Compared, ...]
    runs: int
    disturbed: int
    foreign_cores: float | None
    cores: int
    spent_s: float
    study: Path

    @property
    def too_busy(self) -> bool:
        """Whether others used most of the host: then equal sides come out different more often than the rule allows."""
        return (self.foreign_cores or 0) > _MOST_FOREIGN * self.cores

    @property
    def decided(self) -> bool:
        return not self.too_busy and all(one.decided for one in self.compared)

    def text(self) -> str:
        """The table, what limits it, and one sentence a side."""
        rows = []
        first = next((one.against for one in self.compared if one.against), None)
        rows.append((f"A   {self.a}", *figures_of(first), "", ""))
        for one in self.compared:
            word = one.verdict.word if one.verdict else "failed" if one.failed else "not compared"
            rows.append((f"{one.id:<3} {one.label}", *figures_of(one.figures), str(one.verdict or ""), word))
        head = f"{self.model} · {self.workload} · {self.objective} · {self.runs} runs in {self.spent_s:.0f} s"
        shown = table(("", "requests/s", "p50 ms", "p99 ms", "against A", "verdict"), rows)
        legend = (
            "Figures: median [lowest–highest] of the runs, p50 and p99 of all their requests; ratios: how many times "
            "better, with a 99.3 % interval."
        )
        return "\n".join([head, "", shown, "", legend, *self.notes, "", *self.conclusions])

    @property
    def winner(self) -> str | None:
        """The id of the best side that is better than A, of A when one is worse and none better; None for ties."""
        if self.too_busy:
            return None
        better = [one for one in self.compared if one.verdict and one.verdict.outcome == "better" and not one.identical]
        if better:
            return max(better, key=lambda one: one.verdict.ratio if one.verdict else 0).id
        worse = any(one.verdict and one.verdict.outcome == "worse" and not one.identical for one in self.compared)
        return BASE if worse else None

    @property
    def conclusions(self) -> list[str]:
        return [one.conclusion(too_busy=self.too_busy) for one in self.compared]

    @property
    def notes(self) -> list[str]:
        """What limits the answer."""
        notes = []
        if self.too_busy:
            notes.append(
                f"No winner is named: other programs used {self.foreign_cores:.1f} of {self.cores} cores, and on so "
                "busy a host two equal configurations come out different. Measure again when it is calmer."
            )
        elif self.foreign_cores is None and self.runs:
            notes.append("How busy other programs kept the server's host is not known.")
        elif self.foreign_cores is not None and self.disturbed:
            notes.append(
                f"Other programs used {FOREIGN_CORES:g} cores or more during {self.disturbed} of {self.runs} runs, "
                f"{self.foreign_cores:.1f} on average: trust the ratios, which are of paired runs, not the figures."
            )
        if "p99" in self.objective:
            fewest = min((one.figures.requests for one in self.compared if one.figures), default=0)
            if fewest < ENOUGH_FOR_P99:
                notes.append(f"p99 stands on {fewest} requests a side; {ENOUGH_FOR_P99} are needed for a steady one.")
        return notes

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "study": str(self.study),
            "decided": self.decided,
            "winner": self.winner,
            "too_busy": self.too_busy,
            "notes": self.notes,
            "compared": [
                {**asdict(one), "word": one.verdict.word if one.verdict else None, "conclusion": said}
                for one, said in zip(self.compared, self.conclusions, strict=True)
            ],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], study: Path) -> Comparison:
        """The comparison of `to_dict`, from the study it stands in."""
        compared = tuple(
            Compared(
                one["id"],
                one["label"],
                one["identical"],
                one["verdict"] and Verdict(**one["verdict"]),
                one["failed"],
                Figures.from_dict(one["figures"]),
                Figures.from_dict(one["against"]),
            )
            for one in data["compared"]
        )
        names = ("model", "workload", "objective", "a", "runs", "disturbed", "foreign_cores", "cores", "spent_s")
        return cls(**{name: data[name] for name in names}, compared=compared, study=study)


def compare(request: CompareRequest, *, target: Target, analyzer: PerfAnalyzer, console: Console) -> Comparison:
    """Measure A against each other side; the same request goes on in its study and measures nothing twice.

    Raises UsageError for what cannot be measured, Refused and ExternalError when A or the server fails.
    """
    request = _with_lengths(request)
    header, where = _header(request, target, analyzer, console)
    with Study(where, header, session()) as study:
        kept = sum(record["record"] == "measurement" for record in study.records)
        console.info(f"study {study.directory}{f': {kept} runs are there already' if kept else ''}")
        for note in notes(request.sides[0].variant.config):
            console.info(note)
        configs = [side.variant.config for side in request.sides]
        for caution in cache_cautions(configs, left_out=not isinstance(target, RunningTarget)):
            console.warning(caution)
        input_file = study.directory / "input.json"
        write_input_data(
            input_file,
            request_signature(request.base),
            request.workload,
            _tokenizer(request),
            batching=request.sides[0].variant.config.max_batch_size > 0,
            vocab_size=request.vocab_size,
        )
        with resumable(), Bench(_subject(request, input_file), study, target, analyzer) as bench:
            result = _Comparing(request, bench, console).run(study.directory)
        record: Record = {"record": "result", "kind": "compare", "result": result.to_dict()}
        if record not in study.records:
            study.append(record)
    return result


class _Comparing:
    """A and the other sides in common rounds, each side up to the look that decides."""

    def __init__(self, request: CompareRequest, bench: Bench, console: Console) -> None:
        self._request, self._bench, self._console = request, bench, console
        self._points: list[Measurement] = []

    def run(self, study: Path) -> Comparison:
        request, bench = self._request, self._bench
        others = request.sides[1:]
        with self._console.progress("comparing", LOOKS[0] * len(others)) as progress:
            bench.prepare()

            def told(found: Round, note: str, sides: int) -> None:
                self._points += [*filter(None, [found.base]), *found.others.values()]
                progress.step(note, sides)

            contenders = [Contender(side.variant.id, side.label) for side in others]
            Contest(bench, self._score, self._affordable, progress, told, self._fitting).run(contenders)
            compared = [self._compared(side, found) for side, found in zip(others, contenders, strict=True)]
        cores = [p.foreign_cores for p in self._points if p.foreign_cores is not None]
        return Comparison(
            request.base.name,
            _traffic(request.workload),
            str(request.objective),
            request.sides[0].label,
            tuple(compared),
            len(self._points),
            sum(p.disturbed for p in self._points),
            round(sum(cores) / len(cores), 2) if cores else None,
            usable_cores(),
            round(bench.spent_s, 1),
            study,
        )

    def _compared(self, side: Side, found: Contender) -> Compared:
        identical = side.digest == self._request.sides[0].digest
        if found.failure is not None:
            return Compared(found.id, side.label, identical, failed=found.failure)
        settled = settle(found.verdict) if found.verdict else None
        return Compared(
            found.id, side.label, identical, settled, None, Figures.of(found.points), Figures.of(found.current)
        )

    def _fitting(self, those: Sequence[Contender]) -> Sequence[Sequence[Contender]]:
        """Those together that fit into memory beside A."""
        a, *others = (side.variant for side in self._request.sides)
        sizes = {other.id: taken_bytes(other.config, other.model_dir) for other in others}
        free = free_main_bytes()
        return (
            [those]
            if free is None
            else packed(those, lambda one: sizes[one.id], free - taken_bytes(a.config, a.model_dir))
        )

    def _score(self, point: Measurement) -> float:
        score = self._request.objective.score(point)
        assert score is not None, "a run that is ok has every figure of its load"
        return score

    def _affordable(self, ids: Sequence[str], runs: int, *, loaded: bool) -> bool:
        """Whether so many more runs of them and A together still fit, and loading them first."""
        load_s = 0 if loaded else _LOAD_S * len(ids)
        return self._bench.spent_s + load_s + runs * self._bench.run_s <= self._request.budget_s


def _with_lengths(request: CompareRequest) -> CompareRequest:
    from dataclasses import replace

    signature, asked = request_signature(request.base), request.workload.lengths
    batching = request.sides[0].variant.config.max_batch_size > 0
    texts, config = request.workload.texts, request.sides[0].variant.config
    found = traffic_lengths(asked, signature, _tokenizer(request), batching=batching, texts=texts)
    if request.base.model_dir:
        found = fit_to_model(found, request.base.model_dir, asked=bool(asked))
    return replace(request, workload=fitted(request.workload.model_copy(update={"lengths": found}), config))


def _tokenizer(request: CompareRequest) -> Path:
    return request.tokenizer_dir or (request.base.model_dir or Path()) / "tokenizer"


def _window_ms(request: CompareRequest) -> int:
    return planned_window_ms(request.workload) or _WINDOW_MS[request.objective.metric]


def _traffic(workload: Workload) -> str:
    lengths = workload.lengths
    if not lengths:
        return str(workload)
    shortest, longest = min(lengths), max(lengths)
    return f"{workload}, {shortest if shortest == longest else f'{shortest}–{longest}'} tokens"


def _subject(request: CompareRequest, input_file: Path) -> Subject:
    base, *others = (side.variant for side in request.sides)
    window_ms = _window_ms(request)
    label = f"`{request.sides[0].label}`"
    others_by_id = {variant.id: variant for variant in others}
    return Subject(request.base.name, base, others_by_id, request.workload, input_file, window_ms, label)


def _header(request: CompareRequest, target: Target, analyzer: PerfAnalyzer, console: Console) -> tuple[Record, Path]:
    """What must be equal for runs to be comparable, and where the study stands."""
    question: Record = {
        "command": "compare",
        "model": {"name": request.base.name},
        "sides": {side.variant.id: side.label for side in request.sides},
        "workload": request.workload.model_dump(mode="json"),
        "objective": request.objective.metric,
        "window_ms": _window_ms(request),
    }
    header = {
        **question,
        **conditions(f"{analyzer.version} ({analyzer.source})", target.facts()),
        "digests": {side.variant.id: side.digest for side in request.sides},
    }
    return header, request.study or study_dir(request.studies, request.base.name, question, header, console)
