"""`tritune promote`, `rollback` and `drift`: a new version of a served model, back, and when to tune again. Layer:
cli."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tooling.cli.app import console_of
from tooling.cli.options import BURST, CLIENTS, MOST, TOKENIZER, WORKLOAD_HELP, counts, duration_us, workload_of
from tooling.errors import UsageError, suggest

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer

URL = typer.Option("localhost:8000", "--url", metavar="HOST:PORT", help="The server, by its HTTP address.")
CONFIG_NAME = typer.Option("", "--config-name", metavar="NAME", help="The server's --model-config-name, if it has one.")
MODEL_DIR = typer.Argument(..., metavar="MODEL_DIR", help="REPO/NAME in the repository that the server serves.")


def attach(app: typer.Typer) -> None:
    app.command()(promote)
    app.command()(rollback)
    app.command()(drift)


def promote(
    context: typer.Context,
    model_dir: Path = MODEL_DIR,
    candidate: str | None = typer.Argument(
        None, help="A model directory, a config file, or settings such as instances=2. Default: the one on trial."
    ),
    url: str = URL,
    percent: float = typer.Option(100, min=0.1, max=100, help="Below 100: a trial with this share of the traffic."),
    hold: str = typer.Option(
        "60s", metavar="TIME", help="How long a trial, or the new version, is watched; 0s: not at all."
    ),
    slo: list[str] = typer.Option([], "--slo", metavar="TERM", help="A limit such as p99<50ms; may be repeated."),
    concurrency: int | None = typer.Option(
        None, min=1, max=MOST, help=f"Clients that each wait for an answer [{CLIENTS}]."
    ),
    request_rate: float | None = typer.Option(None, min=0.001, max=MOST, help="Requests a second, sent on schedule."),
    burst: int = BURST,
    lengths: str = typer.Option("", metavar="N,…", help="Token lengths of the requests. Default: real sentences."),
    workload: Path | None = typer.Option(None, metavar="FILE", help=WORKLOAD_HELP),
    canary: Path | None = typer.Option(
        None, metavar="FILE", help="Requests for the parity gate, with their answers or without (docs/operate.md)."
    ),
    max_error: float | None = typer.Option(None, min=0, max=1e6, help="How far an answer may be off [0.02]."),
    budget: str = typer.Option("60s", metavar="TIME", help="For each of the two comparisons with the current version."),
    skip: list[str] = typer.Option([], "--skip", metavar="GATE", help="Leave a gate out; may be repeated."),
    tokenizer: Path | None = TOKENIZER,
    vocab_size: int | None = typer.Option(
        None, min=8, max=MOST, help="Size of the vocabulary, where there is no tokenizer."
    ),
    config_name: str = CONFIG_NAME,
) -> None:
    """Put a new version of a served model into its place, if it passes every gate: check, load, parity, slo, ab.

    Exit 1 at the first gate that fails: the version before serves on, and no request is lost either way.
    """
    from perf.rollout.gates import MAX_ERROR, Demands
    from perf.rollout.promote import PromoteRequest
    from perf.rollout.promote import promote as run
    from perf.slo import REQUESTS, Slo

    _require_gates(skip)
    limits = Slo.parse(slo, "--slo", REQUESTS)
    if slo and not limits.terms:
        raise UsageError("there is no limit in it", where="--slo", got=", ".join(slo), expected="such as `p99<50ms`")
    traffic = workload_of(concurrency, request_rate, counts("--lengths", lengths), burst=burst, file=workload)
    demands = Demands(
        traffic,
        limits,
        canary,
        MAX_ERROR if max_error is None else max_error,
        duration_us("--budget", budget) / 1e6,
        tuple(skip),
        config_name or None,
        tokenizer_dir=tokenizer,
        vocab_size=vocab_size,
    )
    request = PromoteRequest(model_dir, url, candidate, demands, percent, duration_us("--hold", hold) / 1e6)
    console = console_of(context)
    result = run(request, analyzer=_analyzer, console=console)
    console.result(result.to_dict(), result.text())
    if not result.passed:
        raise typer.Exit(1)


def rollback(context: typer.Context, model_dir: Path = MODEL_DIR, url: str = URL) -> None:
    """Take the last step of `tritune promote` back: end a trial, or serve the version before. No request is lost."""
    from perf.rollout.back import rollback as run

    console = console_of(context)
    done = run(model_dir, url, console)
    console.result({**asdict(done), "log": str(done.log)}, done.text())


def drift(
    context: typer.Context,
    model_dir: Path = MODEL_DIR,
    url: str = URL,
    watched: str = typer.Option("10s", "--for", metavar="TIME", help="How long the live traffic is watched."),
    study: Path | None = typer.Option(
        None, metavar="DIR", help="The study that the config came from [the one that it names, else its newest]."
    ),
    log: Path | None = typer.Option(
        None, metavar="FILE", help="Recent requests: a .csv or .jsonl with lengths or texts, or a .txt of texts."
    ),
    canary: Path | None = typer.Option(
        None, metavar="FILE", help="Requests with their answers. Default: those of the last promotion."
    ),
    max_error: float | None = typer.Option(None, min=0, max=1e6, help="How far an answer may be off [0.02]."),
    tokenizer: Path | None = TOKENIZER,
) -> None:
    """Say whether a served model still is what it was tuned as: its answers, its load, the lengths of its requests.

    Exit 1 when it has drifted; the verdict is written to the model's decision log.
    """
    from perf.rollout.drift import DriftRequest
    from perf.rollout.drift import drift as look
    from perf.rollout.gates import MAX_ERROR

    limit = MAX_ERROR if max_error is None else max_error
    seconds = duration_us("--for", watched) / 1e6
    found = look(DriftRequest(model_dir, url, seconds, study, log, canary, limit, tokenizer))
    console_of(context).result(found.to_dict(), found.text())
    if found.drifted:
        raise typer.Exit(1)


def _analyzer() -> PerfAnalyzer:
    from perf.analyzer import find_perf_analyzer
    from tooling.errors import MissingError
    from tooling.runtime import find_runtime

    try:
        return find_perf_analyzer(find_runtime())
    except MissingError:  # on a host without the embedded server
        return find_perf_analyzer()


def _require_gates(names: list[str]) -> None:
    from perf.rollout.gates import GATES

    for name in names:
        if name not in GATES:
            raise UsageError(
                "no such gate", where="--skip", got=f"`{name}`", expected=", ".join(GATES), hint=suggest(name, GATES)
            )
