"""`tritune quality`: does a language model still answer as it did before its numbers were made smaller. Layer: cli."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tooling.cli.app import console_of
from tooling.console import Console
from tooling.errors import UsageError

if TYPE_CHECKING:
    from perf.quality import Asker, Encode, Quality, Reference
    from perf.slo import Judgement

_PROMPTS = 32
_TOKENS = 64


def attach(app: typer.Typer) -> None:
    app.command()(quality)


def quality(
    context: typer.Context,
    reference: Path = typer.Argument(help="The file of recorded answers."),
    model: str = typer.Option("", metavar="NAME", help="The model on the server. Default: that of the reference."),
    url: str = typer.Option("localhost:8000", metavar="HOST:PORT", help="A Triton that runs, by its HTTP address."),
    record: bool = typer.Option(False, "--record", help="Write the reference: the answers of the plain model."),
    prompts: Path | None = typer.Option(
        None, metavar="FILE", help=f"A prompt a line, or .jsonl; to record. Default: {_PROMPTS} English sentences."
    ),
    max_tokens: int | None = typer.Option(
        None, min=1, max=4096, help=f"Tokens of an answer at most; to record [{_TOKENS}]."
    ),
    slo: str = typer.Option(
        "", metavar="TERMS", help="Limits [token_agreement>=0.9, perplexity_ratio<=1.05 where it can be had]."
    ),
    tokenizer: Path | None = typer.Option(
        None, metavar="DIR", help="Directory of tokenizer.json, for models that do not say their tokens."
    ),
    force: bool = typer.Option(False, "--force", help="Record over a file that is there."),
) -> None:
    """Compare greedy answers with recorded ones, after FP8, quantisation or speculation.

    Exit 1 when a limit is not met.
    """
    from perf.quality import Asker, load

    console = console_of(context)
    if record:
        if slo:
            raise UsageError("--slo and --record exclude each other", hint="record first, then compare")
        _require_place(reference, force=force)
        asker = Asker(url, _named(model), _encode(tokenizer))
        _record(console, asker, reference, _named(model), prompts, max_tokens or _TOKENS)
        return
    for option, value in (("--prompts", prompts), ("--max-tokens", max_tokens), ("--force", force)):
        if value:
            raise UsageError(f"{option} is for --record", hint="the reference has its own prompts and lengths")
    before = load(reference)
    asker = Asker(url, model or before.model, _encode(tokenizer))
    _compare(console, asker, before, slo)


def _named(model: str) -> str:
    if not model:
        raise UsageError("the model is not named", where="--model", expected="its name on the server")
    return model


def _require_place(path: Path, *, force: bool) -> None:
    from tooling.repository import require_writable

    if path.exists() and not force:
        raise UsageError("the file is there already", where=path, hint="another name, or --force")
    require_writable(path)


def _encode(folder: Path | None) -> Encode | None:
    if folder is None:
        return None
    from tooling.signature.tokenizer import read_tokenizer

    found = read_tokenizer(folder, "give a directory that holds one with --tokenizer")
    return lambda text: list(found.encode(text, add_special_tokens=False).ids)


def _record(
    console: Console,
    asker: Asker,
    path: Path,
    model: str,
    prompts: Path | None,
    max_tokens: int,
) -> None:
    from perf.lengths import sentences
    from perf.quality import Reference, read_prompts, save

    asked = read_prompts(prompts) if prompts else sentences()[:_PROMPTS]
    with console.progress("answers", len(asked)) as progress:
        answers = asker.answers(asked, max_tokens, lambda: progress.step("answered"))
    save(path, Reference(model, max_tokens, answers))
    tokens = sum(len(answer.steps) for answer in answers)
    data = {"path": str(path), "model": model, "prompts": len(answers), "tokens": tokens, "max_tokens": max_tokens}
    console.result(data, f"wrote {path}: {len(answers)} answers of {model}, {tokens} tokens")


def _compare(console: Console, asker: Asker, before: Reference, slo: str) -> None:
    from perf.quality import compare, judge

    _refuse(slo)
    asked = [answer.prompt for answer in before.answers]
    with console.progress("answers", len(asked)) as progress:
        answers = asker.answers(asked, before.max_tokens, lambda: progress.step("answered"))
    found = compare(before, answers)
    judged = judge(found, slo)
    data = {**found.to_dict(), "slo": [str(one.term) for one in judged], "judged": [str(one) for one in judged]}
    met = all(one.answer == "met" for one in judged)
    console.result({**data, "met": met}, _shown(found, judged))
    if not met:
        raise typer.Exit(1)


def _refuse(slo: str) -> None:
    """Refuse limits that no answer can be held to before the model is asked."""
    from perf.quality import Quality, judge

    judge(Quality(1, 1, 1.0, 1.0, None, None, ()), slo)


def _shown(found: Quality, judged: tuple[Judgement, ...]) -> str:
    lines = [
        f"{found.prompts} prompts, {found.tokens} tokens of the reference",
        f"token agreement   {found.token_agreement:.4f}",
        f"exact answers     {found.exact_answers:.4f}",
    ]
    if found.perplexity_ratio is None:
        lines.append("perplexity        not told by the model")
    else:
        lines.append(f"perplexity        {found.perplexity:.4f}, {found.perplexity_ratio:.4f} × the reference's")
    shown = [f"parted at         {prompt[:80]}" for prompt in found.parted[:3]]
    return "\n".join([*lines, *shown, *(str(one) for one in judged)])
