"""One self-contained HTML file about a finished study, for a browser without a network. Layer: above tune."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perf.charts import Ratio, RatioChart, ratio_chart
from perf.compare import ALPHA, LOOKS, TIE_MARGIN
from perf.exhibits import exhibits
from perf.result import TuneResult, figures
from perf.studies import StudyFile
from perf.study import FILE_NAME, Record
from tooling.errors import UsageError
from tooling.repository import write_atomic


def write_report(study: Path, path: Path) -> Path:
    """Write the report on the study in the directory `study` to `path`; returns `path`.

    Raises UsageError when the study is missing, damaged or not finished, or when `path` cannot be written.
    """
    file = StudyFile(study)
    result = file.result
    if result is None:
        raise UsageError(
            "the study is not finished",
            where=study,
            got=f"{len(file.records)} records and no result",
            hint="run the same command again: it goes on where it stopped",
        )
    if not isinstance(result, TuneResult):
        raise UsageError(
            "there is a report on the tuning of one model only",
            where=study,
            got=f"a study of `{file.header.get('command')}`",
            hint="`tritune study show` says what came out",
        )
    write_atomic(path, _page(file.header, file.records, result, path))
    return path


def _page(header: Record, records: list[Record], result: TuneResult, path: Path) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("perf"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = os.path.relpath(result.study, path.absolute().parent)
    return environment.get_template("report.html.j2").render(
        result=result,
        rows=[(trial, figures(trial)) for trial in (result.default, *result.trials)],
        chart=_chart(result),
        facts=list(_facts(header)),
        runs=list(_runs(records, folder)),
        study_file=f"{folder}/{FILE_NAME}",
        looks=LOOKS,
        alpha=ALPHA,
        margin=TIE_MARGIN,
        **{"found": None, "lines": None, **exhibits(result, records)},
    )


def _chart(result: TuneResult) -> RatioChart:
    """Every candidate that has a ratio, the compared ones with their interval."""
    ratios = []
    for trial in result.trials:
        if trial.verdict:
            v = trial.verdict
            kind = "chosen" if trial == result.chosen else v.outcome
            ratios.append(Ratio(trial.candidate.label, kind, f"{v} {v.word}", v.low, v.ratio, v.high))
        elif trial.screen_ratio is not None:
            rough = trial.screen_ratio
            ratios.append(Ratio(trial.candidate.label, "rough", f"{trial.gain} {trial.outcome}", rough, rough, rough))
    return ratio_chart(ratios, TIE_MARGIN)


def _facts(header: Record, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of everything the study was made under."""
    for name, value in header.items():
        if name == "record":
            continue
        if isinstance(value, dict):
            yield from _facts(value, f"{prefix}{name} · ")
        else:
            yield prefix + name, _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _runs(records: list[Record], folder: str) -> Iterator[dict[str, Any]]:
    """Every run with the folder of its raw files, relative to the report."""
    for record in records:
        if record["record"] in ("measurement", "aborted"):
            yield {**record, "folder": f"{folder}/{record['raw']}"}
