"""The settings worth trying here, as knobs that differ from the current config's. Layer: bottom of perf, pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any

from tooling.config.knobs import Knobs, describe

DELAYS_US = (0, 2_000)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting: a stable `id`, its knobs, and the names of the knobs that differ from the current config."""

    id: str
    knobs: Knobs
    changed: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return describe(self.knobs)


@dataclass(frozen=True, slots=True)
class Grid:
    """Values to combine; an empty axis is filled from the machine and the current config."""

    instances: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    delays_us: tuple[int, ...] = ()
    max_batch_sizes: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def current(base: Knobs) -> Candidate:
    """The config as it is on disk: what every other setting is compared with."""
    return Candidate("default", base)


def instances_in_effect(base: Knobs) -> int:
    """Instances Triton makes: without a count, two for an ONNX model on the CPU (triton core, backend defaults)."""
    return base.instance_count or 2


def threads_in_effect(base: Knobs, cores: int) -> int:
    """Threads of one execution: without a number, or with 0, ONNX Runtime takes every core."""
    return base.intra_op_threads or cores


def candidates(base: Knobs, grid: Grid, cores: int) -> tuple[Candidate, ...]:
    """Every combination of the grid that does something else than `base`, on a machine with `cores` usable cores.

    Where neither instances nor threads are asked for, the splits are those that use at least half of the cores and
    not more than all; the split in effect is kept whatever it is, for the other knobs. The delay needs batching.
    """
    here = (instances_in_effect(base), threads_in_effect(base, cores))
    sizes = grid.max_batch_sizes or (base.max_batch_size,)
    found = {}
    for (count, threads), size in product(splits(grid, here, cores), sizes):
        for delay in _delays(grid, base) if size else (0,):
            knobs = replace(
                base,
                max_batch_size=size,
                dynamic_batching=size > 0,
                preferred_batch_size=tuple(p for p in base.preferred_batch_size if p <= size),
                max_queue_delay_us=delay,
                instance_count=base.instance_count if count == here[0] else count,
                intra_op_threads=base.intra_op_threads if threads == here[1] else threads,
            )
            changed = tuple(f.name for f in fields(Knobs) if getattr(knobs, f.name) != getattr(base, f.name))
            if changed:
                identity = f"i{count}-t{threads}-b{size}-d{delay}"
                found[identity] = Candidate(identity, knobs, changed)
    return tuple(found.values())


def splits(grid: Grid, here: tuple[int, int], cores: int) -> Iterator[tuple[int, int]]:
    """The instances and threads to try, beside those in effect `here` (see `candidates`)."""
    automatic = not grid.instances and not grid.threads
    counts = grid.instances or _ascending(1, 2, cores)
    threads = grid.threads or _ascending(1, cores // 2, cores)
    for split in product(counts, threads):
        if not automatic or cores <= 2 * split[0] * split[1] <= 2 * cores:
            yield split
    if automatic:
        yield here


def _delays(grid: Grid, base: Knobs) -> Iterable[int]:
    return grid.delays_us or _ascending(*DELAYS_US, base.max_queue_delay_us)


def _ascending(*values: int) -> tuple[int, ...]:
    return tuple(sorted({max(0, v) for v in values}))
