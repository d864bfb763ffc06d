"""Options that several commands take: lists of numbers, durations, traffic, values to combine. Layer: cli."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

from tooling.errors import UsageError
from tooling.units import parse_duration_us

if TYPE_CHECKING:
    from perf.grid import Grid
    from perf.workload import Workload

_T = TypeVar("_T")
CLIENTS = 8
MOST = 1_000_000
"""Above this a count, a length or a rate is a slip of the keyboard."""
Distribution = Literal["constant", "poisson"]


def workload_of(
    concurrency: int | None,
    rate: float | None,
    lengths: tuple[int, ...],
    seed: int,
    distribution: Distribution = "constant",
) -> Workload:
    """The traffic asked for: eight clients where neither they nor a rate are given."""
    from perf.workload import Workload

    if concurrency and rate:
        raise UsageError("--concurrency and --request-rate exclude each other", hint="give one of them")
    clients = concurrency or (None if rate else CLIENTS)
    return Workload(concurrency=clients, request_rate=rate, distribution=distribution, lengths=lengths, seed=seed)


def grid_of(instances: str, threads: str, delay: str, max_batch_size: str) -> Grid:
    """The values to combine."""
    from perf.grid import Grid

    return Grid(
        counts("--instances", instances),
        counts("--threads", threads),
        _listed(delay, lambda word: duration_us("--delay", word)),
        counts("--max-batch-size", max_batch_size, least=0),
    )


def counts(option: str, text: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers from `1,2`. Raises UsageError that names the option."""

    def count(word: str) -> int:
        if word.isascii() and word.isdecimal() and len(word) < 10 and least <= int(word) <= MOST:
            return int(word)
        expected = f"whole numbers like 1,2, from {least} to {MOST}"
        raise UsageError("not a usable number", where=option, got=f"`{word}`", expected=expected)

    return _listed(text, count)


def duration_us(option: str, text: str) -> int:
    """Microseconds of a typed duration. Raises UsageError that names the option."""
    try:
        return parse_duration_us(text)
    except UsageError as error:
        problem = error.problems[0]
        raise UsageError(problem.what, where=option, got=problem.got, expected=problem.expected) from None


def _listed(text: str, parse: Callable[[str], _T]) -> tuple[_T, ...]:
    return tuple(parse(word.strip()) for word in text.split(",")) if text else ()
