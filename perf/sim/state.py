"""Configurations, service times and arrivals laid out in a run's memory. Layer: sim, pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from perf.sim import memory as at
from perf.sim.config import BatcherConfig
from perf.sim.memory import MISS_SCALE, NEVER, NONE, ONE
from perf.sim.service import ServiceModel
from perf.sim.traffic import Arrivals, repeat
from tooling.errors import UsageError

Integers = npt.NDArray[np.int64]
MAX_DRAWS = 1 << 20
MAX_CELLS = 10_000_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One model: its batcher and its service times. An ensemble is a row of stages."""

    config: BatcherConfig
    service: ServiceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is in no configuration: how the machine around the batcher behaves. Zeros are the ideal machine.

    `client_overhead_us` is added to every latency and, in a closed loop, passes before a client's next request.
    `timer_lateness_us` is how much later than asked the batcher's thread wakes from its delay. `lost_wakeup_share` is
    the chance that a batcher with a queue policy or priorities misses an instance becoming idle, and so sleeps up to
    500 ms (Triton 24.03 and later).
    """

    client_overhead_us: int = 0
    timer_lateness_us: int = 0
    lost_wakeup_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Layout:
    """A run's memory, and views of its requests [number, field] and executions [number, field]."""

    memory: Integers
    requests: Integers
    executions: Integers
    stages: tuple[int, ...]

    def executed(self, stage: int) -> tuple[Integers, Integers, Integers, Integers]:
        """Start, span, rows and requests of what a stage executed."""
        done = self.executions[: self._number(self.memory[at.EXECUTED])]
        if len(self.stages) > 1:
            done = done[done[:, at.AT_STAGE] == self.stages[stage]]
        return done[:, at.START], done[:, at.SPAN], done[:, at.BATCH], done[:, at.MEMBERS]

    def ran(self, stage: int) -> Integers:
        """Per request, the number of its execution among those of the stage; NONE if it had none."""
        addresses = self.requests[:, at.RAN + stage]
        numbers = np.where(addresses > 0, self._number(addresses), NONE)
        if len(self.stages) > 1:
            of_stage = np.cumsum(self.executions[:, at.AT_STAGE] == self.stages[stage]) - 1
            numbers = np.where(numbers >= 0, of_stage[numbers], NONE)
        return numbers

    def _number(self, address: Any) -> Any:
        return (address - (len(self.memory) - self.executions.size)) // at.EXECUTED_SIZE


def lay_out(stages: Sequence[Stage], arrivals: Arrivals, machine: Machine, seed: int) -> Layout:
    """The memory before the first event."""
    lengths, shapes = np.unique(np.asarray(arrivals.lengths, dtype=np.int64), return_inverse=True)
    most_rows = _most_rows(stages, arrivals, len(lengths))
    addresses = tuple(at.RUN + s * at.STAGE for s in range(len(stages)))
    parts = [np.zeros(at.RUN, dtype=np.int64)]
    parts += [_stage(s, machine) for s in stages]
    address = sum(map(len, parts))
    for s, stage in enumerate(stages):
        record = parts[1 + s]
        record[at.NEXT_STAGE] = addresses[s + 1] if s + 1 < len(stages) else NONE
        record[at.RAN_FIELD] = at.RAN + s
        record[at.SERVICE_ROWS] = most_rows + 1
        for field, end, table in _tables(stage, lengths.tolist(), most_rows, arrivals.count, [seed, s]):
            record[field] = address
            address += len(table)
            if end is not None:
                record[end] = address
            parts.append(table)
        record[at.DRAW] = record[at.DRAWS]
    dealt, address = address, address + len(shapes)
    parts.append(shapes)
    size = -(-(at.RAN + len(stages)) // 8) * 8  # whole cache lines
    memory = np.zeros(address + arrivals.count * (size + at.EXECUTED_SIZE * len(stages)), dtype=np.int64)
    memory[:address] = np.concatenate(parts)
    end = address + arrivals.count * size
    requests = memory[address:end].reshape(arrivals.count, size)
    _fill(requests, arrivals, shapes)
    if arrivals.dealt and arrivals.concurrency:
        memory[[at.DEALT, at.SHAPES, at.SHAPES_END]] = arrivals.concurrency, dealt, dealt + len(shapes)
        clients = np.random.default_rng([seed, len(stages)]).permutation(arrivals.concurrency)[: arrivals.count]
        steps = clients % len(shapes)  # the clients all start at once: who is first is chance
        requests[: len(steps), at.STEP], requests[: len(steps), at.SHAPE] = dealt + steps, shapes[steps]
    issued = min(arrivals.count, arrivals.concurrency or arrivals.count)
    memory[[at.FIRST_STAGE, at.STAGES, at.REQUEST_SIZE, at.ARRIVED]] = addresses[0], len(stages), size, address
    memory[[at.ISSUED, at.ISSUED_END, at.UNANSWERED]] = address + issued * size, end, arrivals.count
    memory[[at.EXECUTED, at.THINK]] = end, machine.client_overhead_us * 1_000
    memory[at.RANDOM] = seed % MISS_SCALE
    return Layout(memory, requests, memory[end:].reshape(-1, at.EXECUTED_SIZE), addresses)


def _most_rows(stages: Sequence[Stage], arrivals: Arrivals, lengths: int) -> int:
    """The most rows that a payload can have. Raises UsageError where a table of them by length would be too large."""
    largest = int(np.max(arrivals.sizes))
    batch = max(s.config.max_batch_size for s in stages)
    most = max(largest, min(batch, largest * (arrivals.concurrency or arrivals.count)), 1)
    if most * lengths > MAX_CELLS:
        raise UsageError(
            "too many combinations of rows and lengths",
            where="simulator",
            got=f"up to {most} rows of {lengths} lengths",
            expected=f"{MAX_CELLS} combinations at most (a limit of the simulator)",
        )
    return most


def _ns(duration_us: int) -> int:
    """Durations in us in a config may be anything up to 2⁶⁴; what passes a lifetime is cut."""
    return min(duration_us * 1_000, NEVER // 4)


def _fill(requests: Integers, arrivals: Arrivals, shapes: npt.NDArray[Any]) -> None:
    if arrivals.times_ns is not None:
        requests[:, at.SENT] = arrivals.times_ns
    columns = (
        (at.SHAPE, shapes),
        (at.SIZE, np.asarray(arrivals.sizes)),
        (at.PRIORITY, np.asarray(arrivals.priorities)),
        (at.ALLOWED, np.asarray(arrivals.timeouts_us) * 1_000),
    )
    for field, values in columns:
        if values.any():  # zeros are there already
            requests[:, field] = values if len(values) == 1 else repeat(values, len(requests))


def _batching(config: BatcherConfig) -> bool:
    return config.dynamic_batching and config.max_batch_size > 0


def _preferred(config: BatcherConfig) -> list[int]:
    """Triton takes the maximum batch size for preferred where the list is empty."""
    if not _batching(config):
        return [1] if config.max_batch_size else []
    return sorted(set(config.preferred_batch_size)) or [config.max_batch_size]


def _stage(stage: Stage, machine: Machine) -> Integers:
    config = stage.config
    record = np.zeros(at.STAGE, dtype=np.int64)
    record[at.MAX_BATCH] = config.max_batch_size if _batching(config) else 1
    record[at.MAX_PREFERRED] = max(_preferred(config), default=0)
    record[at.DELAY] = _ns(config.max_queue_delay_us) if config.dynamic_batching else 0
    record[at.INSTANCES] = record[at.IDLE] = config.instance_count
    record[at.EQUAL] = config.shape_checked or config.optional_inputs
    record[at.EVERY_WAKES] = config.shape_checked
    record[at.PREFETCH] = config.prefetch or not config.dynamic_batching
    record[at.PRIORITIES] = config.priority_levels
    record[at.DEFAULT_LEVEL] = config.default_priority_level - 1 if config.priority_levels else 0
    record[at.ORDERED] = config.preserve_ordering
    record[at.CONTENDED] = any(f != 1 for f in (*stage.service.slowdown, stage.service.spin))
    record[at.LATENESS] = machine.timer_lateness_us * 1_000
    record[at.MISS] = round(machine.lost_wakeup_share * MISS_SCALE)
    record[[at.CURRENT, at.ORDER_HEAD, at.ORDER_TAIL]] = NONE
    record[[at.TIMER, at.NEXT_END]] = NEVER
    record[at.RING] = _ring(config) - 1
    return record


def _ring(config: BatcherConfig) -> int:
    """Room for the staged payloads and the one being filled; a power of two."""
    return 1 << (2 * config.instance_count + 1).bit_length()


def _tables(
    stage: Stage, lengths: Sequence[int], most_rows: int, count: int, seed: Sequence[int]
) -> list[tuple[int, int | None, Integers]]:
    """What a stage points to: the field for the address, that for its end, the table."""
    config = stage.config
    sizes = _preferred(config)
    rows = range(most_rows + 1)
    lines = [line for level in range(1, max(1, config.priority_levels) + 1) for line in _lines(config, level)]
    worker = np.full(at.WORKER, NEVER, dtype=np.int64)
    times = stage.service.table_ns(lengths, most_rows).ravel()
    kinds, factors, draws = _scatter(stage.service, times, min(count, MAX_DRAWS), seed)
    return [
        (at.PREFERRED, None, _table(row in sizes for row in rows)),
        (at.FOLLOWING, None, _table(min((p for p in sizes if p > row), default=0) for row in rows)),
        (at.SERVICE, None, times),
        (at.KINDS, None, kinds),
        (at.FACTORS, None, factors),
        (at.SLOWDOWN, None, _slowdown(stage.service, config.instance_count)),
        (at.DRAWS, at.DRAWS_END, draws),
        (at.LINES, at.LINES_END, _table(value for line in lines for value in line)),
        (at.PAYLOADS, None, np.zeros(_ring(config) * at.PAYLOAD, dtype=np.int64)),
        (at.WORKERS, at.WORKERS_END, np.tile(worker, config.instance_count)),
    ]


def _table(values: Iterable[int]) -> Integers:
    return np.fromiter(values, dtype=np.int64)


def _lines(config: BatcherConfig, level: int) -> tuple[list[int], list[int]]:
    """The fresh and the delayed line of a priority level; the policy stands in the fresh one."""
    policy = config.policy(level)
    fresh, delayed = [0] * at.LINE, [0] * at.LINE
    for line in (fresh, delayed):
        line[at.HEAD] = line[at.TAIL] = NONE
    fresh[at.REJECTS] = policy.timeout_action == "REJECT"
    fresh[at.TIMEOUT] = _ns(policy.default_timeout_us)
    fresh[at.OVERRIDE] = policy.allow_timeout_override
    fresh[at.MAX_QUEUE] = policy.max_queue_size
    return fresh, delayed


def _slowdown(service: ServiceModel, instances: int) -> Integers:
    """By busy instances, from none to all; then the same while the batcher spins."""
    factors = service.slowdown or (1.0,)
    busy = [factors[min(max(n, 1), len(factors)) - 1] for n in range(instances + 1)]
    return _table(round(factor * ONE) for factor in (*busy, *(factor * service.spin for factor in busy)))


def _scatter(
    service: ServiceModel, times_ns: Integers, draws: int, seed: Sequence[int]
) -> tuple[Integers, Integers, Integers]:
    """For each service time where its factors begin; the factors; the drawn places in them, one an execution."""
    scatter = service.scatter
    if scatter is None:
        return np.zeros_like(times_ns), np.full(1, ONE, dtype=np.int64), np.zeros(1, dtype=np.int64)
    factors = np.asarray(scatter.factors)
    begins = scatter.kinds(times_ns) * factors.shape[1]
    return begins, np.rint(factors.ravel() * ONE).astype(np.int64), scatter.draws(draws, seed)
