"""`tritune simulate`: what the server would do under other settings and traffic, without a server. Layer: cli."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tooling.cli.app import console_of
from tooling.cli.options import (
    BURST,
    CLIENTS,
    DISTRIBUTION,
    MOST,
    WORKLOAD_HELP,
    Distribution,
    counts,
    given,
    grid_of,
    seeded,
    workload_of,
)
from tooling.console import Console, table
from tooling.errors import UsageError

if TYPE_CHECKING:
    from perf.curve import ServiceCurve
    from perf.whatif import Question
    from tooling.config.knobs import Knobs
    from tooling.config.proto import ModelConfig


def attach(app: typer.Typer) -> None:
    app.command()(simulate)


def simulate(
    context: typer.Context,
    model: Path | None = typer.Argument(None, metavar="MODEL_DIR|CONFIG", help="A model directory or a config.pbtxt."),
    curve: Path | None = typer.Option(
        None, metavar="FILE", help="Service curve of `tritune profile` [.tritune/curves/…]."
    ),
    concurrency: int | None = typer.Option(
        None, min=1, max=MOST, help=f"Clients that each wait for an answer [{CLIENTS}]."
    ),
    request_rate: float | None = typer.Option(None, min=0.001, max=MOST, help="Requests a second, sent on schedule."),
    distribution: Distribution = DISTRIBUTION,
    burst: int = BURST,
    workload: Path | None = typer.Option(None, metavar="FILE", help=WORKLOAD_HELP),
    lengths: str = typer.Option("", metavar="N,…", help="Token lengths of the requests. Default: the curve's."),
    instances: str = typer.Option("", metavar="N,…", help="Instance counts in place of the configured one."),
    threads: str = typer.Option("", metavar="N,…", help="Threads per instance in place of the configured ones."),
    delay: str = typer.Option("", metavar="TIME,…", help="Queue delays, like 0,2ms."),
    max_batch_size: str = typer.Option("", metavar="N,…", help="Largest batches."),
    preferred_batch_size: str = typer.Option("", metavar="N,…", help="Sizes at which a batch is closed early."),
    replicas: str = typer.Option("", metavar="N,…", help="Spread the rate over so many servers; shown is one."),
    buckets: int | None = typer.Option(
        None, min=1, max=MOST, metavar="N", help="Compare 1 to N lengths to pad to, and no padding."
    ),
    requests: int = typer.Option(20_000, min=100, max=MOST, help="How many requests to play."),
    seed: int = seeded("Fixes random sending times and scatter."),
    scenario: Path | None = typer.Option(
        None, metavar="FILE", help="Play one scenario: its own times and service law."
    ),
) -> None:
    """Predict throughput and latency from a measured service curve; nothing is measured.

    Every combination of the values given that the curve holds, beside the config as it is.
    """
    from perf.whatif import Question, measured, settings

    console = console_of(context)
    if scenario is not None:
        _alone(context)
        _play(scenario, console)
        return
    if model is None:
        raise UsageError("nothing to simulate", expected="MODEL_DIR or CONFIG, or --scenario FILE")
    config = _config(model)
    known, path = _curve(curve, config)
    sizes = counts("--lengths", lengths)
    traffic = workload_of(concurrency, request_rate, sizes, seed, distribution, burst=burst, file=workload)
    question = Question(config, known, traffic, requests)
    grid = grid_of(instances, threads, delay, max_batch_size)
    asked = settings(question, grid, counts("--preferred-batch-size", preferred_batch_size) or None)
    tries, lacking = measured(question, asked)
    if buckets and any(len(values) > 1 for values in grid.to_dict().values()):
        raise UsageError("buckets are compared under one setting", where="--buckets", got=f"{len(tries)} settings")
    servers = counts("--replicas", replicas)
    if buckets and servers:
        raise UsageError("--buckets and --replicas exclude each other", hint="give one of them")
    if buckets:
        data, text = _buckets(question, tries[-1], buckets, seed)
    else:
        data, text = _what_if(question, tries, seed, servers)
    notes = [*lacking, *_notes(question, tries), *_other_model(model, known)]
    head = f"predicted, not measured: {question}"
    origin = f"curve {path}, measured {known.started[:10]} on {known.host['cpu']}"
    source = {"curve": str(path.absolute()), "measured": known.started, "host": known.host}
    answer = {"kind": "prediction", "traffic": str(question), **source, **data, "notes": notes}
    console.result(answer, "\n".join([head, "", text, "", *(f"note: {note}" for note in notes), origin]))


def _alone(context: typer.Context) -> None:
    """Refuse what was given beside a scenario."""
    others = [option for option in given(context) if option != "--scenario"]
    if context.params["model"] is not None:
        others = ["MODEL_DIR", *others]
    if others:
        raise UsageError(
            "a scenario brings its own config, traffic and service times",
            where="--scenario",
            got=" ".join(others),
            expected="nothing beside it",
        )


def _what_if(
    question: Question, tries: tuple[Knobs, ...], seed: int, servers: tuple[int, ...]
) -> tuple[dict[str, Any], str]:
    """Every setting, on one server or on each number of them."""
    from perf.whatif import HEADER, what_if

    if not servers:
        answers = what_if(question, tries, seed=seed)
        return {"predicted": [a.to_dict() for a in answers]}, table(HEADER, [a.row() for a in answers])
    found = [(count, a) for count in servers for a in what_if(question.spread(count), tries, seed=seed)]
    rows = [[f"{count} × {label}", *figures] for count, (label, *figures) in ((n, a.row()) for n, a in found)]
    return {"predicted": [{"replicas": count, **a.to_dict()} for count, a in found]}, table(HEADER, rows)


def _buckets(question: Question, knobs: Knobs, most: int, seed: int) -> tuple[dict[str, Any], str]:
    from perf.whatif import bucket_table, with_buckets

    found = with_buckets(question, knobs, most, seed=seed)
    predicted = [{"plan": asdict(plan), **answer.to_dict()} for plan, answer in found]
    return {"predicted": predicted}, bucket_table(found)


def _notes(question: Question, tries: tuple[Knobs, ...]) -> tuple[str, ...]:
    from perf.whatif import caveats

    return tuple(caveats(question, tries))


def _other_model(model: Path, measured: ServiceCurve) -> tuple[str, ...]:
    """A note where the model in the directory is not the one that was measured."""
    from perf.provenance import sha256
    from tooling.repository import locate_model

    try:
        same = not model.is_dir() or sha256(locate_model(model).file) == measured.model.get("sha256")
    except (OSError, UsageError):
        return ()  # a directory with nothing but a config will do
    return () if same else ("the curve was measured with another model file: `tritune profile` measures this one",)


def _config(model: Path) -> ModelConfig:
    """The config of a model directory or of a file, with the name of the model."""
    from tooling.config.render import parse
    from tooling.repository import absolute, read_config, read_text

    path = absolute(model)
    if path.is_dir():
        config, name = read_config(path), path.name
    else:
        config, name = parse(read_text(path), str(model)), path.parent.name
    config.name = config.name or name
    return config


def _curve(given: Path | None, config: ModelConfig) -> tuple[ServiceCurve, Path]:
    from perf.curve import curve_path, read_curve
    from tooling.repository import cpu_name

    path = given or curve_path(config.name, cpu_name())
    return read_curve(path), path


def _play(file: Path, console: Console) -> None:
    """Predict one scenario; its result has exactly the figures that a recording gives."""
    from perf.sim.scenario import predict_scenario, read_scenario, scenario_result
    from tooling.repository import read_json

    content = read_json(file, expected="one scenario")
    result = scenario_result(predict_scenario(read_scenario(content, file)))
    rows = [[name, f"{result[name]:.1f}"] for name in ("mean_ms", "p50_ms", "p90_ms", "p99_ms")]
    batches = ", ".join(f"{count} of {size}" for size, count in result["batch_histogram"].items())
    rows += [["executions", str(result["executions"])]]
    console.result(result, f"{table(['predicted', ''], rows)}\n\nbatches {batches}")
