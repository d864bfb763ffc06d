"""Measure the service curve of a model on a server: short runs of batches made by the client. Layer: above curve and
target.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from perf.client import Exchange, Integers, closed_loop, encode
from perf.curve import Batch, CurveRun, ServiceCurve, Setting, relative_error
from perf.grid import Grid, instances_in_effect, splits, threads_in_effect
from perf.input_data import batch_tensors
from perf.lengths import fit_to_model, traffic_lengths
from perf.process import ForeignLoad
from perf.profile_plan import (
    LEAST_PER_CLIENT,
    RUN_S,
    Budget,
    Costs,
    Level,
    Load,
    Points,
    levels,
    richest,
    three,
)
from perf.provenance import host_facts, sha256
from perf.target import RunningTarget, embedded_facts
from tooling.config.knobs import apply, read
from tooling.errors import ExternalError, UsageError
from tooling.repository import locate_model, read_config, usable_cores
from tooling.server import EmbeddedServer
from tooling.signature.onnx_file import read_onnx

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig
    from tooling.console import Console
    from tooling.runtime import Runtime
    from tooling.signature.spec import ModelSignature

FEWEST_ROUNDS, LEAST_ROUNDS, MOST_ROUNDS = 2, 3, 12
"""Without the first a point has no interval; after the second only wide points are measured again."""
WIDE = 0.05
"""A point is measured again while twice its standard error is a larger share of it."""
_STATS_S = 2.0
_COMPUTE = ("compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """What to measure. Empty: the instances and threads that `tritune tune` would try (the rest of `grid` plays no
    part), rows up to the largest batch, and the shortest, middle and longest of `traffic`, which is itself by default
    that of `texts` or of real sentences. On a running server `model_dir` is only where a tokenizer may be."""

    model_dir: Path
    grid: Grid = field(default_factory=Grid)
    rows: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    traffic: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    tokenizer_dir: Path | None = None
    vocab_size: int | None = None
    budget_s: float = 90
    """Of all settings, without the start of the server."""
    strict: bool = False
    """Raise UsageError where `budget_s` is too small for the least that makes a curve; else that is measured all the
    same."""
    brief: bool = False
    """A round is enough, and then only wide points again; nothing is told of a budget that is too small."""
    config: ModelConfig | None = None
    """In place of the one on disk."""
    settings: tuple[Setting, ...] = ()
    """In place of those of `grid`."""


class Server(Protocol):
    """What a profile needs of a server."""

    @property
    def http_url(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    def load(self, name: str, config: ModelConfig) -> None: ...

    def stats(self, name: str) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class _Plan:
    name: str
    file: Path | None
    config: ModelConfig
    settings: tuple[Setting, ...]
    points: Points
    traffic: tuple[int, ...]
    signature: ModelSignature
    as_it_is: bool = False


def profile(
    request: ProfileRequest, *, runtime: Runtime, console: Console, running: RunningTarget | None = None
) -> ServiceCurve:
    """Measure on one embedded server, or on one that is `running`; each setting is loaded once.

    Each point has runs of 0.2 s or four requests a client, in three rounds and then while its interval is wide, as far
    as `budget_s` allows; with less time in two rounds, and some runs are left out, as the curve tells. A running server
    that may not be reconfigured is measured in its present setting, its queue delay included. Raises UsageError for a
    model that cannot be profiled, Refused and ExternalError as the server does.
    """
    if running:
        plan = _plan_remote(request, running)
        with running:
            return _profile_on(running, plan, request, console, running.facts())
    plan = _plan(request)
    with EmbeddedServer(_directory(request).parent, runtime) as server:
        return _profile_on(server, plan, request, console, embedded_facts())


def profile_on(server: Server, request: ProfileRequest, console: Console, facts: dict[str, Any]) -> ServiceCurve:
    """The same on a server that is entered already; it is left with the last setting loaded."""
    return _profile_on(server, _plan(request), request, console, facts)


def _profile_on(
    server: Server, plan: _Plan, request: ProfileRequest, console: Console, facts: dict[str, Any]
) -> ServiceCurve:
    started, begin = datetime.now(timezone.utc), time.monotonic()
    cpu_s = time.process_time()
    runs: list[CurveRun] = []
    left_out: dict[str, tuple[str, ...]] = {}
    foreign = ForeignLoad(server.pid)
    budget = Budget(request.budget_s, len(plan.settings), FEWEST_ROUNDS, plan.name, strict=request.strict)

    def look(costs: Costs, least: Sequence[Load]) -> None:
        if not request.brief and (short := budget.look(costs, least)):
            console.info(short)

    bench = _Bench(server, plan, request, look)
    with console.progress("profile", math.ceil(request.budget_s)) as progress:
        passed_s = 0
        for place, setting in enumerate(plan.settings, start=1):
            until = begin + request.budget_s * place / len(plan.settings)
            for number, (found, level) in enumerate(bench.rounds(setting, until), start=1):
                runs += found
                now_s = int(time.monotonic() - begin)
                progress.step(f"{setting}, round {number}: {len(found)} runs", now_s - passed_s)
                passed_s = now_s
                if level.left_out:
                    left_out[str(setting)] = level.left_out
        progress.step("done", math.ceil(request.budget_s))
    others = foreign.cores(time.process_time() - cpu_s)
    return ServiceCurve(
        tool={"tritune": version("tritune")},
        server=facts,
        host=host_facts(),
        model={"name": plan.name, "sha256": sha256(plan.file) if plan.file else None},
        started=started.isoformat(timespec="seconds"),
        wall_s=round(time.monotonic() - begin, 1),
        foreign_cores=others,
        lengths=plan.traffic or (1,),
        left_out=left_out,
        runs=tuple(runs),
    )


_Look = Callable[[Costs, Sequence[Load]], None]
"""Called after each step with what is known so far, and the least that is measured."""


class _Bench:
    """Runs on one server, with requests that are encoded once."""

    def __init__(self, server: Server, plan: _Plan, request: ProfileRequest, look: _Look) -> None:
        self._server, self._plan, self._brief, self._look = server, plan, request.brief, look
        batching = plan.config.max_batch_size > 0
        types = {spec.name: spec.data_type for spec in plan.signature.inputs}
        tokenizer = _tokenizer(request)
        self._requests = {
            (rows, length): encode(
                plan.name,
                batch_tensors(
                    plan.signature, rows, length, tokenizer, batching=batching, vocab_size=request.vocab_size
                ),
                types,
            )
            for rows in plan.points.rows
            for length in plan.points.lengths
        }

    def rounds(self, setting: Setting, until: float) -> Iterator[tuple[list[CurveRun], Level]]:
        """Load, warm up, and go round what there is time for; after the least rounds only round what is wide."""
        fewest, least_rounds = (1, 1) if self._brief else (FEWEST_ROUNDS, LEAST_ROUNDS)
        costs = Costs(setting, usable_cores())
        self._load(setting, costs)
        found = levels(self._plan.points, setting.instances)
        done = found[-1].loads
        runs = self._first(done, costs, self._look)
        level = richest(found, costs, left_s=until - time.monotonic(), rounds=fewest, done=done)
        runs += self._first([load for load in level.loads if load not in done], costs, None)
        yield list(runs), level
        pending = list(level.loads)
        for number in range(2, MOST_ROUNDS + 1):
            if number > least_rounds:
                pending = [load for load in pending if _wide(runs, load)]
            again = []
            for load in pending:
                if number <= fewest or time.monotonic() + costs.run(load) <= until:
                    again.append(self._run(load, costs))
            if not again:
                return
            runs += again
            yield again, level

    def _load(self, setting: Setting, costs: Costs) -> None:
        plan, begin = self._plan, time.monotonic()
        knobs = replace(read(plan.config), instance_count=setting.instances, intra_op_threads=setting.threads)
        self._server.load(plan.name, plan.config if plan.as_it_is else apply(knobs, plan.config))
        costs.load_s = time.monotonic() - begin

    def _first(self, loads: Sequence[Load], costs: Costs, look: _Look | None) -> list[CurveRun]:
        """Warm up and a round; `look` after each step."""
        for load in loads:
            begin = time.monotonic()
            self._exchange(load._replace(clients=max(load.clients, costs.setting.instances)), 0, 1)
            costs.warm_s[load] = time.monotonic() - begin
            if load.clients == 1:
                costs.execution_s[load.rows, load.lengths[0]] = costs.warm_s[load]
            if look:
                look(costs, loads)
        runs = []
        for load in loads:
            runs.append(self._run(load, costs))
            if look:
                look(costs, loads)
        return runs

    def _run(self, load: Load, costs: Costs) -> CurveRun:
        begin, setting = time.monotonic(), costs.setting
        before = compute_by_rows(self._server, self._plan.name)
        sent_ns, latency_ns, _ = self._exchange(load, RUN_S, LEAST_PER_CLIENT)
        after = self._settled(before, len(sent_ns) * load.rows)
        batches = [
            Batch(rows=rows, executions=count, compute_us=spent_ns / count / 1e3)
            for rows, (count, spent_ns) in sorted(_since(before, after).items())
        ]
        costs.run_s[load] = time.monotonic() - begin
        run = CurveRun(
            threads=setting.threads,
            instances=setting.instances,
            clients=load.clients,
            rows=load.rows,
            lengths=load.lengths,
            sent_us=_us(sent_ns),
            latency_us=_us(latency_ns),
            batches=tuple(batches),
        )
        if load.clients == 1:
            costs.execution_s[load.rows, load.lengths[0]] = sum(run.latency_us) / len(run.latency_us) / 1e6
        return run

    def _exchange(self, load: Load, seconds: float, least: int) -> Exchange:
        requests = [self._requests[load.rows, length] for length in load.lengths]
        return closed_loop(
            self._server.http_url, requests, clients=load.clients, seconds=seconds, least=least * load.clients
        )

    def _settled(self, before: dict[int, tuple[int, int]], rows: int) -> dict[int, tuple[int, int]]:
        """The executions once all `rows` are counted: Triton counts an execution after its answers."""
        deadline = time.monotonic() + _STATS_S
        while True:
            after = compute_by_rows(self._server, self._plan.name)
            if sum(size * count for size, (count, _) in _since(before, after).items()) >= rows:
                return after
            if time.monotonic() > deadline:
                raise ExternalError("Triton does not count what it executed", where=self._plan.name)
            time.sleep(0.005)


def compute_by_rows(server: Server, name: str) -> dict[int, tuple[int, int]]:
    """By rows, the executions of a model so far and the ns they took: input, inference and output."""
    return {
        int(size["batch_size"]): (int(size["compute_infer"]["count"]), sum(int(size[part]["ns"]) for part in _COMPUTE))
        for size in server.stats(name).get("batch_stats", [])
    }


def _since(before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    changes = {}
    for rows, (count, spent) in after.items():
        then_count, then_spent = before.get(rows, (0, 0))
        if count > then_count:
            changes[rows] = count - then_count, spent - then_spent
    return changes


def _us(times_ns: Integers) -> tuple[float, ...]:
    return tuple((times_ns / 1e3).round(1).tolist())


def _wide(runs: Sequence[CurveRun], load: Load) -> bool:
    return relative_error([r.compute_us for r in runs if (r.clients, r.rows, r.lengths) == load]) > WIDE


def _directory(request: ProfileRequest) -> Path:
    found = locate_model(request.model_dir).model_dir
    if found is None:
        raise UsageError("not a model directory", where=request.model_dir, expected="REPO/NAME with 1/model.onnx in it")
    return found


def _tokenizer(request: ProfileRequest) -> Path:
    if request.tokenizer_dir:
        return request.tokenizer_dir
    return (_directory(request) if request.model_dir.exists() else request.model_dir) / "tokenizer"


def _plan(request: ProfileRequest) -> _Plan:
    model_dir, file = _directory(request), locate_model(request.model_dir).file
    config, signature = request.config or read_config(model_dir), read_onnx(file)
    settings = request.settings or splits(request.grid, _here(config), usable_cores())
    points, traffic = _points(request, config, signature, model_dir)
    return _Plan(model_dir.name, file, _plain(config), _sorted(settings), points, traffic, signature)


def _plan_remote(request: ProfileRequest, running: RunningTarget) -> _Plan:
    """The present setting only where the server may not be reconfigured, with its batcher as it is."""
    config, signature, fixed = running.config(), running.signature(), not running.reconfigure
    here = _here(config)
    settings = [here] if fixed else splits(request.grid, here, usable_cores())
    points, traffic = _points(request, config, signature, request.model_dir)
    kept = config if fixed else _plain(config)
    return _Plan(running.model, None, kept, _sorted(settings), points, traffic, signature, as_it_is=fixed)


def _here(config: ModelConfig) -> tuple[int, int]:
    knobs = read(config)
    return instances_in_effect(knobs), threads_in_effect(knobs, usable_cores())


def _sorted(settings: Iterable[tuple[int, int]]) -> tuple[Setting, ...]:
    return tuple(Setting(*setting) for setting in sorted(set(settings)))


def _points(
    request: ProfileRequest, config: ModelConfig, signature: ModelSignature, model_dir: Path
) -> tuple[Points, tuple[int, ...]]:
    """Rows and lengths to measure, and the lengths of the traffic, that the model takes. What was asked for is left
    out by no budget."""
    most = config.max_batch_size
    rows = request.rows or three(range(1, max(most, 1) + 1))
    if max(rows) > max(most, 1):
        raise UsageError(
            "more rows than the model takes",
            where=model_dir,
            got=max(rows),
            expected=f"at most its max_batch_size of {most}",
        )
    traffic = traffic_lengths(request.traffic, signature, _tokenizer(request), batching=most > 0, texts=request.texts)
    traffic = fit_to_model(traffic, model_dir, asked=bool(request.traffic))
    lengths = fit_to_model(request.lengths, model_dir, asked=True) or three(sorted(traffic) or (1,))
    least = (values if asked else _ends(values) for values, asked in ((rows, request.rows), (lengths, request.lengths)))
    return Points(*map(_ascending, (rows, lengths, *least))), traffic


def _plain(config: ModelConfig) -> ModelConfig:
    """`config` with nothing in its batcher that makes a request wait: no delay, preferred sizes or queue policy."""
    knobs = read(config)
    none = apply(replace(knobs, dynamic_batching=False, preferred_batch_size=(), max_queue_delay_us=0), config)
    if config.max_batch_size == 0:
        return none
    return apply(replace(read(none), dynamic_batching=True), none)


def _ends(values: Sequence[int]) -> tuple[int, ...]:
    return values[0], values[-1]


def _ascending(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))
