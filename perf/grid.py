"""The settings worth trying here, as knobs that differ from the current config's. Layer: bottom of perf, pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any

from tooling.config.knobs import Knobs, describe

DELAYS_US = (0, 2_000)
WIDE_DELAYS_US = (0, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
WIDE_SIZES = (1, 2, 4, 8, 16, 32, 64)
PADDING, FORM = "padding", "form"
BASE = "default"
"""The id of what others are compared with: the current config of a tuning, A of a comparison."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting: a stable `id`, its knobs, and the names of what differs from the current config.

    With `edges` the requests are padded to the next of these lengths before they are sent; free lengths otherwise.
    `form` names another form of the model that takes its place (perf.forms).
    """

    id: str
    knobs: Knobs
    changed: tuple[str, ...] = ()
    edges: tuple[int, ...] = ()
    form: str = ""

    @property
    def label(self) -> str:
        padded = f"padded to {' '.join(map(str, self.edges))}" if self.edges else ""
        return ", ".join(filter(None, [self.form, describe(self.knobs), padded]))


@dataclass(frozen=True, slots=True)
class Grid:
    """Values to combine; an empty axis is filled from the machine and the current config."""

    instances: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    delays_us: tuple[int, ...] = ()
    max_batch_sizes: tuple[int, ...] = ()

    def overridden(self, other: Grid) -> Grid:
        """This grid with the values of `other` where it has some."""
        return replace(self, **{name: values for name, values in asdict(other).items() if values})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def current(base: Knobs) -> Candidate:
    """The config as it is on disk: what every other setting is compared with."""
    return Candidate(BASE, base)


def instances_in_effect(base: Knobs) -> int:
    """Instances Triton makes: without a count, two for an ONNX model on the CPU (triton core, backend defaults)."""
    return base.instance_count or 2


def threads_in_effect(base: Knobs) -> int:
    """Threads of one execution; 0 where ONNX Runtime is to choose.

    It then takes every core and pins a thread to each; as many threads that are asked for may move to a core that is
    free, and behave otherwise (ONNX Runtime's inference_session.cc, `auto_set_affinity`).
    """
    return max(0, base.intra_op_threads or 0)


def split_in_effect(base: Knobs) -> tuple[int, int]:
    """The instances and threads in effect."""
    return instances_in_effect(base), threads_in_effect(base)


def candidate(base: Knobs, knobs: Knobs, edges: tuple[int, ...] = ()) -> Candidate:
    """A setting named after what it does; with `changed` empty it is the current config by other words."""
    changed = [f.name for f in fields(Knobs) if getattr(knobs, f.name) != getattr(base, f.name)]
    count, threads = split_in_effect(knobs)
    parts = [f"i{count}-t{threads}-b{knobs.max_batch_size}-d{knobs.max_queue_delay_us}"]
    parts += [] if knobs.dynamic_batching or not knobs.max_batch_size else ["unmerged"]
    parts += [f"p{'.'.join(map(str, knobs.preferred_batch_size))}"] if knobs.preferred_batch_size else []
    parts += [f"l{'.'.join(map(str, edges))}"] if edges else []
    return Candidate("-".join(parts), knobs, (*changed, *([PADDING] if edges else [])), edges)


def wide(base: Knobs, grid: Grid, cores: int) -> tuple[Candidate, ...]:
    """Every setting worth a simulation: batches of 1 to 64 rows, delays up to 50 ms, merging on and off, and the
    preferred sizes of `base` with and without; the values of `grid` in place of these where it has some.

    A model without batching gets instances and threads only.
    """
    batching = base.max_batch_size > 0
    sizes = grid.max_batch_sizes or (_ascending(*WIDE_SIZES, base.max_batch_size) if batching else (0,))
    delays = grid.delays_us or _ascending(*WIDE_DELAYS_US, base.max_queue_delay_us)
    merged = candidates(base, replace(grid, max_batch_sizes=sizes, delays_us=delays), cores)
    found = {made.id: made for made in (candidate(base, c.knobs) for c in merged)}
    for knobs in [c.knobs for c in merged]:
        variants = [replace(knobs, preferred_batch_size=())] if knobs.preferred_batch_size else []
        if batching and not grid.delays_us:
            off = replace(knobs, dynamic_batching=False, preferred_batch_size=(), max_queue_delay_us=0)
            variants.append(replace(off, max_batch_size=base.max_batch_size))
        for variant in variants:
            made = candidate(base, variant)
            if made.changed:
                found.setdefault(made.id, made)
    return tuple(found.values())


def candidates(base: Knobs, grid: Grid, cores: int) -> tuple[Candidate, ...]:
    """Every combination of the grid that does something else than `base`, on a machine with `cores` usable cores.

    Where neither instances nor threads are asked for, the splits are those that use at least half of the cores and
    not more than all; the split in effect and Triton's own are kept whatever they are. The delay needs batching.
    """
    here = split_in_effect(base)
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
                intra_op_threads=base.intra_op_threads if threads == here[1] else threads or None,
            )
            changed = tuple(f.name for f in fields(Knobs) if getattr(knobs, f.name) != getattr(base, f.name))
            if changed:
                identity = f"i{count}-t{threads}-b{size}-d{delay}"
                found[identity] = Candidate(identity, knobs, changed)
    return tuple(found.values())


def splits(grid: Grid, here: tuple[int, int], cores: int) -> Iterator[tuple[int, int]]:
    """The instances and threads to try, beside those in effect `here` (see `candidates`); 0 threads: as ONNX Runtime
    chooses."""
    automatic = not grid.instances and not grid.threads
    counts = grid.instances or _ascending(1, 2, cores)
    threads = grid.threads or _ascending(1, cores // 2, cores)
    for split in product(counts, threads):
        if not automatic or cores <= 2 * split[0] * split[1] <= 2 * cores:
            yield split
    if automatic:
        yield from dict.fromkeys((here, split_in_effect(Knobs())))


def _delays(grid: Grid, base: Knobs) -> Iterable[int]:
    return grid.delays_us or _ascending(*DELAYS_US, base.max_queue_delay_us)


def _ascending(*values: int) -> tuple[int, ...]:
    return tuple(sorted({max(0, v) for v in values}))
