"""Which runs a service curve is made of, what they take, and what is left out when time is short. Layer: above curve,
pure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from perf.curve import Point, Setting
from tooling.errors import UsageError
from tooling.units import format_duration_us

RUN_S = 0.2
LEAST_PER_CLIENT = 4
_SPARE = 1.2
"""What is told to be needed, times what it took so far."""
_IN_TURN = "requests of two lengths in turn"
_MERGED = "requests to be merged"
_WAITING = "whole batches that wait"
_BUSY = "busy instances beyond one point"


class Load(NamedTuple):
    """What a run puts on the server."""

    clients: int
    rows: int
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Points:
    """Rows and lengths to measure, ascending, and those of them that no budget leaves out."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    least_rows: tuple[int, ...]
    least_lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """The loads of one setting, and in words what is not among them."""

    loads: tuple[Load, ...]
    left_out: tuple[str, ...] = ()


def levels(points: Points, instances: int) -> tuple[Level, ...]:
    """What can be measured of a setting, from everything to the least that makes a curve.

    What predictions miss least goes first: points between others, which lie on straight lines; then crowds; how much
    busy instances slow each other down stays, at one point.
    """
    rows, lengths, without = points.rows, points.lengths, set[str]()
    found = [Level(tuple(_loads(rows, lengths, instances, without)))]

    def also_without(what: str) -> None:
        loads = tuple(_loads(rows, lengths, instances, without))
        if loads != found[-1].loads:
            found.append(Level(loads, (*found[-1].left_out, what)))

    rows = points.least_rows
    also_without(f"{_listed(set(points.rows) - set(rows))} rows")
    lengths = points.least_lengths
    also_without(f"length {_listed(set(points.lengths) - set(lengths))}")
    for what in (_IN_TURN, _MERGED, _WAITING, _BUSY):
        without.add(what)
        also_without(what)
    return tuple(found)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _loads(rows: tuple[int, ...], lengths: tuple[int, ...], instances: int, without: Collection[str]) -> Iterator[Load]:
    """The points alone, the cheapest first, some of them beside each other, and crowds: of whole batches, of rows to be
    merged, and of two lengths in turn, for which the batcher always spins with one client more than twice the
    instances."""
    yield from sorted((Load(1, r, (n,)) for r in rows for n in lengths), key=lambda load: load.rows * load.lengths[0])
    together = list(dict.fromkeys(zip(three(rows), three(lengths), strict=True)))
    for clients in _doubling(instances):
        if _BUSY not in without:
            yield from (Load(clients, r, (n,)) for r, n in together)
        elif clients == instances:
            yield Load(clients, rows[0], lengths[:1])
    most = rows[-1]
    if _WAITING not in without:
        yield Load(2 * instances, most, lengths[:1])
    if _MERGED not in without and most > 1:
        yield Load(2 * instances * most, 1, lengths[:1])
    if _IN_TURN not in without and most > 1 and len(lengths) > 1:
        yield Load(2 * instances + 1, 1, lengths[:2])


@dataclass
class Costs:
    """What loads take at one setting, in seconds: as they took where they ran, else by what others took."""

    setting: Setting
    cores: int
    load_s: float = 0.0
    warm_s: dict[Load, float] = field(default_factory=dict)
    run_s: dict[Load, float] = field(default_factory=dict)
    execution_s: dict[Point, float] = field(default_factory=dict)

    def warm(self, load: Load) -> float:
        """An answer to each client."""
        return self.warm_s.get(load) or self._answers_s(load)

    def run(self, load: Load) -> float:
        return self.run_s.get(load) or max(RUN_S, LEAST_PER_CLIENT * self._answers_s(load))

    def plan(self, loads: Sequence[Load], rounds: int) -> float:
        """Everything at this setting."""
        return self.load_s + sum(self.warm(load) + rounds * self.run(load) for load in loads)

    def rest(self, loads: Sequence[Load], rounds: int, done: Collection[Load]) -> float:
        """What `rounds` take of which `done` have had one."""
        return sum(
            (rounds - 1) * self.run(load) if load in done else self.warm(load) + rounds * self.run(load)
            for load in loads
        )

    def _answers_s(self, load: Load) -> float:
        at_once = min(load.clients, self.setting.instances)
        threads = self.setting.threads or self.cores
        slower = max(1.0, at_once * threads / self.cores) if at_once > 1 else 1.0
        longest = max(self._execution_s(load.rows * length) for length in load.lengths)
        return math.ceil(load.clients / at_once) * slower * longest

    def _execution_s(self, tokens: int) -> float:
        """On straight lines between what was executed, and in proportion beyond it; nothing known is nothing."""
        known = sorted((rows * length, spent) for (rows, length), spent in self.execution_s.items())
        if not known:
            return 0.0
        if tokens >= known[-1][0]:
            return known[-1][1] * tokens / known[-1][0]
        below = (0, known[0][1])
        for place, spent in known:
            if tokens <= place:
                share = (tokens - below[0]) / (place - below[0])
                return below[1] + share * (spent - below[1])
            below = (place, spent)
        raise AssertionError("unreachable")


@dataclass
class Budget:
    """Whether the least of all settings fits into a time, as far as the first one tells."""

    total_s: float
    settings: int
    rounds: int
    model: str
    strict: bool
    _told: bool = False
    _begin: float = field(default_factory=time.monotonic)

    def look(self, costs: Costs, least: Sequence[Load]) -> str | None:
        """After each step of the first setting: a sentence, once, where more time is needed, which is known when every
        load of `least` has run, or the time is over. Raises UsageError in its place where `strict`."""
        known = all(load in costs.run_s for load in least)
        over = time.monotonic() - self._begin > self.total_s
        if self._told or not (known or over):
            return None
        self._told = True
        needed_s = self.settings * costs.plan(least, self.rounds)
        if needed_s <= self.total_s and not over:
            return None
        needed = format_duration_us(math.ceil(_SPARE * max(needed_s, self.total_s)) * 1e6)
        given = format_duration_us(self.total_s * 1e6)
        what = f"{_count(self.settings, 'setting')}, {_count(len(least), 'point')}, {self.rounds} runs of each"
        if self.strict:
            raise UsageError(
                "the budget is too small for this profile",
                where=self.model,
                got=given,
                expected=f"about {needed} for {what}",
                hint=f"give --budget {needed}, or fewer settings (--instances, --threads), --rows or --lengths",
            )
        return f"the least that makes a curve takes about {needed} in place of {given}: {what}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def richest(found: Sequence[Level], costs: Costs, *, left_s: float, rounds: int, done: Collection[Load]) -> Level:
    """The first of the levels whose `rounds` fit into what is left, or the last."""
    fitting = (level for level in found if costs.rest(level.loads, rounds, done) <= left_s)
    return next(fitting, found[-1])


def three(values: Sequence[int]) -> tuple[int, ...]:
    """First, middle and last."""
    return values[0], values[len(values) // 2], values[-1]


def _doubling(most: int) -> tuple[int, ...]:
    """2, 4, 8 … up to `most`, and that."""
    return tuple(sorted({2**n for n in range(1, most.bit_length()) if 2**n < most} | ({most} if most > 1 else set())))
