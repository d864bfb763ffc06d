"""`tritune tune`: search batching, instances and threads on a real server, with intervals. Layer: cli."""

from __future__ import annotations

import math
from dataclasses import replace
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
    counted,
    counts,
    delays,
    duration_us,
    given,
    grid_of,
    heeding,
    refuse_made,
    require_url,
    seeded,
    timed,
    workload_of,
)
from tooling.cli.tune_llm import is_vllm, tune_vllm
from tooling.cli.tune_several import several
from tooling.cli.tuned_answer import next_steps, paths
from tooling.console import Console
from tooling.errors import UsageError

if TYPE_CHECKING:
    from perf.model_analyzer import Asked
    from perf.result import TuneResult
    from perf.search import Budget
    from perf.slo import Slo
    from perf.target import RunningTarget
    from perf.tune_request import TuneRequest

_Metric = Literal["throughput", "avg", "p50", "p90", "p95", "p99"]
_OF_VLLM = (
    *("--concurrency", "--request-rate", "--lengths", "--output-lengths", "--speculate", "--slo"),
    *("--seed", "--apply", "--owner"),
)
"""What a vLLM model is tuned with: its engine batches by itself."""
_OF_ONE = (
    *("--url", "--allow-reconfigure", "--report", "--also", "--from-model-analyzer", "--input-data", "--for-rate"),
    *("--price-per-hour", "--owner"),
)
"""What a tuning of several models has no use for."""


def _spending(text: str) -> tuple[float, int | None]:
    """Seconds, or a number of points."""
    if text.isascii() and text.isdecimal():
        return math.inf, counts("--budget", text, least=2)[0]
    return duration_us("--budget", text) / 1e6, None


def _hardware_named(name: str) -> None:
    from tooling.config.names import name_problem

    if problem := name_problem(name, "hardware name"):
        raise UsageError(problems=[replace(problem, where="--hardware")])


def attach(app: typer.Typer) -> None:
    app.command()(tune)


def tune(
    context: typer.Context,
    models: list[Path] = typer.Argument(
        metavar="MODEL_DIR…",
        help="A model directory REPO/NAME with its config.pbtxt; of an ensemble its largest ONNX model is tuned, "
        "of a Python model instances and batching, of a vLLM model its scheduler. Several of one repository are "
        "tuned under the traffic of all.",
    ),
    concurrency: int | None = typer.Option(
        None, min=1, max=MOST, help=f"Clients that each wait for an answer [{CLIENTS}]."
    ),
    request_rate: float | None = typer.Option(None, min=0.001, max=MOST, help="Requests a second, sent on schedule."),
    distribution: Distribution = DISTRIBUTION,
    burst: int = BURST,
    workload: Path | None = typer.Option(None, metavar="FILE", help=WORKLOAD_HELP),
    lengths: str = counted("--lengths", "Token lengths of the requests. Default: real sentences."),
    output_lengths: str = counted(
        "--output-lengths", "Tokens that a vLLM model generates, drawn from these [16,64,128]."
    ),
    speculate: str = typer.Option(
        "",
        metavar="ngram:N|DIR:N",
        help="Tokens guessed ahead that are tried too for a vLLM model, by n-grams or a draft model.",
    ),
    input_data: Path | None = typer.Option(
        None, metavar="FILE", help="Your own requests, in perf_analyzer's JSON; implies --direct."
    ),
    objective: _Metric | None = typer.Option(
        None, help="What to make better [throughput with clients, p95 under a rate]."
    ),
    max_p99: str = timed("--max-p99", "A setting must keep this p99, like 50ms.", "", least="1us"),
    instances: str = counted("--instances", "Instance counts to try. Default: from the cores."),
    threads: str = counted("--threads", "Threads per instance to try; 0: left to ONNX Runtime.", 0),
    delay: str = typer.Option(
        "",
        metavar="TIME,…",
        callback=heeding(delays),
        help="Queue delays to try, like 0,2ms. Default: up to 50ms.",
    ),
    max_batch_size: str = counted("--max-batch-size", "Largest batches to try. Default: 1 to 64.", 0),
    slo: str = typer.Option(
        "",
        metavar="TERMS",
        help="Limits and goal, like `p99<50ms,throughput`; `ttft_p95<1s,tokens_per_s` for vLLM (docs/measuring.md).",
    ),
    budget: str = typer.Option(
        "",
        metavar="TIME|N",
        callback=heeding(_spending),
        help="Start nothing new beyond this time, or N measured points [78s; 155s with a latency; as much again a "
        "model, 30s more a FORM].",
    ),
    for_rate: float | None = typer.Option(
        None, min=0.001, max=MOST, metavar="R", help="Say how many such servers answer R requests a second."
    ),
    price_per_hour: float | None = typer.Option(
        None, min=0, max=MOST, metavar="P", help="Price of such a server: say what a million requests cost."
    ),
    owner: str = typer.Option("", metavar="NAME", help="Who stands by the decision [the user's login name]."),
    from_model_analyzer: Path | None = typer.Option(
        None, metavar="YAML", help="Values to try, traffic and demands from a Model Analyzer file, unless given here."
    ),
    also: list[str] = typer.Option(
        [],
        metavar="FORM",
        help="Try another form of the model with the setting found: a model directory (another precision or backend), "
        "a config file, or settings such as parameters[execution_mode]=1. Repeat it for several.",
    ),
    weight: list[str] = typer.Option(
        [], metavar="NAME=W", help="How much the gain of one of several models counts [1]."
    ),
    direct: bool = typer.Option(False, "--direct", help="Search by measurement alone, without the simulator."),
    study: Path | None = typer.Option(None, help="Directory of the study; resumed if it is there."),
    tokenizer: Path | None = TOKENIZER,
    vocab_size: int | None = typer.Option(
        None, min=8, max=MOST, help="Size of the vocabulary, where there is no tokenizer."
    ),
    seed: int = seeded("Fixes the contents of the requests."),
    apply: bool = typer.Option(False, "--apply", help="Write the chosen setting to configs/HARDWARE.pbtxt."),
    report: Path | None = typer.Option(None, metavar="FILE", help="Write an HTML report."),
    url: str = typer.Option("", metavar="HOST:PORT", help="On a Triton that runs already, by its HTTP address."),
    allow_reconfigure: bool = typer.Option(
        False, "--allow-reconfigure", help="Load the settings there; its own configuration comes back at the end."
    ),
    hardware: str = typer.Option(
        "",
        metavar="NAME",
        callback=heeding(_hardware_named),
        help="Names configs/NAME.pbtxt [this machine's, as in cpu-2; needed for --apply with a --url elsewhere].",
    ),
) -> None:
    """Find a setting that is surely better than the current config, or say that there is none.

    Exit 1 when no setting keeps the limits. The same command again resumes its study and measures nothing twice.
    """
    from perf.findings import Wanted
    from perf.tune_request import TuneRequest

    console = console_of(context)
    model, said = models[0], given(context)
    if any(map(is_vllm, models)):
        if len(models) > 1:
            raise UsageError("a vLLM model is tuned by itself", got=f"{len(models)} models", expected="one")
        met = tune_vllm(
            model,
            console,
            concurrency=concurrency,
            request_rate=request_rate,
            lengths=counts("--lengths", lengths),
            outputs=counts("--output-lengths", output_lengths),
            slo=slo,
            seed=seed,
            apply=apply,
            owner=owner or _login(),
            speculate=speculate,
            others=[option for option in said if option not in _OF_VLLM],
        )
        raise typer.Exit(0 if met else 1)
    _refuse_unfit(said, models)
    require_url(url, reconfigure=allow_reconfigure)
    grid = grid_of(instances, threads, delay, max_batch_size)
    if from_model_analyzer:
        asked = _asked(from_model_analyzer, model, console)
        grid = asked.grid.overridden(grid)
        if asked.workload and not (concurrency or request_rate or workload):
            concurrency, request_rate = asked.workload.concurrency, asked.workload.request_rate
        slo = slo or ("" if objective or max_p99 else ",".join(asked.words))
    traffic = workload_of(
        concurrency, request_rate, counts("--lengths", lengths), seed, distribution, burst=burst, file=workload
    )
    wanted = _slo(slo, objective, max_p99, by_rate=traffic.mode == "request_rate", forms=bool(also))
    request = TuneRequest(
        model,
        traffic,
        wanted,
        grid,
        budget=_budget(budget, wanted, len(also), len(models)),
        study_dir=study,
        tokenizer_dir=tokenizer,
        vocab_size=vocab_size,
        direct=direct or input_data is not None,
        input_data=input_data,
        wanted=Wanted(for_rate, price_per_hour),
        also=tuple(also),
    )
    if len(models) > 1:
        several(request, models, weight, console, apply=apply, hardware=hardware)
        return
    running = _running(url, model, reconfigure=allow_reconfigure) if url else None
    result, files = run(request, console, apply=apply, report=report, owner=owner, running=running, hardware=hardware)
    shown = [result.text(), paths(files)]
    if result.chosen not in (None, result.default):
        shown.append(next_steps(Path(files["config"]) if files["config"] else None, url))
    console.result({**result.to_dict(), **files}, "\n\n".join(shown))
    if not result.met:
        raise typer.Exit(1)


def _refuse_unfit(said: list[str], models: list[Path]) -> None:
    """Refuse options that these models have no use for, and those that exclude each other."""
    for option in ("--output-lengths", "--speculate"):
        if option in said:
            raise UsageError(
                "only a vLLM model generates", where=option, got=f"{models[0]}, which is none", hint="leave it out"
            )
    if "--weight" in said and len(models) == 1:
        raise UsageError("there is only one model", where="--weight", hint="leave it out")
    strange = [option for option in said if option in _OF_ONE]
    if strange and len(models) > 1:
        what, hint = "this is for one model", "leave it out, or tune each model by itself"
        raise UsageError(what, where=", ".join(strange), got=f"{len(models)} models", hint=hint)
    refuse_made(said)


def _asked(file: Path, model: Path, console: Console) -> Asked:
    from perf.model_analyzer import read_model_analyzer

    asked = read_model_analyzer(file, model.absolute().name)
    if asked.unused:
        console.info(f"not used from {file}: {', '.join(asked.unused)}")
    return asked


def _slo(words: str, objective: str | None, max_p99: str, *, by_rate: bool, forms: bool) -> Slo:
    """The demands, of --slo or of the short options; under a rate p95 stands in for throughput, which is the rate."""
    from perf.slo import FORMS, METRICS, PRESETS, REQUESTS, Slo

    if words and (objective or max_p99):
        raise UsageError("--slo excludes --objective and --max-p99", where="--slo", got=words)
    terms = [*([words] if words else []), *([f"p99<={max_p99}"] if max_p99 else [])]
    goal_is_said = {word.strip() for word in words.split(",")} & {*METRICS, *PRESETS}
    if objective or (by_rate and not goal_is_said):
        terms.append(objective or "p95")
    return Slo.parse(terms, "--slo" if words else "--objective", FORMS if forms else REQUESTS)


def _budget(text: str, slo: Slo, forms: int, models: int) -> Budget:
    """What is given, else a time. A latency needs longer runs than throughput does, other forms their own."""
    from perf.search import COMPARISON_S, Budget

    if text:
        return Budget(*_spending(text))
    quick = slo.objective.metric == "throughput" and not any(term.metric != "throughput" for term in slo.terms)
    return Budget((78 if quick else 155) * models + COMPARISON_S * forms)


def run(
    request: TuneRequest,
    console: Console,
    *,
    apply: bool,
    report: Path | None,
    owner: str = "",
    running: RunningTarget | None = None,
    hardware: str = "",
) -> tuple[TuneResult, dict[str, str | None]]:
    """Tune, write the config and the report where asked; the paths of `study`, `config`, `decision` and `report`.

    The config is named after `hardware`, by default what computes. Raises UsageError where that cannot be told.
    """
    from perf.analyzer import find_perf_analyzer
    from perf.report import write_report
    from perf.tune import tune
    from perf.tuned import hardware_of, require_ours, tuned_dir, write_decision, write_tuned_config
    from tooling.repository import config_path, require_writable
    from tooling.runtime import find_runtime

    name = hardware or hardware_of(running)
    if report:
        require_writable(report)
    if apply:
        if name is None:
            what, hint = "what the server runs on is not known here", "name it with --hardware, as in gpu-h200-x1"
            raise UsageError(what, where=running.url if running else None, hint=hint)
        for place in (tuned_dir(request.model_dir), *filter(Path.is_dir, map(Path, request.also))):
            require_ours(config_path(place, name))
    runtime = find_runtime()
    result = tune(request, runtime=runtime, analyzer=find_perf_analyzer(runtime), console=console, running=running)
    record = write_decision(result, name, owner or _login())
    written = None
    if apply and name and result.met:
        written = write_tuned_config(result, request.model_dir, name, request.also)
    if report:
        write_report(result.study, report)
    files = {"config": written, "study": result.study, "decision": record, "report": report}
    return result, {name: str(path.absolute()) if path else None for name, path in files.items()}


def _running(url: str, model: Path, *, reconfigure: bool) -> RunningTarget:
    """The model of this directory on a running server that takes other configurations."""
    from perf.target import RunningTarget

    if not reconfigure:
        raise UsageError(
            "a running server is only measured as it is, so no other settings can be tried",
            where=url,
            hint="allow it with --allow-reconfigure, or measure with `tritune bottleneck --url`",
        )
    return RunningTarget(url, model.absolute().name, reconfigure=True)


def _login() -> str:
    """The name of the user; a container may know none."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
