"""Measure the service curve of a model on a target: short runs of batches made by the client. Layer: above curve and
target.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol

from perf.client import Exchange, Integers, closed_loop, encode
from perf.curve import Batch, CurveRun, Point, ServiceCurve, Setting, relative_error
from perf.input_data import batch_tensors
from perf.preflight import cache_cautions
from perf.process import ForeignLoad
from perf.profile_plan import LEAST_PER_CLIENT, RUN_S, Budget, Costs, Level, Load, levels, richest
from perf.profile_request import Plan, ProfileRequest, directory, plan_of, plan_remote, tokenizer_of
from perf.provenance import host_facts, sha256
from perf.target import EmbeddedTarget, RunningTarget, Target
from tooling.errors import ExternalError, Refused, UsageError
from tooling.repository import read_config, usable_cores
from tooling.server.options import loading_only

if TYPE_CHECKING:
    from tooling.console import Console
    from tooling.runtime import Runtime

FEWEST_ROUNDS, LEAST_ROUNDS, MOST_ROUNDS = 2, 3, 12
"""Without the first a point has no interval; after the second only wide points are measured again."""
WIDE = 0.05
"""A point is measured again while twice its standard error is a larger share of it."""
WAKE_S, WARM_S = 0.3, 0.05
"""What is executed without being counted: before a round, since memory of an idle model may have to be fetched again
(its first request then takes 50 ms more, and the next ones up to twice as long), and before each run."""
_STATS_S = 2.0
_COMPUTE = ("compute_input", "compute_infer", "compute_output")


class Counting(Protocol):
    """What tells Triton's statistics of a model."""

    def stats(self, name: str) -> dict[str, Any]: ...


def profile(
    request: ProfileRequest, *, runtime: Runtime, console: Console, running: RunningTarget | None = None
) -> ServiceCurve:
    """Measure on one embedded server, or on one that is `running`; each setting is loaded once.

    Each point has runs of 0.2 s or four requests a client, in three rounds and then while its interval is wide, as far
    as `budget_s` allows; with less time in two rounds, and some runs are left out, as the curve tells. A running server
    that may not be reconfigured is measured in its present setting, its queue delay included. Raises UsageError for a
    model that cannot be profiled, Refused and ExternalError as the server does.
    """
    config = running.config() if running else request.config or read_config(directory(request))
    for caution in cache_cautions([config], left_out=running is None or running.reconfigure):
        console.warning(caution)
    if running:
        plan = plan_remote(request, running)
        with running:
            return _profile_on(running, plan, request, console)
    plan = plan_of(request)
    with EmbeddedTarget(directory(request).parent, runtime, loading_only(plan.config)) as target:
        return _profile_on(target, plan, request, console)


def profile_on(target: Target, request: ProfileRequest, console: Console) -> ServiceCurve:
    """The same on a target that is entered already; nothing stays loaded on a server of our own."""
    try:
        curve = _profile_on(target, plan_of(request), request, console)
    except (Refused, UsageError):
        target.clear()
        raise
    target.clear()
    return curve


def _profile_on(target: Target, plan: Plan, request: ProfileRequest, console: Console) -> ServiceCurve:
    started, begin = datetime.now(timezone.utc), time.monotonic()
    cpu_s = time.process_time()
    runs: list[CurveRun] = []
    left_out: dict[str, tuple[str, ...]] = {}
    foreign = ForeignLoad(target.pid)
    budget = Budget(request.budget_s, len(plan.settings), FEWEST_ROUNDS, plan.name, strict=request.strict)

    def look(costs: Costs, least: Sequence[Load]) -> None:
        if not request.brief and (short := budget.look(costs, least)):
            console.info(short)

    bench = _Bench(target, plan, request, look)
    with console.progress("profile", math.ceil(request.budget_s)) as progress:
        passed_s = 0
        for setting, number, found, level in _in_turn(plan, bench, begin + request.budget_s):
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
        server=target.facts(),
        host=host_facts(),
        model={"name": plan.name, "sha256": sha256(plan.file) if plan.file else None},
        started=started.isoformat(timespec="seconds"),
        wall_s=round(time.monotonic() - begin, 1),
        foreign_cores=others,
        lengths=plan.traffic or (1,),
        left_out=left_out,
        runs=tuple(runs),
    )


def _in_turn(plan: Plan, bench: _Bench, until: float) -> Iterator[tuple[Setting, int, list[CurveRun], Level]]:
    """The rounds of every setting up to `until`: of those that are loaded together one round of each after the other,
    so that a drift of the host hits all alike."""
    left = len(plan.settings)
    for group in plan.at_once(side_by_side=bench.side_by_side):
        load_s = bench.load(group) / len(group)
        share_s = (until - time.monotonic() - load_s * (left - len(group))) / left
        end = time.monotonic() + share_s * len(group)
        going = {setting: bench.one(setting, load_s).rounds(share_s, end) for setting in group}
        for number in range(1, MOST_ROUNDS + 1):
            for setting, rounds in going.items():
                if found := next(rounds, None):
                    yield setting, number, *found
        left -= len(group)


_Look = Callable[[Costs, Sequence[Load]], None]
"""Called after each step with what is known so far, and the least that is measured."""


class _Bench:
    """A target, and what is asked of each setting on it."""

    def __init__(self, target: Target, plan: Plan, request: ProfileRequest, look: _Look) -> None:
        self._target, self._plan, self._brief, self._look = target, plan, request.brief, look
        self.side_by_side = target.side_by_side
        batching = plan.config.max_batch_size > 0
        self._types = {spec.name: spec.data_type for spec in plan.signature.inputs}
        tokenizer = tokenizer_of(request)
        self._tensors = {
            (rows, length): batch_tensors(
                plan.signature, rows, length, tokenizer, batching=batching, vocab_size=request.vocab_size
            )
            for rows in plan.points.rows
            for length in plan.points.lengths
        }

    def load(self, settings: Sequence[Setting]) -> float:
        """Have these loaded, and no others; the seconds that took."""
        begin = time.monotonic()
        self._target.hold(*map(self._plan.variant, settings))
        self._target.serve(self._plan.variant(settings[0]))
        return time.monotonic() - begin

    def one(self, setting: Setting, load_s: float) -> _One:
        """A setting that is loaded, with its requests."""
        name, _ = self._target.serve(self._plan.variant(setting))
        requests = {point: encode(name, given, self._types) for point, given in self._tensors.items()}
        costs = Costs(setting, usable_cores(), load_s)
        found = levels(self._plan.points, setting.instances)
        return _One(self._target, name, requests, costs, found, self._brief, self._look)


@dataclass(frozen=True, slots=True)
class _One:
    """A setting that answers under `name`."""

    target: Target
    name: str
    requests: Mapping[Point, bytes]
    costs: Costs
    levels: Sequence[Level]
    brief: bool
    look: _Look

    def rounds(self, share_s: float, until: float) -> Iterator[tuple[list[CurveRun], Level]]:
        """Warm up, and go round, the first time what fits into its share; after the least rounds what is wide, while
        there is time."""
        costs, begin = self.costs, time.monotonic()
        fewest, least_rounds = (1, 1) if self.brief else (FEWEST_ROUNDS, LEAST_ROUNDS)
        done = self.levels[-1].loads
        runs = self._first(done, self.look)
        left_s = begin + share_s - time.monotonic()
        level = richest(self.levels, costs, left_s=left_s, rounds=fewest, done=done)
        runs += self._first([load for load in level.loads if load not in done], None)
        yield list(runs), level
        pending = list(level.loads)
        for number in range(2, MOST_ROUNDS + 1):
            if number > least_rounds:
                pending = [load for load in pending if _wide(runs, load)]
            again = []
            if pending:
                self._wake(pending)
            for load in pending:
                if number <= fewest or time.monotonic() + costs.run(load) <= until:
                    again.append(self._run(load))
            if not again:
                return
            runs += again
            yield again, level

    def _first(self, loads: Sequence[Load], look: _Look | None) -> list[CurveRun]:
        """Warm up and a round; `look` after each step."""
        costs = self.costs
        for load in loads:
            begin = time.monotonic()
            self._exchange(load._replace(clients=max(load.clients, costs.setting.instances)), 0, 1)
            costs.warm_s[load] = time.monotonic() - begin
            if load.clients == 1:
                costs.execution_s[load.rows, load.lengths[0]] = costs.warm_s[load]
            if look:
                look(costs, loads)
        runs = []
        if loads:
            self._wake(loads)
        for load in loads:
            runs.append(self._run(load))
            if look:
                look(costs, loads)
        return runs

    def _wake(self, loads: Sequence[Load]) -> None:
        """Keep every instance busy for a while with the cheapest of them."""
        self._exchange(loads[0]._replace(clients=self.costs.setting.instances), WAKE_S, 1)

    def _run(self, load: Load) -> CurveRun:
        begin, costs, setting = time.monotonic(), self.costs, self.costs.setting
        self._exchange(load, WARM_S, 1)
        before = compute_by_rows(self.target, self.name)
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
        requests = [self.requests[load.rows, length] for length in load.lengths]
        return closed_loop(
            self.target.http_url, requests, clients=load.clients, seconds=seconds, least=least * load.clients
        )

    def _settled(self, before: dict[int, tuple[int, int]], rows: int) -> dict[int, tuple[int, int]]:
        """The executions once all `rows` are counted: Triton counts an execution after its answers."""
        deadline = time.monotonic() + _STATS_S
        while True:
            after = compute_by_rows(self.target, self.name)
            if sum(size * count for size, (count, _) in _since(before, after).items()) >= rows:
                return after
            if time.monotonic() > deadline:
                cached = self.target.config_in_force(self.name).get("response_cache", {}).get("enable")
                raise ExternalError(
                    "Triton does not count what it executed",
                    where=self.name,
                    hint="its response cache answers: give --allow-reconfigure, or turn it off" if cached else None,
                )
            time.sleep(0.005)


def compute_by_rows(server: Counting, name: str) -> dict[int, tuple[int, int]]:
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
