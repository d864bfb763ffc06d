"""`tritune tune`: search batching, instances and threads on a real server, with intervals. Layer: cli."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tooling.cli.app import console_of
from tooling.cli.options import CLIENTS, MOST, counts, duration_us, grid_of, workload_of
from tooling.console import Console

if TYPE_CHECKING:
    from perf.result import TuneResult
    from perf.tune import TuneRequest

_Metric = Literal["throughput", "avg", "p50", "p90", "p95", "p99"]


def attach(app: typer.Typer) -> None:
    app.command()(tune)


def tune(
    context: typer.Context,
    model: Path = typer.Argument(metavar="MODEL_DIR", help="A model directory REPO/NAME with its config.pbtxt."),
    concurrency: int | None = typer.Option(
        None, min=1, max=MOST, help=f"Clients that each wait for an answer [{CLIENTS}]."
    ),
    request_rate: float | None = typer.Option(None, min=0.001, max=MOST, help="Requests a second, sent on schedule."),
    lengths: str = typer.Option("", metavar="N,…", help="Token lengths of the requests. Default: real sentences."),
    objective: _Metric | None = typer.Option(None, help="[throughput with clients, p95 under a rate]"),
    max_p99: str = typer.Option("", metavar="TIME", help="A setting must keep this p99, like 50ms."),
    instances: str = typer.Option("", metavar="N,…", help="Instance counts to try. Default: from the cores."),
    threads: str = typer.Option("", metavar="N,…", help="Threads per instance to try. Default: from the cores."),
    delay: str = typer.Option("", metavar="TIME,…", help="Queue delays to try, like 0,2ms."),
    max_batch_size: str = typer.Option("", metavar="N,…", help="Largest batches to try. Default: as configured."),
    budget: str = typer.Option("3m", metavar="TIME", help="Start nothing new that would take longer in all."),
    study: Path | None = typer.Option(None, help="Directory of the study; resumed if it is there."),
    tokenizer: Path | None = typer.Option(None, help="Directory of tokenizer.json. Default: MODEL_DIR/tokenizer."),
    vocab_size: int | None = typer.Option(
        None, min=8, max=MOST, help="Size of the vocabulary, where there is no tokenizer."
    ),
    seed: int = typer.Option(0, help="Fixes the contents of the requests."),
    apply: bool = typer.Option(False, "--apply", help="Write the chosen setting to configs/HARDWARE.pbtxt."),
    report: Path | None = typer.Option(None, metavar="FILE", help="Write an HTML report."),
) -> None:
    """Find a setting that is surely better than the current config, or say that there is none.

    Exit 1 when no setting keeps --max-p99. The same command again resumes its study and measures nothing twice.
    """
    from perf.trial import Objective
    from perf.tune import TuneRequest

    console = console_of(context)
    workload = workload_of(concurrency, request_rate, counts("--lengths", lengths), seed)
    metric = objective or ("p95" if request_rate else "throughput")
    request = TuneRequest(
        model,
        workload,
        Objective(metric, duration_us("--max-p99", max_p99) if max_p99 else None),
        grid_of(instances, threads, delay, max_batch_size),
        budget_s=duration_us("--budget", budget) / 1e6,
        study_dir=study,
        tokenizer_dir=tokenizer,
        vocab_size=vocab_size,
    )
    result, files = run(request, console, apply=apply, report=report)
    console.result({**result.to_dict(), **files}, f"{result.text()}\n\n{paths(files)}")
    if not result.met:
        raise typer.Exit(1)


def run(
    request: TuneRequest, console: Console, *, apply: bool, report: Path | None
) -> tuple[TuneResult, dict[str, str | None]]:
    """Tune, write the config and the report where asked; the paths of `study`, `config` and `report`."""
    from perf.analyzer import find_perf_analyzer
    from perf.report import write_report
    from perf.tune import require_ours, tune, write_tuned_config
    from tooling.repository import config_path, cpu_name, require_writable
    from tooling.runtime import find_runtime

    hardware = cpu_name()
    if report:
        require_writable(report)
    if apply:
        require_ours(config_path(request.model_dir, hardware))
    runtime = find_runtime()
    result = tune(request, runtime=runtime, analyzer=find_perf_analyzer(runtime), console=console)
    written = write_tuned_config(result, request.model_dir, hardware) if apply and result.met else None
    if report:
        write_report(result.study, report)
    files = {"config": written, "study": result.study, "report": report}
    return result, {name: str(path.absolute()) if path else None for name, path in files.items()}


def paths(files: dict[str, str | None]) -> str:
    """The paths that were written, a line each, relative where that is shorter to read."""
    return "\n".join(f"{name:<7} {_here(Path(path))}" for name, path in files.items() if path)


def _here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
