"""`tritune quickstart`: the whole journey on this machine, which is a build of the bundled project. Layer: cli."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import typer

from tooling.cli import build
from tooling.cli.app import console_of
from tooling.cli.options import duration_us
from tooling.cli.tuned_answer import paths
from tooling.errors import UsageError

_MODEL = "minilm"
_BUDGET = re.compile(r"budget: \S+")


def attach(app: typer.Typer) -> None:
    @app.command()
    def quickstart(
        context: typer.Context,
        directory: Path = typer.Option(Path("quickstart"), help="Where everything goes; reused if it is there."),
        budget: str | None = typer.Option(
            None, metavar="TIME", help="Time for measuring [3m]; less time, fewer settings tried."
        ),
    ) -> None:
        """Export all-MiniLM-L6-v2, serve it on a real Triton here, tune it and write a report.

        Needs no GPU and no Docker. It builds the project file that it writes; a second run does only what changed.
        """
        from perf.result import TuneResult
        from perf.studies import StudyFile
        from tooling.project.lock import LOCK_NAME, read_lock
        from tooling.repository import config_path, cpu_name

        if budget is not None:
            duration_us("--budget", budget)
        console, hardware = console_of(context), cpu_name()
        build.make(_project(directory, budget), console)
        study = directory.absolute() / read_lock(directory / LOCK_NAME, hardware).studies()[_MODEL]
        result = StudyFile(study).result
        assert isinstance(result, TuneResult), "the build has tuned one model"
        tuned = config_path(directory / "model_repository" / _MODEL, hardware)
        report = directory / "reports" / f"{_MODEL}.html"
        made = {"config": tuned, "study": study, "decision": study / "decision.md", "report": report}
        found = {name: str(path.absolute()) if path.exists() else None for name, path in made.items()}
        text = f"{result.summary()}\n\n{paths(found)}\n\nnext\n{_next(directory)}"
        console.result({**result.to_dict(), **found}, text)


def _project(directory: Path, budget: str | None) -> Path:
    """The project file, written unless it is there; one that a person changed stays.

    Raises UsageError for a budget when the file is not ours to change.
    """
    from tooling.repository import read_text, write_atomic

    file, bundled = directory / "tritune.yaml", _bundled()
    present = read_text(file) if file.exists() else bundled
    if _BUDGET.sub("", present) != _BUDGET.sub("", bundled):
        if budget is not None:
            raise UsageError("the project file was edited", where=file, got=f"--budget {budget}", hint="say it there")
        return file
    wanted = _BUDGET.sub(f"budget: {budget}", present) if budget else present
    if wanted != present or not file.exists():
        write_atomic(file, wanted)
    return file


def _bundled() -> str:
    return (files("tooling") / "data" / "quickstart.yaml").read_text(encoding="utf-8")


def _next(directory: Path) -> str:
    repository = directory / "model_repository"
    tritune = _tritune()
    return "\n".join(
        [
            f"  {tritune} serve {repository} --config-name auto",
            f"  {tritune} tune {repository / _MODEL} --request-rate 40 --max-p99 100ms",
        ]
    )


def _tritune() -> str:
    """How to call tritune from here: by its name where that is on PATH, else by its path."""
    if shutil.which("tritune"):
        return "tritune"
    script = Path(sys.executable).with_name("tritune")
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)
