"""`tritune study`: what a tuning or a comparison has measured and found. Layer: cli."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tooling.cli.app import Group, console_of
from tooling.errors import Refused, UsageError

if TYPE_CHECKING:
    from perf.studies import StudyFile

app = typer.Typer(cls=Group, help="Show what a tuning or a comparison has measured and found.", no_args_is_help=True)
_DIRECTORY = typer.Argument(None, metavar="DIR", help="The study. Default: the newest in .tritune/studies.")


@app.command("show")
def show(context: typer.Context, directory: Path | None = _DIRECTORY) -> None:
    """Show a study: what it was made under, by which command lines, and what came out."""
    study = _open(directory)
    data = {"header": study.header, "result": study.result.to_dict() if study.result else None}
    console_of(context).result({"study": str(study.directory), **data}, f"study: {study.directory}\n{study.text()}")


@app.command("rows")
def rows(
    context: typer.Context,
    directory: Path | None = _DIRECTORY,
    csv: bool = typer.Option(False, "--csv", help="As CSV with every figure, for a spreadsheet."),
) -> None:
    """Show every run of a study, in the order of measurement."""
    from perf.studies import as_csv
    from tooling.console import table

    study = _open(directory)
    found = list(study.rows())
    short = ("setting", "stage", "pair", "side", "status", "throughput_rps", "p50_us", "p99_us", "foreign_cores")
    shown = as_csv(found) if csv else table(short, [[_cell(row[name]) for name in short] for row in found])
    console_of(context).result({"study": str(study.directory), "rows": found}, shown)


@app.command("best")
def best(context: typer.Context, directory: Path | None = _DIRECTORY) -> None:
    """Show the setting that was chosen or has won. Exit 1 when there is none."""
    from perf.result import TuneResult

    study = _open(directory)
    result = study.result
    if result is None:
        raise UsageError(
            "the study is not finished", where=study.directory, hint="run the same command again: it goes on from there"
        )
    if isinstance(result, TuneResult):
        chosen = result.chosen.candidate.id if result.chosen else None
    else:
        from perf.several import Several

        if isinstance(result, Several):
            if not result.taken:
                raise Refused("no setting was chosen", where=study.directory, got=result.conclusion)
            console_of(context).result({"study": str(study.directory), **result.to_dict()}, result.text())
            return
        chosen = result.winner
    setting = next((one for one in study.settings() if one.id == chosen), None)
    if setting is None:
        raise Refused("no setting was chosen", where=study.directory, got=" ".join(_conclusions(study)))
    data = {"study": str(study.directory), "setting": asdict(setting), "conclusions": _conclusions(study)}
    console_of(context).result(data, "\n".join([setting.label, *_conclusions(study)]))


@app.command("frontier")
def frontier(context: typer.Context, directory: Path | None = _DIRECTORY) -> None:
    """Show the settings that no other one beats in both throughput and p99."""
    from perf.studies import as_table

    study = _open(directory)
    found = study.frontier()
    console_of(context).result(
        {"study": str(study.directory), "settings": [asdict(one) for one in found]},
        as_table(found) if found else "nothing was measured yet",
    )


def _open(directory: Path | None) -> StudyFile:
    from perf.studies import StudyFile, newest

    return StudyFile(directory or newest())


def _conclusions(study: StudyFile) -> list[str]:
    from perf.result import TuneResult

    result = study.result
    if result is None:
        return []
    return [result.conclusion] if isinstance(result, TuneResult) else result.conclusions


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
