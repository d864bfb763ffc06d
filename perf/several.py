"""Tune several models that share one server: the settings of each in turn under the traffic of all, then all of them
together against the configs as they were. Layer: above tune_request and search.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.compare import LOOKS, Verdict, gain, judge, settle
from perf.grid import Candidate
from perf.measurement import Measurement
from perf.provenance import session
from perf.result import figures_of
from perf.search import SCREEN_PAIRS
from perf.study import Record, Study, resumable
from perf.together import Choice, Part, Points, Together
from perf.trial import Figures, within_limit
from tooling.config.knobs import from_dict, to_dict
from tooling.console import Console, table
from tooling.errors import Refused, UsageError
from tooling.server.embedded import EmbeddedServer

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer
    from tooling.runtime import Runtime

_LOAD_S, _RUN_S = 4.0, 1.8
_HELPS = 1.03
"""A setting of one model stays out unless it gains as much, roughly, for all of them."""


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """What became of one model in the comparison of all: its setting, and its figures with the configs as they were
    and with the choice."""

    name: str
    weight: float
    setting: Candidate
    before: Figures | None
    after: Figures | None

    def to_dict(self) -> dict[str, Any]:
        one = self.setting
        return {
            "name": self.name,
            "weight": self.weight,
            "setting": {"id": one.id, "label": one.label, "knobs": to_dict(one.knobs), "changed": list(one.changed)},
            "before": asdict(self.before) if self.before else None,
            "after": asdict(self.after) if self.after else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelOutcome:
        one = data["setting"]
        setting = Candidate(one["id"], from_dict(one["knobs"]), tuple(one["changed"]))
        figures = (Figures.from_dict(data[name]) for name in ("before", "after"))
        return cls(data["name"], data["weight"], setting, *figures)


@dataclass(frozen=True, slots=True)
class Several:
    """The answer for all models: `verdict` is on the weighted mean of their gains, None when nothing was compared;
    `kept` whether each keeps its limits with the choice, None without limits."""

    workload: str
    objective: str
    models: tuple[ModelOutcome, ...]
    verdict: Verdict | None
    kept: bool | None
    runs: int
    spent_s: float
    study: Path
    skipped: tuple[str, ...] = ()
    """Settings that the budget left no time for."""

    @property
    def taken(self) -> bool:
        """Whether the choice takes the place of the configs as they were."""
        return self.verdict is not None and self.verdict.outcome == "better" and self.kept is not False

    @property
    def conclusions(self) -> list[str]:
        return [self.conclusion]

    @property
    def met(self) -> bool:
        """Whether the limits are kept by what is served in the end; always so without one."""
        return self.kept is not False

    @property
    def conclusion(self) -> str:
        """The answer in one sentence."""
        if self.verdict is None:
            return "The current configs stay: no setting measured was better for all of them together."
        found = f"{self.verdict} for all together, by weight, in {self.verdict.pairs} pairs"
        if self.kept is False:
            return f"A limit is missed with the best setting ({found}); the current configs stay."
        return f"Chosen: {found}." if self.taken else f"The current configs stay: {self.verdict.word}, {found}."

    def text(self) -> str:
        """The table and the conclusion."""
        rows = []
        for one in self.models:
            share = f"{one.name} (weight {one.weight:g})"
            rows.append((share, "as configured", *figures_of(one.before)))
            if one.after:
                rows.append(("", one.setting.label if one.setting.changed else "as configured", *figures_of(one.after)))
        shown = table(("model", "setting", "requests/s", "p50 ms", "p99 ms"), rows)
        head = f"{self.workload} for each · {self.objective} · {self.runs} runs in {self.spent_s:.0f} s"
        left = [f"Not measured within the budget: {'; '.join(self.skipped)}."] if self.skipped else []
        return "\n".join([head, "", shown, "", "All models are measured at the same time.", *left, "", self.conclusion])

    def to_dict(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "objective": self.objective,
            "models": [one.to_dict() for one in self.models],
            "verdict": self.verdict.to_dict() if self.verdict else None,
            "kept": self.kept,
            "taken": self.taken,
            "conclusion": self.conclusion,
            "runs": self.runs,
            "spent_s": self.spent_s,
            "skipped": list(self.skipped),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], study: Path) -> Several:
        """The answer of `to_dict`, from the study it stands in."""
        return cls(
            data["workload"],
            data["objective"],
            tuple(map(ModelOutcome.from_dict, data["models"])),
            data["verdict"] and Verdict(**data["verdict"]),
            data["kept"],
            data["runs"],
            data["spent_s"],
            study,
            tuple(data["skipped"]),
        )


def tune_several(
    parts: Sequence[Part], study_dir: Path, *, runtime: Runtime, analyzer: PerfAnalyzer, console: Console
) -> Several:
    """Measure and choose; the same request resumes its study and measures nothing twice.

    Raises UsageError for models of different repositories or of one name, Refused when Triton refuses a config as it
    is or one cannot keep up, ExternalError when the server or perf_analyzer fails.
    """
    _require_one_server(parts)
    header = {
        "command": "tune",
        **{part.name: {**part.plan.header, "weight": part.weight} for part in parts},
        "model": {"name": " ".join(part.name for part in parts)},
    }
    repository = parts[0].plan.model_dir.parent
    with Study(study_dir.absolute(), header, session()) as study, resumable():
        console.info(f"study {study.directory}")
        with EmbeddedServer(repository, runtime) as server:
            result = _Search(parts, Together(parts, study, server, analyzer), console).run(study.directory)
        record: Record = {"record": "result", "kind": "several", "result": result.to_dict()}
        if record not in study.records:
            study.append(record)
    return result


def _require_one_server(parts: Sequence[Part]) -> None:
    places = {part.plan.model_dir.parent for part in parts}
    names = [part.name for part in parts]
    if len(places) > 1:
        raise UsageError(
            "models of several repositories cannot share a server",
            got=", ".join(map(str, sorted(places))),
            expected="models of one repository",
        )
    if len(set(names)) < len(names):
        raise UsageError("a model is named twice", got=", ".join(names))


class _Search:
    """The settings of each model in turn, the heaviest first; then the best of all, compared properly."""

    def __init__(self, parts: Sequence[Part], together: Together, console: Console) -> None:
        self._parts, self._together, self._console = parts, together, console
        self._slo, self._budget_s = parts[0].request.slo, parts[0].request.budget.seconds
        self._weights = {part.name: part.weight for part in parts}

    def run(self, study: Path) -> Several:
        best: dict[str, Candidate] = {part.name: part.plan.default for part in self._parts}
        tries = [(part, one) for part in self._heaviest() for one in part.plan.tries]
        ratio, skipped = 1.0, list[str]()
        with self._console.progress("tuning", SCREEN_PAIRS * len(tries) + LOOKS[0]) as progress:
            for part, one in tries:
                if not self._affordable(SCREEN_PAIRS + LOOKS[0]):
                    progress.total -= SCREEN_PAIRS
                    skipped.append(f"{part.name}: {one.label}")
                    continue
                found, kept = self._screen({**best, part.name: one})
                progress.step(f"{part.name}: {one.label}: about {found:.2f}× for all", SCREEN_PAIRS)
                if kept is not False and found > ratio * _HELPS:
                    best, ratio = {**best, part.name: one}, found
            changed = any(one.changed for one in best.values())
            verdict, ours, theirs = self._compare(best) if changed else (None, {}, {})
            progress.step("compared", LOOKS[0])
        outcomes = tuple(
            ModelOutcome(
                part.name,
                part.weight,
                best[part.name],
                Figures.of(ours.get(part.name, ())),
                Figures.of(theirs.get(part.name, ())),
            )
            for part in self._parts
        )
        workload = str(self._parts[0].plan.workload)
        spent_s = round(self._together.spent_s, 1)
        kept = self._kept(theirs)
        return Several(
            workload, str(self._slo), outcomes, verdict, kept, self._together.runs, spent_s, study, tuple(skipped)
        )

    def _heaviest(self) -> list[Part]:
        return sorted(self._parts, key=lambda part: -part.weight)

    def _screen(self, choice: Choice) -> tuple[float, bool | None]:
        """A rough ratio, 0 for what Triton refuses, and whether the limits seem to be kept."""
        try:
            pairs = [self._together.pair(choice, "screen", number) for number in range(SCREEN_PAIRS)]
        except Refused:
            return 0.0, None
        ratio = math.exp(statistics.fmean(self._gain(a, b) for a, b in pairs))
        return ratio, self._kept(_columns(b for _, b in pairs))

    def _compare(self, choice: Choice) -> tuple[Verdict, Points, Points]:
        pairs: list[tuple[dict[str, Measurement], dict[str, Measurement]]] = []
        for look in LOOKS:
            if pairs and not self._affordable(look - len(pairs)):
                break
            pairs += [self._together.pair(choice, "paired", number) for number in range(len(pairs), look)]
            verdict = judge([self._gain(a, b) for a, b in pairs])
            if verdict.outcome != "undecided":
                break
        return settle(verdict), _columns(a for a, _ in pairs), _columns(b for _, b in pairs)

    def _gain(self, ours: Mapping[str, Measurement], theirs: Mapping[str, Measurement]) -> float:
        """The mean log ratio of the models, by weight."""
        score = self._slo.objective.score
        gains = {name: gain(score(ours[name]) or 1e-9, score(theirs[name]) or 1e-9) for name in self._weights}
        return sum(self._weights[name] * gains[name] for name in gains) / sum(self._weights.values())

    def _kept(self, points: Points) -> bool | None:
        answers = {within_limit(points.get(name, ()), self._slo) for name in self._weights}
        return False if False in answers else None if None in answers else True

    def _affordable(self, pairs: int) -> bool:
        run_s = _RUN_S if not self._together.runs else self._together.spent_s / self._together.runs
        return self._together.spent_s + _LOAD_S + 2 * pairs * run_s <= self._budget_s


def _columns(runs: Iterator[Mapping[str, Measurement]] | Any) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for run in runs:
        for name, point in run.items():
            found.setdefault(name, []).append(point)
    return found
