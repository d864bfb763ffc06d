"""Tune a model: from a model directory and a workload to the setting that is surely better, with its evidence. Layer:
above search and study."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from perf.bench import Bench, Subject
from perf.grid import Candidate, Grid, candidates, current
from perf.input_data import write_input_data
from perf.lengths import fit_to_model, traffic_lengths
from perf.measurement import Measurement
from perf.provenance import host_facts, session, sha256
from perf.result import TuneResult, figures
from perf.search import Search
from perf.study import Record, Study
from perf.target import EmbeddedTarget, Variant
from perf.trial import Objective, Trial, choose
from perf.workload import Workload
from tooling.config.changes import knob_problems
from tooling.config.knobs import apply, read
from tooling.config.render import origin, render
from tooling.errors import ExternalError, Problem, Refused, UsageError
from tooling.releases import current_release
from tooling.repository import config_path, locate_model, read_config, read_text, usable_cores, write_atomic
from tooling.signature.onnx_file import read_onnx

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer
    from tooling.config.proto import ModelConfig
    from tooling.console import Console
    from tooling.runtime import Runtime
    from tooling.signature.spec import ModelSignature

_WINDOW_MS = {"throughput": 300, "avg": 300, "p50": 300, "p90": 400, "p95": 600, "p99": 1_000}
"""Windows long enough for the statistic at some hundred requests a second; a run is three of them."""
_LIMIT_MS = 600
"""The same for a p99 limit, which is held by the median over all runs."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What to tune, under which traffic, for what, and for how long; without lengths those of real text.

    `study_dir` is by default a directory in `studies` named after the whole question, so that the same question finds
    its study again; `tokenizer_dir` by default the one in the model directory.
    """

    model_dir: Path
    workload: Workload
    objective: Objective = field(default_factory=Objective)
    grid: Grid = field(default_factory=Grid)
    budget_s: float = 180
    study_dir: Path | None = None
    studies: Path = Path(".tritune") / "studies"
    tokenizer_dir: Path | None = None
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    model_dir: Path
    signature: ModelSignature
    config: ModelConfig
    workload: Workload
    default: Candidate
    tries: tuple[Candidate, ...]
    window_ms: int
    header: Record
    study_dir: Path


def tune(request: TuneRequest, *, runtime: Runtime, analyzer: PerfAnalyzer, console: Console) -> TuneResult:
    """Measure the current config against each candidate on one embedded server and choose.

    Everything measured goes to the study; the same request resumes it and measures nothing twice. Raises UsageError
    for a request or a model that cannot be tuned, Refused when the current config cannot keep up with the asked rate
    or Triton refuses it, ExternalError when the server or perf_analyzer fails.
    """
    plan = _plan(request, analyzer)
    target = EmbeddedTarget(plan.model_dir.parent, runtime)
    with Study(plan.study_dir, plan.header, session()) as study:
        kept = sum(record["record"] == "measurement" for record in study.records)
        console.info(f"study {study.directory}{f': {kept} runs are there already' if kept else ''}")
        input_file = study.directory / "input.json"
        write_input_data(
            input_file,
            plan.signature,
            plan.workload,
            _tokenizer(request, plan.model_dir),
            batching=plan.config.max_batch_size > 0,
            vocab_size=request.vocab_size,
        )
        with _resumable(), Bench(_subject(plan, input_file), study, target, analyzer) as bench:
            search = Search(bench, request.objective, request.budget_s, console)
            default, trials = search.run(plan.default, plan.tries)
            if not search.points:
                raise Refused(problems=[Problem(t.reason or t.state, where=t.candidate.label) for t in trials])
            result = _result(plan, request, default, trials, search.points, bench.spent_s)
        record = {"record": "result", "result": result.to_dict()}
        if record not in study.records:
            study.append(record)
    return result


@contextmanager
def _resumable() -> Iterator[None]:
    """Say with every failure of a program that nothing measured is lost."""
    try:
        yield
    except ExternalError as error:
        kept = "what was measured is kept: the same command goes on from there"
        raise ExternalError(
            problems=[replace(p, hint=f"{p.hint}; {kept}" if p.hint else kept) for p in error.problems]
        ) from error


def write_tuned_config(result: TuneResult, model_dir: Path, hardware: str) -> Path:
    """Write the chosen setting to `configs/<hardware>.pbtxt` with its evidence as comments; returns the path.

    `config.pbtxt` stays as it is: tuned values hold only for the hardware they were measured on. Raises UsageError when
    nothing was chosen, or when the file holds edits.
    """
    if result.chosen is None:
        raise UsageError("there is no setting to write", where=model_dir, got=result.conclusion)
    path = config_path(model_dir, hardware)
    require_ours(path)
    config = apply(result.chosen.candidate.knobs, read_config(model_dir))
    write_atomic(path, render(config, evidence=_evidence(result, path, hardware)))
    return path


def require_ours(path: Path) -> None:
    """Raise UsageError when a tuned config would overwrite a file that a person wrote or edited."""
    if path.exists() and origin(read_text(path)) is None:
        raise UsageError(
            "the file is not as tritune wrote it",
            where=path,
            got="an edited or hand-written config",
            hint="move it away, or tune without --apply",
        )


def _evidence(result: TuneResult, path: Path, hardware: str) -> Sequence[str]:
    """What the values of a tuned config stand on."""
    assert result.chosen is not None
    lines = [f"Measured on {result.finished[:10]} on {hardware}; take it with --model-config-name={hardware}."]
    lines += [f"Traffic: {result.workload}; goal: {result.objective}; {result.runs} runs.", result.conclusion]
    for name, trial in (("config.pbtxt", result.default), ("this file", result.chosen)):
        rate, p50, p99 = figures(trial)
        lines.append(f"{name}: {rate} requests/s, p50 {p50} ms, p99 {p99} ms")
    return [*lines, f"Study: {os.path.relpath(result.study, path.absolute().parent)}"]


def _subject(plan: _Plan, input_file: Path) -> Subject:
    tries = {c.id: Variant(c.id, apply(c.knobs, plan.config), plan.model_dir) for c in plan.tries}
    base = Variant(plan.default.id, plan.config, plan.model_dir)
    return Subject(plan.model_dir.name, base, tries, plan.workload, input_file, plan.window_ms)


def _plan(request: TuneRequest, analyzer: PerfAnalyzer) -> _Plan:
    source = locate_model(request.model_dir, "onnxruntime")
    if source.model_dir is None:
        raise UsageError("not a model directory", where=request.model_dir, expected="REPO/NAME with 1/model.onnx in it")
    config, signature = read_config(source.model_dir), read_onnx(source.file)
    base = read(config)
    _check(request, config)
    tries = candidates(base, request.grid, usable_cores())
    if not tries:
        raise UsageError(
            "every setting of the grid equals the current config",
            where=source.model_dir,
            hint="give other values with --instances, --threads, --delay or --max-batch-size",
        )
    impossible = [problem for candidate in tries for problem in knob_problems(candidate.knobs, "onnxruntime")]
    if impossible:
        raise UsageError(problems=list(dict.fromkeys(impossible)))
    workload = _with_lengths(request, signature, config, source.model_dir)
    window_ms = max(_WINDOW_MS[request.objective.metric], _LIMIT_MS if request.objective.max_p99_us is not None else 0)
    header: Record = {
        "tool": {"tritune": version("tritune"), "perf_analyzer": f"{analyzer.version} ({analyzer.source})"},
        "server": {"tritonserver": current_release().tritonserver, "onnxruntime": current_release().onnxruntime},
        "host": host_facts(),
        "model": {"name": source.name, "sha256": sha256(source.file), "config_sha256": _config_digest(config)},
        "workload": workload.model_dump(mode="json"),
        "grid": [candidate.id for candidate in tries],
        "objective": {"metric": request.objective.metric, "max_p99_us": request.objective.max_p99_us},
        "window_ms": window_ms,
    }
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:8]
    study_dir = request.study_dir or request.studies / f"{source.name}-{digest}"
    return _Plan(
        source.model_dir, signature, config, workload, current(base), tries, window_ms, header, study_dir.absolute()
    )


def _check(request: TuneRequest, config: ModelConfig) -> None:
    """What cannot be asked of this config, or together."""
    if not config.input or not config.output:
        raise UsageError(
            "the config leaves inputs, outputs and batching to Triton, so it does not say what is tuned",
            where=config.name or request.model_dir,
            expected="a config that lists inputs and outputs",
            hint=f"write one with `tritune gen-config {request.model_dir}`",
        )
    if request.objective.metric == "throughput" and request.workload.request_rate is not None:
        raise UsageError(
            "throughput under a fixed request rate is that rate, so it cannot be the objective",
            expected="a latency such as p95",
            hint="leave --objective out, or give --concurrency in place of --request-rate",
        )
    asked = request.grid.max_batch_sizes
    if (config.max_batch_size == 0 and any(asked)) or (config.max_batch_size > 0 and 0 in asked):
        raise UsageError(
            "switching batching on or off changes the request shapes, so both cannot be compared",
            where=config.name or None,
            got=f"--max-batch-size {','.join(map(str, asked))} for a config with {config.max_batch_size}",
            hint="write the config anew with `tritune gen-config --max-batch-size` first",
        )


def _with_lengths(request: TuneRequest, signature: ModelSignature, config: ModelConfig, model_dir: Path) -> Workload:
    """The workload with lengths, where the model has a free axis and none are given."""
    asked, batching = request.workload.lengths, config.max_batch_size > 0
    found = traffic_lengths(asked, signature, _tokenizer(request, model_dir), batching=batching)
    lengths = fit_to_model(found, model_dir, asked=bool(asked))
    return request.workload.model_copy(update={"lengths": lengths})


def _tokenizer(request: TuneRequest, model_dir: Path) -> Path:
    return request.tokenizer_dir or model_dir / "tokenizer"


def _config_digest(config: ModelConfig) -> str:
    return hashlib.sha256(config.SerializeToString(deterministic=True)).hexdigest()


def _result(
    plan: _Plan,
    request: TuneRequest,
    default: Trial,
    trials: tuple[Trial, ...],
    points: Sequence[Measurement],
    spent_s: float,
) -> TuneResult:
    lengths = plan.workload.lengths
    shortest, longest = (min(lengths), max(lengths)) if lengths else (0, 0)
    spread = f", {shortest if shortest == longest else f'{shortest}–{longest}'} tokens" if lengths else ""
    chosen = choose(default, trials)
    if chosen and chosen.against:  # runs of the same minutes, so that both rows of the table are comparable
        default = replace(default, figures=chosen.against)
    return TuneResult(
        model=plan.model_dir.name,
        workload=f"{plan.workload}{spread}",
        objective=str(request.objective),
        default=default,
        trials=trials,
        chosen=chosen,
        runs=len(points),
        disturbed=sum(p.disturbed for p in points),
        spent_s=round(spent_s, 1),
        finished=max(p.started for p in points),
        study=plan.study_dir,
    )
