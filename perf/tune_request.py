"""What is asked of a tuning, and everything settled before a server starts. Layer: above search and study."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.findings import Wanted
from perf.footprint import Room
from perf.forms import Form, forms
from perf.grid import Candidate, Grid, candidates, current, threads_in_effect, wide
from perf.input_check import check_input_data, expected_inputs
from perf.lengths import fit_to_model, traffic_lengths
from perf.load import window_ms as planned_window_ms
from perf.operands import Base
from perf.pipeline import Front, front_of
from perf.preflight import cache_cautions, fitted, without_cache
from perf.provenance import conditions, sha256
from perf.search import Budget
from perf.slo import FORMS, REQUESTS, Goal, Slo, Term
from perf.study import Record, study_dir
from perf.target import Variant
from perf.workload import Workload
from tooling.config.changes import knob_problems
from tooling.config.knobs import Knobs, apply, one_group, read, threads_key
from tooling.config.proto import backend_of
from tooling.config.tensors import signature_of
from tooling.errors import Refused, UsageError
from tooling.repository import ModelFile, config_path, locate_model, read_config, usable_cores
from tooling.signature.onnx_file import read_onnx

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer
    from tooling.config.proto import ModelConfig
    from tooling.console import Console
    from tooling.signature.spec import ModelSignature

_WINDOW_MS = {"throughput": 300, "avg": 300, "p50": 300, "p90": 400, "p95": 600, "p99": 1_000}
"""Windows long enough for the statistic at some hundred requests a second; a run is three of them."""
_LIMIT_MS = 600
"""The least window where p95 or p99 is limited: the limit is held by the requests of all runs together."""
_INSTANCES = (1, 2, 4)
"""Counts that are tried of a backend whose instances have no threads to be set."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What to tune, under which traffic, for what, and for how long; without lengths those of real text.

    `study_dir` is by default a directory in `studies` named after the whole question, so that the same question finds
    its study again; `tokenizer_dir` by default the one in the model directory. `direct` leaves the simulator out.
    `input_data` are the user's own requests in perf_analyzer's JSON, in place of made ones; only for a direct search.
    `also` names other forms of the model to try with the setting found (perf.forms).
    """

    model_dir: Path
    workload: Workload
    slo: Slo = field(default_factory=Slo)
    grid: Grid = field(default_factory=Grid)
    budget: Budget = field(default_factory=lambda: Budget(180))
    study_dir: Path | None = None
    studies: Path = Path(".tritune") / "studies"
    tokenizer_dir: Path | None = None
    vocab_size: int | None = None
    direct: bool = False
    input_data: Path | None = None
    wanted: Wanted = field(default_factory=Wanted)
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A request with all it stands on: `config` is measured, `free` is the one that settings are applied to, with one
    instance group; `tries` are for a direct search, `wide` for the simulator, `forms` for the setting found; `header`
    names the question, which finds its study in `study_dir` again. Behind a `front` the model is one of an ensemble,
    which requests, workload and `signature` are for. `room` is the memory that settings are loaded into; `direct` says
    that the simulator is left out, as was asked or because this backend has no service curve."""

    model_dir: Path
    front: Front | None
    signature: ModelSignature
    config: ModelConfig
    free: ModelConfig
    workload: Workload
    default: Candidate
    tries: tuple[Candidate, ...]
    wide: tuple[Candidate, ...]
    window_ms: int
    forms: tuple[Form, ...]
    header: Record
    study_dir: Path
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    room: Room | None = None
    direct: bool = False

    def fitting(self, those: Sequence[Candidate]) -> Sequence[Sequence[Candidate]]:
        """Settings, divided into those that fit into memory at once beside the current config."""
        return self.room.groups(those, self.default) if self.room else [those]

    def variant(self, one: Candidate) -> Variant:
        """A setting as it is loaded: its configuration, and the files of its form of the model."""
        form = next((form for form in self.forms if form.text == one.form), None)
        if form is None:
            return Variant(one.id, apply(one.knobs, self.free), self.model_dir)
        return form.variant(one.id, apply(one.knobs, without_cache(form.config)))


def plan_of(
    request: TuneRequest,
    analyzer: PerfAnalyzer,
    console: Console,
    server: Mapping[str, Any],
    *,
    server_is_ours: bool = True,
) -> Plan:
    """Everything that a request fixes, on a server of these facts.

    Raises UsageError for a request or a model that cannot be tuned.
    """
    front = front_of(request.model_dir)
    source = _located(front.part if front else request.model_dir)
    if source.model_dir is None:
        raise UsageError("not a model directory", where=request.model_dir, expected="REPO/NAME with 1/model.onnx in it")
    config = read_config(source.model_dir)
    own, onnx = Base(source.name, config, source.model_dir), source.format.backend == "onnxruntime"
    signature = read_onnx(source.file) if onnx else signature_of(config, source.model_dir)
    free = _free(config)
    base = read(free)
    _check(request, config)
    tries, broad = _settings(request, base, own, front.config.max_batch_size if front else 0)
    direct = request.direct or not onnx
    asked, signature = (front.config, front.signature) if front else (config, signature)
    workload = _traffic(request, signature, asked, source.model_dir)
    others = forms(request.also, own if server_is_ours else replace(own, model_dir=None))
    window_ms = planned_window_ms(workload) or _window_ms(request.slo)
    question = _question(request, front, others, workload, tries if direct else broad, window_ms)
    header: Record = {
        **question,
        **conditions(f"{analyzer.version} ({analyzer.source})", server),
        "model": {"name": source.name, "sha256": sha256(source.file), "config_sha256": _config_digest(config)},
    }
    return Plan(
        source.model_dir,
        front,
        signature,
        without_cache(config),
        without_cache(free),
        workload,
        current(base),
        tries,
        broad,
        window_ms,
        others,
        header,
        (request.study_dir or study_dir(request.studies, source.name, question, header, console)).absolute(),
        tuple(cache_cautions([asked, config], left_out=True)),
        direct=direct,
    )


def _located(model_dir: Path) -> ModelFile:
    """The ONNX file, or the file of a Python model, whose settings are searched by measurement alone.

    Raises UsageError, for a model of another backend with what can be done with it.
    """
    config = read_config(model_dir) if config_path(model_dir).is_file() else None
    backend = backend_of(config) if config else ""
    if backend == "python":
        return locate_model(model_dir, backend)
    try:
        return locate_model(model_dir, "onnxruntime", ensembles=True)
    except UsageError:
        if backend in ("", "onnxruntime"):
            raise
    raise UsageError(
        "the settings of this backend are not searched",
        where=model_dir,
        got=f"backend {backend}",
        expected="an ONNX model, an ensemble with one, a Python model, or a vLLM model",
        hint="on a server that has this backend `tritune compare current instances=2 --url HOST:PORT` measures "
        "settings that you name",
    )


def _free(config: ModelConfig) -> ModelConfig:
    """The config that settings are applied to, with one instance group; of a Python model with its count in words,
    which is 1 by default."""
    free = one_group(config)
    if backend_of(config) != "python" or read(free).instance_count:
        return free
    return apply(replace(read(free), instance_count=1), free)


def _grid(grid: Grid, base: Knobs, backend: str) -> Grid:
    """What is tried: of a backend without threads of its own other counts of instances, but those in effect."""
    if threads_key(backend) is not None:
        return grid
    if grid.threads:
        what = f"the {backend} backend has no setting for threads"
        raise UsageError(what, where="--threads", hint="leave it out")
    threads = (threads_in_effect(base),)
    return replace(grid, instances=grid.instances or _INSTANCES, threads=threads)


def _question(
    request: TuneRequest,
    front: Front | None,
    others: tuple[Form, ...],
    workload: Workload,
    tried: Sequence[Candidate],
    window_ms: int,
) -> Record:
    """What is asked, whatever measures it."""
    asked: Record = {
        "command": "tune",
        "input_data": sha256(request.input_data) if request.input_data else None,
        "also": {form.word: form.digest for form in others},
        "slo": list(request.slo.words),
    }
    if front:
        asked["front"] = {"name": front.model_dir.name, "config_sha256": _config_digest(front.config)}
    traffic = {"workload": workload.model_dump(mode="json"), "grid": [one.id for one in tried], "window_ms": window_ms}
    return {**asked, **traffic}


def within_memory(plan: Plan, *, gpu: bool) -> Plan:
    """The plan without the settings that would not fit beside the current config into the GPU's or the main memory.

    Raises Refused when none fits.
    """
    room = Room.here(_located(plan.model_dir).file, gpu=gpu)
    if room is None:
        return plan
    tries, broad = (room.fitting(ones, plan.default) for ones in (plan.tries, plan.wide))
    left_out = room.left_out((*plan.tries, *plan.wide), plan.default)
    if not tries:
        raise Refused("no setting fits into memory", where=plan.model_dir, got="; ".join(left_out))
    return replace(plan, tries=tries, wide=broad, left_out=left_out, room=room)


def _settings(
    request: TuneRequest, base: Knobs, model: Base, least_rows: int
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Those for a direct search and those for the simulator; behind an ensemble of `least_rows` with at least as many.

    Raises UsageError for values that no setting can have, or when nothing is left to try.
    """
    backend = backend_of(model.config)
    grid = _grid(request.grid, base, backend)
    both = [make(base, grid, usable_cores()) for make in (candidates, wide)]
    tries, broad = (tuple(one for one in ones if one.knobs.max_batch_size >= least_rows) for ones in both)
    if not tries and any(both):
        raise UsageError(
            "the ensemble takes more rows than any batch asked",
            where="--max-batch-size",
            got=", ".join(map(str, request.grid.max_batch_sizes)),
            expected=f"at least its max_batch_size, {least_rows}",
        )
    if not tries:
        raise UsageError(
            "every setting of the grid equals the current config",
            where=model.model_dir,
            hint="give other values with --instances, --threads, --delay or --max-batch-size",
        )
    impossible = [problem for one in (*tries, *broad) for problem in knob_problems(one.knobs, backend or "onnxruntime")]
    if impossible:
        raise UsageError(problems=list(dict.fromkeys(impossible)))
    return tries, broad


def _window_ms(slo: Slo) -> int:
    limited = any(term.metric in ("p95", "p99") for term in slo.terms)
    return max(_WINDOW_MS[slo.objective.metric], _LIMIT_MS if limited else 0)


def _check(request: TuneRequest, config: ModelConfig) -> None:
    """What cannot be asked of this config, or together."""
    if not config.input or not config.output:
        raise UsageError(
            "the config leaves inputs, outputs and batching to Triton, so it does not say what is tuned",
            where=config.name or request.model_dir,
            expected="a config that lists inputs and outputs",
            hint=f"generate it anew with `tritune gen-config {shlex.quote(str(request.model_dir))} --force`, "
            "or complete it by hand (`--diff` in place of --force shows what would be written)",
        )
    stated: list[Term | Goal] = [*request.slo.terms, request.slo.objective]
    if strange := (FORMS if request.also else REQUESTS).strange(stated, "slo"):
        raise UsageError(problems=strange)
    if request.slo.objective.metric == "throughput" and request.workload.mode == "request_rate":
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


def _traffic(request: TuneRequest, signature: ModelSignature, config: ModelConfig, model_dir: Path) -> Workload:
    """The workload as the config takes it: with lengths, where the model has a free axis and none are given.

    Raises UsageError for requests of the user's own that the model does not take.
    """
    if request.input_data is not None:
        workload = fitted(request.workload, config)
        rows = workload.batch[0] if config.max_batch_size else 1
        check_input_data(request.input_data, expected_inputs(config), rows=rows)
        return workload
    asked, batching = request.workload.lengths, config.max_batch_size > 0
    tokenizer, texts = tokenizer_of(request, model_dir), request.workload.texts
    found = traffic_lengths(asked, signature, tokenizer, batching=batching, texts=texts)
    lengths = fit_to_model(found, model_dir, asked=bool(asked))
    return fitted(request.workload.model_copy(update={"lengths": lengths}), config)


def tokenizer_of(request: TuneRequest, model_dir: Path) -> Path:
    """The directory of the tokenizer."""
    return request.tokenizer_dir or model_dir / "tokenizer"


def _config_digest(config: ModelConfig) -> str:
    return hashlib.sha256(config.SerializeToString(deterministic=True)).hexdigest()
