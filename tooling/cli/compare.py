"""`tritune compare`: which of two configurations is better, in pairs on one server. Layer: cli."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

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
    duration_us,
    require_url,
    seeded,
    workload_of,
)
from tooling.errors import UsageError

if TYPE_CHECKING:
    from perf.operands import Base
    from perf.target import RunningTarget

_Metric = Literal["throughput", "avg", "p50", "p90", "p95", "p99"]


def attach(app: typer.Typer) -> None:
    app.command()(compare)


def compare(
    context: typer.Context,
    what: list[str] = typer.Argument(
        metavar="A B…", help="Model directories, config files, or settings such as instances=2,delay=3ms."
    ),
    model: str = typer.Option("", metavar="DIR|NAME", help="The model that settings are for. Default: that of A."),
    url: str = typer.Option("", metavar="HOST:PORT", help="A Triton that runs already, by its HTTP address."),
    allow_reconfigure: bool = typer.Option(
        False, "--allow-reconfigure", help="Load the configurations there; its own comes back at the end."
    ),
    concurrency: int | None = typer.Option(
        None, min=1, max=MOST, help=f"Clients that each wait for an answer [{CLIENTS}]."
    ),
    request_rate: float | None = typer.Option(None, min=0.001, max=MOST, help="Requests a second, sent on schedule."),
    distribution: Distribution = DISTRIBUTION,
    burst: int = BURST,
    lengths: str = typer.Option("", metavar="N,…", help="Token lengths of the requests. Default: real sentences."),
    workload: Path | None = typer.Option(None, metavar="FILE", help=WORKLOAD_HELP),
    objective: _Metric | None = typer.Option(
        None, help="What to make better [throughput with clients, p95 under a rate]."
    ),
    budget: str = typer.Option("60s", metavar="TIME", help="Start nothing new that would take longer in all."),
    study: Path | None = typer.Option(None, help="Directory of the study; resumed if it is there."),
    tokenizer: Path | None = TOKENIZER,
    vocab_size: int | None = typer.Option(
        None, min=8, max=MOST, help="Size of the vocabulary, where there is no tokenizer."
    ),
    seed: int = seeded("Fixes the contents of the requests."),
) -> None:
    """Compare A with each B under the same traffic: the winner or a tie, with its interval.

    `compare A A` shows the noise of this host. Exit 1 when nothing could be decided within --budget.
    """
    from perf.ab import CompareRequest
    from perf.ab import compare as measure
    from perf.analyzer import find_perf_analyzer
    from perf.operands import sides
    from perf.slo import Goal
    from perf.target import EmbeddedTarget
    from tooling.runtime import find_runtime
    from tooling.server.options import loading_only

    if len(what) < 2:
        raise UsageError("one side alone cannot be compared", got=what[0], expected="A and at least one B")
    traffic = workload_of(
        concurrency, request_rate, counts("--lengths", lengths), seed, distribution, burst=burst, file=workload
    )
    by_rate = traffic.mode == "request_rate"
    metric = objective or ("p95" if by_rate else "throughput")
    if metric == "throughput" and by_rate:
        raise UsageError(
            "throughput under a fixed request rate is that rate, so it cannot be compared",
            expected="a latency such as p95",
            hint="leave --objective out, or give --concurrency in place of --request-rate",
        )
    require_url(url, reconfigure=allow_reconfigure)
    base, running = _base(what, model, url, reconfigure=allow_reconfigure)
    compared = sides(what, base)
    if running and not allow_reconfigure:
        running.require_own(side.variant for side in compared)
    request = CompareRequest(
        base,
        compared,
        traffic,
        Goal(metric),
        budget_s=duration_us("--budget", budget) / 1e6,
        study=study.absolute() if study else None,
        tokenizer_dir=tokenizer,
        vocab_size=vocab_size,
    )
    console = console_of(context)
    runtime = find_runtime()
    options = loading_only(*(side.variant.config for side in compared))
    target = running or EmbeddedTarget(compared[0].files.parent, runtime, options)
    result = measure(request, target=target, analyzer=find_perf_analyzer(runtime), console=console)
    console.result(result.to_dict(), f"{result.text()}\n\nstudy   {result.study}")
    if not result.decided:
        raise typer.Exit(1)


def _base(what: list[str], model: str, url: str, *, reconfigure: bool) -> tuple[Base, RunningTarget | None]:
    """The model that is meant, and the running server it is on."""
    from perf.operands import Base, base_of
    from perf.target import RunningTarget

    if not url:
        return base_of(what, Path(model) if model else None), None
    running = RunningTarget(url, model, reconfigure=reconfigure)
    return Base(running.model, running.config(), None), running
