"""`tritune report`: a finished tuning as one HTML file. Layer: cli."""

from __future__ import annotations

from pathlib import Path

import typer

from tooling.cli.app import console_of


def attach(app: typer.Typer) -> None:
    app.command()(report)


def report(
    context: typer.Context,
    study: Path | None = typer.Argument(
        None, metavar="DIR", help="The study. Default: the newest in .tritune/studies."
    ),
    output: Path = typer.Option(Path("report.html"), "--output", "-o", metavar="FILE", help="Where to write it."),
) -> None:
    """Write a finished tuning as one self-contained HTML file: charts, runs, decision, config diff."""
    from perf.report import write_report
    from perf.studies import newest
    from tooling.repository import require_writable

    directory = (study or newest()).absolute()
    require_writable(output)
    write_report(directory, output)
    paths = {"report": str(output.absolute()), "study": str(directory)}
    console_of(context).result(paths, f"report  {output}\nstudy   {directory}")
