"""`tritune openai`: a language model behind an OpenAI endpoint, measured through the user's AIPerf. Layer: cli."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tooling.cli.app import console_of
from tooling.cli.options import CLIENTS, MOST, counted, counts, duration_us, seeded, timed
from tooling.console import table
from tooling.errors import UsageError
from tooling.units import format_duration_us

if TYPE_CHECKING:
    from perf.aiperf import Streams

_PROMPTS, _OUTPUTS = (16, 64, 256), (16, 64, 128)


def attach(app: typer.Typer) -> None:
    app.command("openai")(openai)


def openai(
    context: typer.Context,
    model: str = typer.Argument(help="The model, as the endpoint names it."),
    url: str = typer.Option("http://localhost:8000", metavar="URL", help="The server, without the path of its API."),
    api: Literal["completions", "chat"] = typer.Option("completions", help="What prompts are sent to."),
    concurrency: int | None = typer.Option(
        None, min=1, max=MOST, help=f"Clients that each wait for an answer [{CLIENTS}]."
    ),
    request_rate: float | None = typer.Option(None, min=0.001, max=MOST, help="Requests a second, at random times."),
    lengths: str = counted("--lengths", "Letters of the prompts, drawn from these [16,64,256]."),
    output_lengths: str = counted("--output-lengths", "Tokens of the answers, drawn from these [16,64,128]."),
    requests: int = typer.Option(48, min=1, max=MOST, help="Requests in all, at least three for each client."),
    own_ends: bool = typer.Option(
        False, "--own-ends", help="Let the model end its answers, for servers that do not take `ignore_eos`."
    ),
    tokenizer: str = typer.Option(
        "", metavar="DIR|ID", help="Counts tokens, for servers that do not tell how many they answered with."
    ),
    slo: str = typer.Option("", metavar="TERMS", help="Limits, like `ttft_p95<300ms,itl_p95<50ms` (docs/llm.md)."),
    seed: int = seeded("Draws lengths, texts and sending times."),
    time_limit: str = timed("--time-limit", "AIPerf is ended after this time.", "10m", "1s"),
    output: Path | None = typer.Option(None, metavar="DIR", help="Keep AIPerf's files and logs in this new directory."),
) -> None:
    """Measure a language model behind an OpenAI endpoint, through an installed AIPerf.

    Exit 1 when a limit is not met or a request failed, 3 without AIPerf or a server.
    """
    from perf.aiperf import Endpoint, find_aiperf, measure, require_served
    from perf.llm_traffic import LlmTraffic
    from perf.slo import ENDPOINT, Slo

    console = console_of(context)
    if concurrency and request_rate:
        raise UsageError("--concurrency and --request-rate exclude each other", hint="give one of them")
    clients = concurrency or (None if request_rate else CLIENTS)
    prompts, outputs = counts("--lengths", lengths), counts("--output-lengths", output_lengths)
    traffic = LlmTraffic(prompts or _PROMPTS, outputs or _OUTPUTS, clients, request_rate, requests, seed)
    wanted = Slo.parse(slo, "--slo", ENDPOINT)
    endpoint = Endpoint(_address(url), model, api, tokenizer or None, own_ends)
    find_aiperf()
    require_served(endpoint)
    with _kept(output) as folder, console.progress("AIPerf", 1) as progress:
        found = measure(endpoint, traffic, folder, limit_s=duration_us("--time-limit", time_limit) / 1e6)
        progress.step(f"{found.requests} requests answered")
    judged = wanted.judge(found.figures)
    met = wanted.met(found.figures) is True
    data = {"model": model, "url": endpoint.url, "traffic": str(traffic), **found.to_dict()}
    data |= {"slo": list(wanted.words), "met": met, "kept": str(output.absolute()) if output else None}
    told = [_shown(found, traffic), *map(str, judged), *([f"kept in {output}"] if output else [])]
    console.result(data, "\n".join(told))
    if not met:
        raise typer.Exit(1)


def _address(text: str) -> str:
    """The server's address with its scheme, without the path of the API: a proxy may have one before that."""
    from urllib.parse import urlsplit

    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError("no server's address", where="--url", got=f"`{text}`", expected="like http://localhost:8000")
    path = parts.path.rstrip("/").removesuffix("/v1")
    base = f"{parts.scheme}://{parts.netloc}{path.partition('/v1/')[0]}"
    if "/v1/" in path:
        raise UsageError("--api says which path is sent to", where="--url", got=f"`{text}`", hint=f"give {base}")
    return base


@contextmanager
def _kept(output: Path | None) -> Iterator[Path]:
    """The directory of a run: one that goes with it, unless `output` is to be kept."""
    if output is None:
        with tempfile.TemporaryDirectory(prefix="tritune-openai-") as folder:
            yield Path(folder)
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError("the directory is there already", where=output, hint="name a new one")
    output.mkdir(parents=True, exist_ok=True)
    yield output.absolute()


def _shown(found: Streams, traffic: object) -> str:
    figures = found.figures
    rows = [
        [name, *(format_duration_us(round(figures[f"{prefix}{p}_us"])) for p in ("avg", "p50", "p95", "p99"))]
        for name, prefix in (("to the first token", "ttft_"), ("between tokens", "itl_"), ("whole answer", ""))
        if f"{prefix}avg_us" in figures
    ]
    prompt = "" if found.prompt_tokens is None else f"prompts of {found.prompt_tokens:.0f} tokens, "
    return "\n".join(
        [
            table(["", "mean", "p50", "p95", "p99"], rows),
            "",
            f"{figures['tokens_per_s']:.1f} tokens/s, {figures['throughput_rps']:.2f} requests/s; {traffic};",
            f"on average {prompt}answers of {found.output_tokens:.0f}.",
        ]
    )
