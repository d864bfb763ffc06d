"""`tritune workload`: describe traffic by real data: texts, or a log of requests. Layer: cli."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from tooling.cli.app import Group, console_of
from tooling.cli.options import BURST, CLIENTS, DISTRIBUTION, MOST, Distribution, duration_us
from tooling.errors import UsageError

if TYPE_CHECKING:
    from perf.workload import Workload
    from tooling.console import Console

app = typer.Typer(
    cls=Group, help="Describe traffic by real data, in a file that --workload takes.", no_args_is_help=True
)

_OUTPUT = typer.Option(Path("workload.yaml"), "--output", "-o", metavar="FILE", help="Where to write the workload.")
_TOKENIZER = typer.Option(
    None, metavar="DIR", help="The model's directory, or its tokenizer's: texts are counted in its tokens."
)
_KEEP = typer.Option(False, "--keep-texts", help="Send these very texts to inputs that take strings.")
_COLUMN = typer.Option(None, metavar="NAME", help="Column or field of the text. Default: by its name.")
_DURATION = typer.Option("", metavar="TIME", help="How long a point is measured, like 20s.")


@app.command("from-texts")
def from_texts(
    context: typer.Context,
    texts: Path = typer.Argument(metavar="FILE", help="A .txt (a text a line), .jsonl or .csv file."),
    tokenizer: Path | None = _TOKENIZER,
    text_column: str | None = _COLUMN,
    concurrency: int | None = typer.Option(
        None, min=1, max=MOST, help=f"Clients that each wait for an answer [{CLIENTS}]."
    ),
    request_rate: float | None = typer.Option(None, min=0.001, max=MOST, help="Requests a second, sent on schedule."),
    distribution: Distribution = DISTRIBUTION,
    burst: int = BURST,
    duration: str = _DURATION,
    keep_texts: bool = _KEEP,
    output: Path = _OUTPUT,
) -> None:
    """Make a workload whose requests are as long as these texts."""
    from perf.workload_file import MOST_TEXTS, read_texts, spaced

    if keep_texts and text_column:
        raise UsageError("it cannot go with --text-column", where="--keep-texts", hint="put the texts into a .txt file")
    found = read_texts(texts, text_column)
    kept = spaced(found, MOST_TEXTS) if keep_texts else ()
    lengths = _lengths(found, tokenizer, needed=not keep_texts)
    load: dict[str, Any] = {"request_rate": request_rate, "distribution": distribution, "burst": burst}
    if concurrency and request_rate:
        raise UsageError("--concurrency and --request-rate exclude each other", hint="give one of them")
    if request_rate is None:
        if distribution != "constant" or burst > 1:
            raise UsageError("--distribution and --burst need a --request-rate")
        load = {"concurrency": concurrency or CLIENTS}
    workload = _workload(**load, lengths=_histogram(lengths), texts=kept, duration=duration)
    _write(console_of(context), output, workload, f"{len(found)} texts of {texts.name}", lengths, texts)


@app.command("from-log")
def from_log(
    context: typer.Context,
    log: Path = typer.Argument(metavar="FILE", help="A .csv or .jsonl file with a time and a size or text a request."),
    tokenizer: Path | None = _TOKENIZER,
    time_column: str | None = typer.Option(None, metavar="NAME", help="Column or field of the time."),
    length_column: str | None = typer.Option(None, metavar="NAME", help="Column or field of the length in tokens."),
    text_column: str | None = _COLUMN,
    time_unit: Literal["s", "ms", "us", "ns"] | None = typer.Option(None, help="Unit of times that are numbers."),
    arrivals: Literal["trace", "poisson", "constant"] = typer.Option(
        "trace", help="The very times of the log, or its mean rate, at random or evenly spaced."
    ),
    duration: str = _DURATION,
    output: Path = _OUTPUT,
) -> None:
    """Make a workload that arrives as a log says, with requests of the lengths it holds."""
    from perf.workload_file import read_log

    if length_column and text_column:
        what, hint = "--length-column and --text-column exclude each other", "lengths need no texts to be counted"
        raise UsageError(what, hint=hint)
    found = read_log(log, time=time_column, length=length_column, text=text_column, unit=time_unit)
    if tokenizer and not found.texts:
        got = f"{log.name} with {'a length' if found.lengths else 'nothing but a time'} for each request"
        hint = "leave --tokenizer out, or name the column of the texts with --text-column"
        raise UsageError("no text is there to be counted", where="--tokenizer", got=got, hint=hint)
    lengths = found.lengths or (_lengths(found.texts, tokenizer, needed=True) if found.texts else ())
    load: dict[str, Any] = {"timestamps": found.times_s, "lengths": lengths}
    if arrivals != "trace":
        rate = float(f"{found.rate_rps:.6g}")
        load = {"request_rate": rate, "distribution": arrivals, "lengths": _histogram(lengths)}
    _write(
        console_of(context),
        output,
        _workload(**load, duration=duration),
        f"{len(found.times_s)} requests of {log.name}, {found.rate_rps:.3g} a second",
        lengths,
    )


def _workload(duration: str, **fields: Any) -> Workload:
    from perf.workload import Workload

    return Workload(duration_s=duration_us("--duration", duration) / 1e6 if duration else None, **fields)


def _lengths(texts: Sequence[str], tokenizer: Path | None, *, needed: bool) -> tuple[int, ...]:
    """Lengths in tokens; none where they are not `needed` and there is no tokenizer."""
    from perf.lengths import token_lengths

    if tokenizer is not None:
        inside = tokenizer / "tokenizer"
        return token_lengths(texts, inside if inside.is_dir() else tokenizer)
    if needed:
        raise UsageError(
            "the lengths of texts are counted in tokens",
            where="--tokenizer",
            got="none",
            expected="the model's directory, or one with its tokenizer.json",
        )
    return ()


def _histogram(lengths: Sequence[int]) -> dict[int, int] | tuple[int, ...]:
    from perf.mix import histogram

    return histogram(lengths) or ()


def _write(
    console: Console, output: Path, workload: Workload, source: str, lengths: Sequence[int], texts: Path | None = None
) -> None:
    """Write the file, with where it comes from, and tell what is in it."""
    from perf.workload_file import workload_text
    from tooling.repository import write_atomic

    spread = _spread(lengths)
    comments = [f"{source}.", *([f"Lengths in tokens: {spread}."] if spread else [])]
    named = os.path.relpath(texts.absolute(), output.absolute().parent) if texts and workload.texts else None
    write_atomic(output, workload_text(workload, comments, named))
    data = {"workload": str(output.absolute()), "traffic": str(workload), "lengths": _figures(lengths)}
    told = [str(workload), *([f"lengths  {spread}"] if spread else []), f"workload {output}"]
    console.result(data, "\n".join(told))


def _figures(lengths: Sequence[int]) -> dict[str, float] | None:
    """Count, mean and percentiles of lengths."""
    if not lengths:
        return None
    ordered = sorted(lengths)
    place = {p: ordered[int(p / 100 * (len(ordered) - 1) + 0.5)] for p in (50, 95, 99)}
    percentiles = {f"p{p}": value for p, value in place.items()}
    return {"count": len(ordered), "mean": round(sum(ordered) / len(ordered), 2), **percentiles, "max": ordered[-1]}


def _spread(lengths: Sequence[int]) -> str:
    figures = _figures(lengths) or {}
    return ", ".join(f"{name} {value:g}" for name, value in figures.items() if name != "count")
