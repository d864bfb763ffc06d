"""`tritune quickstart`: the whole journey on this machine, from the bundled model to a tuned config. Layer: cli."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tooling.cli.app import console_of
from tooling.cli.options import CLIENTS, duration_us
from tooling.cli.tune import paths, run
from tooling.console import Console

if TYPE_CHECKING:
    from perf.tune_request import TuneRequest

_MODEL = "minilm"
_MAX_BATCH_SIZE = 8


def attach(app: typer.Typer) -> None:
    @app.command()
    def quickstart(
        context: typer.Context,
        directory: Path = typer.Option(Path("quickstart"), help="Where everything goes; reused if it is there."),
        budget: str = typer.Option("3m", metavar="TIME", help="Time for measuring; less time, fewer settings tried."),
    ) -> None:
        """Export all-MiniLM-L6-v2, serve it on a real Triton here, tune it and write a report.

        Needs no GPU and no Docker. A second run reuses the export and what was measured.
        """
        console = console_of(context)
        request = _prepare(directory, duration_us("--budget", budget) / 1e6, console)
        report = directory / "report.html"
        result, files = run(request, console, apply=True, report=report)
        text = f"{result.summary()}\n\n{paths(files)}\n\nnext\n{_next(directory)}"
        console.result({**result.to_dict(), **files}, text)


def _prepare(directory: Path, budget_s: float, console: Console) -> TuneRequest:
    """The runtime installed, the model exported and configured, each unless it is there already."""
    from export.run import export_model
    from export.source import bundled_minilm
    from perf.search import Budget
    from perf.tune_request import TuneRequest
    from perf.workload import Workload

    _install(console)
    repository = directory / "model_repository"
    console.info(f"model {_MODEL} in {repository}")
    model_dir = export_model(bundled_minilm(), repository, _MODEL, console=console).model_dir
    _configure(model_dir)
    console.info(f"tuning for {CLIENTS} clients, at most {budget_s:.0f} s")
    return TuneRequest(model_dir, Workload(concurrency=CLIENTS), budget=Budget(budget_s), studies=directory / "studies")


def _install(console: Console) -> None:
    from tooling.errors import MissingError
    from tooling.runtime import find_runtime, install_runtime

    try:
        find_runtime()
    except MissingError:
        console.info("installing the embedded server's runtime (once)")
        install_runtime(console)


def _configure(model_dir: Path) -> None:
    from tooling.config.build import build_config
    from tooling.config.knobs import Knobs
    from tooling.config.render import render
    from tooling.repository import config_path, locate_model, write_atomic
    from tooling.signature.onnx_file import read_onnx

    path = config_path(model_dir)
    if not path.exists():
        signature = read_onnx(locate_model(model_dir).file)
        write_atomic(path, render(build_config(signature, model_dir.name, Knobs(max_batch_size=_MAX_BATCH_SIZE))))


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
