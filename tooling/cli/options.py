"""Options that several commands take: lists of numbers, durations, traffic, values to combine. Layer: cli."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import typer

from tooling import units
from tooling.errors import Problem, UsageError

if TYPE_CHECKING:
    from perf.grid import Grid
    from perf.workload import Workload

_T = TypeVar("_T")
CLIENTS = 8
MOST = units.MOST
Distribution = Literal["constant", "poisson"]
WORKLOAD_HELP = "Traffic as a file says it (docs/measuring.md), in place of the options for it."
DISTRIBUTION: Any = typer.Option("constant", help="How the sending times are spread, at a rate.")
BURST: Any = typer.Option(1, min=1, max=MOST, help="Requests that leave at a time, at a rate.")


def _tokenizer_there(place: Path) -> None:
    from tooling.repository import is_there

    if not is_there(place / "tokenizer.json"):
        raise UsageError("there is no tokenizer", where="--tokenizer", got=str(place), expected="tokenizer.json in it")


def workload_of(
    concurrency: int | None = None,
    rate: float | None = None,
    lengths: tuple[int, ...] = (),
    seed: int = 0,
    distribution: Distribution = "constant",
    *,
    burst: int = 1,
    file: Path | None = None,
) -> Workload:
    """The traffic asked for, by options or by a file: eight clients where neither they nor a rate are given."""
    from perf.workload import Workload

    given = {
        "--concurrency": concurrency,
        "--request-rate": rate,
        "--distribution": distribution != "constant",
        "--burst": burst > 1,
        "--lengths": lengths,
        "--seed": seed,
    }
    asked = [option for option, value in given.items() if value]
    if file is not None:
        from perf.workload_file import read_workload

        if asked:
            raise UsageError(f"--workload and {asked[0]} exclude each other", hint=f"write it into {file}")
        return read_workload(file)
    if concurrency and rate:
        raise UsageError("--concurrency and --request-rate exclude each other", hint="give one of them")
    if not rate and (burst > 1 or distribution != "constant"):
        raise UsageError("it needs a --request-rate", where="--burst" if burst > 1 else "--distribution")
    clients = concurrency or (None if rate else CLIENTS)
    return Workload(
        concurrency=clients, request_rate=rate, distribution=distribution, burst=burst, lengths=lengths, seed=seed
    )


def grid_of(instances: str, threads: str, delay: str, max_batch_size: str) -> Grid:
    """The values to combine."""
    from perf.grid import Grid

    return Grid(
        counts("--instances", instances),
        counts("--threads", threads, least=0),
        delays(delay),
        counts("--max-batch-size", max_batch_size, least=0),
    )


def given(context: typer.Context) -> list[str]:
    """The options that this command line names, as they are written, in the order of the help."""
    source = context.get_parameter_source
    named = [one for one in context.command.params if getattr(source(one.name or ""), "name", "") == "COMMANDLINE"]
    return [one.opts[0] for one in named if one.param_type_name == "option"]


def require_url(url: str, *, reconfigure: bool) -> None:
    """Raises UsageError where another configuration is allowed on no server."""
    if reconfigure and not url:
        raise UsageError("--allow-reconfigure is for --url", hint="leave it out, or give the address of the server")


def refuse_made(said: Sequence[str]) -> None:
    """Raises UsageError where options that requests are made by stand beside a file that holds them."""
    unread = [option for option in said if option in ("--lengths", "--tokenizer", "--vocab-size")]
    if "--input-data" in said and unread:
        what = f"--input-data and {', '.join(unread)} exclude each other"
        raise UsageError(what, hint="leave one out: the requests of a file are sent as they are")


def delays(text: str) -> tuple[int, ...]:
    """Microseconds of `0,2ms`."""
    return _listed(text, lambda word: duration_us("--delay", word))


def counts(option: str, text: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers from `1,2`. Raises UsageError that names the option."""

    def count(word: str) -> int:
        if word.isascii() and word.isdecimal() and len(word) < 10 and least <= int(word) <= MOST:
            return int(word)
        expected = f"whole numbers like 1,2, from {least} to {MOST}"
        raise UsageError("not a usable number", where=option, got=f"`{word}`", expected=expected)

    return _listed(text, count)


def duration_us(option: str, text: str, least: str = "0") -> int:
    """Microseconds of a typed duration. Raises UsageError that names the option."""
    return _measured(option, text, least, units.parse_duration_us)


def size_bytes(option: str, text: str, least: str = "0B") -> int:
    """Bytes of a typed size. Raises UsageError that names the option."""
    return _measured(option, text, least, units.parse_size)


def heeding(read: Callable[..., object], *first: object, **more: object) -> Callable[[Any], Any]:
    """A callback for an option that leaves its value as it is: `read(*first, word, **more)` raises UsageError for a
    word that cannot be. The command line asks it, and so does a project file, whose keys are options."""

    def callback(value: Any) -> Any:
        problems: list[Problem] = []
        for word in value if isinstance(value, list) else [value]:
            try:
                if word not in (None, ""):
                    read(*first, word, **more)
            except UsageError as error:
                problems += error.problems
        if problems:
            raise UsageError(problems=problems)
        return value

    return callback


def timed(option: str, help: str, default: str | None = None, least: str = "0") -> Any:
    """An option that takes a duration."""
    return typer.Option(default, option, metavar="TIME", callback=heeding(duration_us, option, least=least), help=help)


def sized(option: str, help: str, default: str | None = None, least: str = "0B") -> Any:
    """An option that takes a size."""
    return typer.Option(default, option, metavar="SIZE", callback=heeding(size_bytes, option, least=least), help=help)


def counted(option: str, help: str, least: int = 1) -> Any:
    """An option that takes whole numbers with commas."""
    return typer.Option("", option, metavar="N,…", callback=heeding(counts, option, least=least), help=help)


TOKENIZER: Any = typer.Option(
    None,
    "--tokenizer",
    callback=heeding(_tokenizer_there),
    help="Directory of tokenizer.json. Default: MODEL_DIR/tokenizer.",
)


def seeded(help: str) -> Any:
    """An option that takes the seed of what is drawn."""
    return typer.Option(0, min=0, max=units.MOST_SEED, help=help)


def repeated(option: str, metavar: str, read: Callable[[list[str]], object], help: str) -> Any:
    """An option that may be given several times; `read` judges each of its words."""
    return typer.Option([], option, metavar=metavar, callback=heeding(lambda word: read([word])), help=help)


def _measured(option: str, text: str, least: str, parse: Callable[[str], int]) -> int:
    try:
        value = parse(text)
    except UsageError as error:
        problem = error.problems[0]
        raise UsageError(problem.what, where=option, got=problem.got, expected=problem.expected) from None
    if value < parse(least):
        raise UsageError("too small", where=option, got=f"`{text}`", expected=f"{least} or more")
    return value


def _listed(text: str, parse: Callable[[str], _T]) -> tuple[_T, ...]:
    return tuple(parse(word.strip()) for word in text.split(",")) if text else ()
