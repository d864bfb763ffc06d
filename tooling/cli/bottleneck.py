"""`tritune bottleneck`: where the time of a request goes, and the knob that moves it. Layer: cli."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from tooling.cli.app import console_of
from tooling.cli.options import (
    BURST,
    CLIENTS,
    DISTRIBUTION,
    MOST,
    TOKENIZER,
    WORKLOAD_HELP,
    Distribution,
    counts,
    given,
    refuse_made,
    seeded,
    workload_of,
)
from tooling.errors import UsageError


def attach(app: typer.Typer) -> None:
    app.command()(bottleneck)


def bottleneck(
    context: typer.Context,
    model: str = typer.Argument("", metavar="MODEL_DIR|NAME", help="REPO/NAME, or with --url the name of a model."),
    url: str = typer.Option("", metavar="HOST:PORT", help="A Triton that runs already, by its HTTP address."),
    concurrency: int | None = typer.Option(
        None, min=1, max=MOST, help=f"Clients that each wait for an answer [{CLIENTS}]."
    ),
    request_rate: float | None = typer.Option(None, min=0.001, max=MOST, help="Requests a second, sent on schedule."),
    distribution: Distribution = DISTRIBUTION,
    burst: int = BURST,
    lengths: str = typer.Option("", metavar="N,…", help="Token lengths of the requests. Default: real sentences."),
    workload: Path | None = typer.Option(None, metavar="FILE", help=WORKLOAD_HELP),
    input_data: Path | None = typer.Option(None, metavar="FILE", help="Requests of your own, as perf_analyzer takes."),
    tokenizer: Path | None = TOKENIZER,
    vocab_size: int | None = typer.Option(
        None, min=8, max=MOST, help="Size of the vocabulary, where there is no tokenizer."
    ),
    trace: bool = typer.Option(False, "--trace", help="Then a run more under Triton's own trace."),
    seed: int = seeded("Fixes the contents of the requests."),
) -> None:
    """Say where the time of a request goes, what holds it back, and which knob moves it. Nothing is changed."""
    from perf.analyzer import find_perf_analyzer
    from perf.diagnose import Question, diagnose
    from perf.operands import Base, base_of, require_whole_requests
    from perf.target import EmbeddedTarget, RunningTarget, Target
    from tooling.runtime import find_runtime
    from tooling.server import ServerOptions

    refuse_made(given(context))
    runtime, console = find_runtime(), console_of(context)
    place = Path(".tritune").absolute() / "bottleneck"
    target: Target
    if url:
        running = RunningTarget(url, model)
        base, target = Base(running.model, running.config(), None), running
    elif model:
        base = base_of([], Path(model))
        assert base.model_dir is not None
        file = place / f"{base.name}-{time.strftime('%Y%m%d-%H%M%S')}.trace.json" if trace else None
        target = EmbeddedTarget(base.model_dir.parent, runtime, ServerOptions(trace_file=file))
    else:
        raise UsageError("the model is not named", expected="a model directory REPO/NAME, or --url HOST:PORT")
    require_whole_requests(base.config, model)
    traffic = workload_of(
        concurrency, request_rate, counts("--lengths", lengths), seed, distribution, burst=burst, file=workload
    )
    found = diagnose(
        Question(
            base=base,
            workload=traffic,
            raw=place / base.name,
            input_file=input_data,
            tokenizer_dir=tokenizer,
            vocab_size=vocab_size,
            traced=trace,
        ),
        target=target,
        analyzer=find_perf_analyzer(runtime),
        console=console,
    )
    console.result(found.to_dict(), found.text())
