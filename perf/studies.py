"""What a study holds, to be read: its runs as rows, its answer, and the settings that nothing beats. Layer:
above tune and ab."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.grid import BASE, Candidate
from perf.measurement import Measurement
from perf.result import TuneResult, figures_of
from perf.study import FILE_NAME, Record, measurement_of, read_study
from perf.trial import Figures
from tooling.console import table
from tooling.errors import UsageError

if TYPE_CHECKING:
    from perf.ab import Comparison
    from perf.several import Several

STUDIES = Path(".tritune") / "studies"
_IDENTITY = ("model", "candidate", "stage", "pair", "side", "attempt", "record")
_NO_FIGURES = {
    *("load", "message", "hint", "batch_histogram", "failures", "windows_rps", "windows_us", "warnings", "argv"),
    *("raw_dir", "perf_analyzer"),
}
_FIGURES = (*(one.name for one in fields(Measurement) if one.name not in _NO_FIGURES), "mean_batch")
COLUMNS = ("setting", *_IDENTITY, *_FIGURES, "raw")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a study with the figures of its good runs."""

    id: str
    label: str
    figures: Figures


class StudyFile:
    """A study on disk, finished or not. Raises UsageError when there is none, or when it is damaged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.header, self.records = read_study(directory)
        self.result = self._result()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every run in the order of measurement, aborted ones too; times in microseconds."""
        for record, point in self._runs():
            figures = {name: getattr(point, name) for name in _FIGURES}
            identity = {name: record.get(name) for name in _IDENTITY}
            yield {"setting": self._label(_setting_id(record)), **identity, **figures, "raw": record.get("raw")}

    def settings(self) -> list[Setting]:
        """Every setting that was measured, the one that others were compared with first."""
        points: dict[str, list[Measurement]] = {}
        for record, point in self._runs():
            if record["record"] == "measurement" and point.ok:
                points.setdefault(_setting_id(record), []).append(point)
        found = (
            (name, Figures.of(runs))
            for name, runs in sorted(points.items(), key=lambda item: not item[0].endswith(BASE))
        )
        return [Setting(name, self._label(name), figures) for name, figures in found if figures]

    def frontier(self) -> list[Setting]:
        """The settings that no other one beats in both throughput and p99 fastest first."""
        settings = self.settings()
        kept = [one for one in settings if not any(_beats(other.figures, one.figures) for other in settings)]
        return sorted(kept, key=lambda one: -one.figures.throughput_rps.middle)

    def _runs(self) -> Iterator[tuple[Record, Measurement]]:
        for record in self.records:
            if record["record"] in ("measurement", "aborted"):
                yield record, measurement_of(record, self.directory / FILE_NAME)[0]

    def _label(self, name: str) -> str:
        if isinstance(self.result, TuneResult):
            trials = (self.result.default, *self.result.trials)
            return next((trial.candidate.label for trial in trials if trial.candidate.id == name), name)
        sides = self.header.get("sides")
        return str(sides.get("A" if name == BASE else name, name)) if isinstance(sides, dict) else name

    def _result(self) -> TuneResult | Comparison | Several | None:
        """The last answer; None while there is none."""
        record = next((r for r in reversed(self.records) if r["record"] == "result"), None)
        if record is None:
            return None
        try:
            return _kind(record.get("kind")).from_dict(record["result"], self.directory)
        except (LookupError, TypeError, ValueError, AttributeError, UsageError) as error:
            raise UsageError(
                "the study is damaged: its result is not whole",
                where=self.directory / FILE_NAME,
                got=f"{type(error).__name__}: {error}",
                hint="delete that line and run the same command again: nothing is measured twice",
            ) from error

    def text(self) -> str:
        """What it was made under, by whom, and what came out."""
        facts = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in self.header.items()]
        sessions = [
            f"session: {r.get('started')}, load {r.get('load')}, {' '.join(map(str, r.get('argv') or []))}"
            for r in self.records
            if r["record"] == "session"
        ]
        if self.result:
            answer = self.result.text()
        else:
            runs = sum(1 for _ in self._runs())
            answer = f"Not finished: {runs} runs so far; the same command goes on from there."
        return "\n".join([*facts[1:], *sessions, "", answer])


def _kind(name: object) -> type[TuneResult | Comparison | Several]:
    """What a result of this kind is read into; those that bring measuring along are only imported for one."""
    if name == "compare":
        from perf.ab import Comparison

        return Comparison
    if name == "several":
        from perf.several import Several

        return Several
    if name is not None:
        raise LookupError(f"unknown kind {name!r}")
    return TuneResult


def _setting_id(record: Record) -> str:
    setting = BASE if record.get("side") == "A" else str(record.get("candidate"))
    return f"{record['model']}: {setting}" if "model" in record else setting


def _beats(one: Figures, other: Figures) -> bool:
    rate, latency = one.throughput_rps.middle, one.p99_us.middle
    at_least = rate >= other.throughput_rps.middle and latency <= other.p99_us.middle
    return at_least and (rate, latency) != (other.throughput_rps.middle, other.p99_us.middle)


def newest(studies: Path = STUDIES) -> Path:
    """The study that was written last. Raises UsageError when there is none."""
    files = list(studies.glob(f"*/{FILE_NAME}"))
    if not files:
        raise UsageError(
            "no study here",
            where=studies,
            expected="a study of `tritune tune` or `tritune compare`",
            hint="name its directory, the one that --study named",
        )
    return max(files, key=lambda file: file.stat().st_mtime).parent


@dataclass(frozen=True, slots=True)
class Tuned:
    """What one server does with the setting that a tuning of `model` chose: the requests a second it carries within the
    limits of that tuning and the mean queue time of a request then, in microseconds, both predicted; the mean batch
    that was measured, and that setting. None where a study does not tell."""

    model: str
    carries_rps: float
    queue_us: float | None
    mean_batch: float | None
    setting: Candidate


def tuned(directory: Path) -> Tuned:
    """What a tuning found. Raises UsageError for a study that tells no capacity: unfinished, a comparison, a direct
    search, or one that chose nothing."""
    result = StudyFile(directory).result
    chosen = result.chosen if isinstance(result, TuneResult) else None
    found = (result.findings or {}).get("capacity", {}) if isinstance(result, TuneResult) else {}
    carries_rps = float(found.get("requests_per_s") or 0)
    if not isinstance(result, TuneResult) or chosen is None or carries_rps <= 0:
        raise UsageError(
            "the study says nothing of what a server carries",
            where=directory,
            expected="a finished `tritune tune`, without --direct, that chose a setting",
            hint="tune again, or give --replicas and --queue-target",
        )
    batch = chosen.figures.mean_batch if chosen.figures else None
    return Tuned(result.model, carries_rps, found.get("queue_us"), batch, chosen.candidate)


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows with a header line; figures that a run did not give are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_table(settings: Sequence[Setting]) -> str:
    """Settings with their figures, for a terminal."""
    rows = [(one.label, *figures_of(one.figures), str(one.figures.runs)) for one in settings]
    return table(("setting", "requests/s", "p50 ms", "p99 ms", "runs"), rows)
