"""`tritune gen-config`: the config.pbtxt of a model, written, shown or compared. Layer: cli."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from tooling.cli.app import console_of
from tooling.cli.config_draft import Ask, Draft, ensemble_draft, model_draft
from tooling.cli.config_source import Source, from_file, from_server, from_template
from tooling.console import Console
from tooling.errors import UsageError
from tooling.units import parse_duration_us

if TYPE_CHECKING:
    from tooling.config.knobs import Knobs
    from tooling.config.proto import ModelConfig

_Backend = Literal["onnxruntime", "tensorrt", "pytorch", "openvino", "python", "vllm"]
_Kind = Literal["auto", "cpu", "gpu", "model"]


def attach(app: typer.Typer) -> None:
    app.command("gen-config")(gen_config)


def gen_config(
    context: typer.Context,
    model: Path | None = typer.Argument(None, help="A model directory REPO/NAME, or a model file of any format."),
    name: str | None = typer.Option(None, help="Model name. Default: the name of the model directory or file."),
    backend: _Backend | None = typer.Option(None, help="Default: by the file, in Triton's own order."),
    inputs: list[str] = typer.Option([], "--input", metavar="NAME:TYPE:DIMS", help="An input, such as x:FP32:-1,3."),
    outputs: list[str] = typer.Option([], "--output-tensor", metavar="NAME:TYPE:DIMS", help="An output, likewise."),
    template: bool = typer.Option(False, "--template", help="Write a Python model to fill in, and its config."),
    url: str | None = typer.Option(None, metavar="HOST:PORT", help="Read the model from a running server (HTTP)."),
    remote: str | None = typer.Option(None, "--model", metavar="NAME", help="The model's name on that server."),
    ensemble: str | None = typer.Option(None, metavar="GRAPH.yaml|A,B|auto", help="Join models that stand beside."),
    max_batch_size: int | None = typer.Option(None, help="Largest batch; 0: none. Default: 8 where possible."),
    preferred_batch_size: list[str] = typer.Option([], metavar="N[,N…]", help="Close a batch early at these sizes."),
    max_queue_delay: str = typer.Option("0", help="How long a request waits for others, like 2ms."),
    dynamic_batching: bool = typer.Option(True, help="Merge waiting requests into batches."),
    instances: int | None = typer.Option(None, help="Copies of the model (on each GPU). Default: left to Triton."),
    kind: _Kind = typer.Option("auto", help="Where instances run; `auto` keeps the config portable."),
    threads: int | None = typer.Option(None, help="Threads of each instance on the CPU; 0: every core."),
    warmup: list[str] = typer.Option([], metavar="BATCHxLENGTH", help="Run such a batch of real tokens at the start."),
    tokenizer: Path | None = typer.Option(None, help="Directory of its tokenizer.json. Default: that of the model."),
    settings: Path | None = typer.Option(None, "--from", metavar="FILE", help="YAML with any other field of Triton's."),
    release: str | None = typer.Option(None, metavar="YY.MM", help="The Triton it is for, like 24.10."),
    hardware: str | None = typer.Option(None, help="Write configs/HARDWARE.pbtxt; `auto` names this machine."),
    output: Path | None = typer.Option(None, help="Write this file instead."),
    stdout: bool = typer.Option(False, "--stdout", help="Show the config; write nothing."),
    diff: bool = typer.Option(False, "--diff", help="Show what would change (exit 1 if anything); write nothing."),
    check: bool = typer.Option(False, "--check", help="Exit 1 if the file is not as generated; write nothing."),
    client_sample: bool = typer.Option(False, "--client-sample", help="Show a client for the model; write nothing."),
    force: bool = typer.Option(False, "--force", help="Overwrite a file that holds edits or measured settings."),
) -> None:
    """Write the config.pbtxt of a model from the model file itself."""
    console = console_of(context)
    mode = _mode(stdout=stdout, diff=diff, check=check, client_sample=client_sample)
    knobs = _knobs(dynamic_batching, preferred_batch_size, max_queue_delay, instances, kind, threads)
    ask = Ask(knobs, max_batch_size, name, settings, release, tuple(warmup), tokenizer)
    if ensemble is not None:
        draft = ensemble_draft(_directory(model, "--ensemble"), ensemble, ask)
    else:
        tensors = (inputs, outputs)
        source = _template(model, tensors, ask, force) if template else _source(model, backend, tensors, url, remote)
        draft = model_draft(source, ask, console)
    path = None if mode in ("stdout", "client-sample") else _target(draft, name, hardware, output)
    for line in draft.advice:
        console.warning(line)
    _answer(console, mode, path, draft, force=force)


def _knobs(
    dynamic_batching: bool, preferred: list[str], delay: str, instances: int | None, kind: str, threads: int | None
) -> Knobs:
    from tooling.config.knobs import Knobs

    return Knobs(
        dynamic_batching=dynamic_batching,
        preferred_batch_size=_sizes(preferred),
        max_queue_delay_us=_delay_us(delay),
        instance_count=instances,
        instance_kind=kind,
        intra_op_threads=threads,
    )


def _template(model: Path | None, tensors: tuple[list[str], list[str]], ask: Ask, force: bool) -> Source:
    from tooling.signature.declared import declare

    return from_template(_directory(model, "--template"), declare(*tensors), ask.max_batch_size, force=force)


def _source(
    model: Path | None, backend: str | None, tensors: tuple[list[str], list[str]], url: str | None, remote: str | None
) -> Source:
    from tooling.signature.declared import declare

    if url is not None:
        return from_server(url, remote, model)
    return from_file(_directory(model, "MODEL"), backend, declare(*tensors))


def _directory(model: Path | None, what: str) -> Path:
    if model is None:
        raise UsageError("the model is missing", where=what, expected="a model directory REPO/NAME or a model file")
    return model


def _mode(**flags: bool) -> str:
    """Which of the read-only modes is asked for, or `write`."""
    given = [name.replace("_", "-") for name, on in flags.items() if on]
    if len(given) > 1:
        raise UsageError(f"--{' and --'.join(given)} exclude each other", hint="give one of them")
    return given[0] if given else "write"


def _target(draft: Draft, name: str | None, hardware: str | None, output: Path | None) -> Path:
    from tooling.repository import config_path, hardware_name

    if output is not None:
        if hardware is not None:
            raise UsageError("--output and --hardware exclude each other", hint="give one of them")
        return output
    if draft.model_dir is None:
        raise UsageError(
            "the model stands in no model directory, so there is no place for its config",
            where=draft.model,
            expected="REPO/NAME/VERSION/FILE",
            hint="name the file to write with --output, or show the config with --stdout",
        )
    if name not in (None, draft.model_dir.name):
        raise UsageError(
            "a model must have the name of its directory",
            where=draft.model_dir,
            got=f"`{name}`",
            expected=f"`{draft.model_dir.name}`",
            hint="leave --name out, or rename the directory",
        )
    return config_path(draft.model_dir, hardware_name() if hardware == "auto" else hardware)


def _sizes(words: Sequence[str]) -> tuple[int, ...]:
    """Batch sizes from `4,8` or repeated options, sorted; Triton takes them as a set."""
    sizes = set()
    for word in ",".join(words).split(",") if words else []:
        if not re.fullmatch(r"-?\d+", word.strip()):
            raise UsageError(
                "not a batch size", where="--preferred-batch-size", got=f"`{word}`", expected="whole numbers, like 4,8"
            )
        sizes.add(int(word))
    return tuple(sorted(sizes))


def _delay_us(text: str) -> int:
    try:
        return parse_duration_us(text)
    except UsageError as error:
        raise UsageError(problems=[replace(p, where="--max-queue-delay") for p in error.problems]) from error


def _summary(config: ModelConfig) -> tuple[dict[str, Any] | None, str]:
    """The knobs as JSON, where they can say it, and the config in one line."""
    from tooling.config.knobs import describe, read, to_dict

    if config.platform == "ensemble":
        return None, f"ensemble of {len(config.ensemble_scheduling.step)} models, batch ≤ {config.max_batch_size}"
    if len(config.instance_group) > 1:
        return None, f"{len(config.instance_group)} instance groups, batch ≤ {config.max_batch_size}"
    knobs = read(config)
    return to_dict(knobs), describe(knobs)


def _answer(console: Console, mode: str, path: Path | None, draft: Draft, *, force: bool) -> None:
    from tooling.config.render import render

    if mode == "client-sample":
        from tooling.config.samples import client_sample

        text = client_sample(draft.config)
        console.result({"client": text}, text)
        return
    text = render(draft.config)
    knobs, summary = _summary(draft.config)
    data = {"path": path and str(path), "config": text, "knobs": knobs, "files": [str(file) for file in draft.files]}
    if path is None:
        console.result(data, text)
    elif mode == "write":
        changed = _write(path, text, draft, force=force)
        console.result({**data, "changed": changed}, f"{'wrote' if changed else 'unchanged'} {path}: {summary}")
    else:
        _compare(console, mode, path, text, data)


def _write(path: Path, text: str, draft: Draft, *, force: bool) -> bool:
    """Write the config, and first the files it names; whether anything changed."""
    from tooling.repository import guard_overwrite, read_text, write_atomic

    if not force:
        guard_overwrite(path, text)
    changed = False
    for file, content in draft.files.items():
        if not file.exists() or file.read_bytes() != content:
            write_atomic(file, content)
            changed = True
    if not path.exists() or read_text(path) != text:
        write_atomic(path, text)
        changed = True
    return changed


def _compare(console: Console, mode: str, path: Path, text: str, data: dict[str, Any]) -> None:
    """Show how the file differs from the text; exit code 1 when it does."""
    from tooling.repository import read_text

    present = read_text(path) if path.exists() else ""
    same = present == text
    changes = difflib.unified_diff(present.splitlines(True), text.splitlines(True), str(path), "generated")
    difference = "".join(changes)
    verdict = f"{path}: {'as generated' if same else 'not as generated (see --diff)' if present else 'missing'}"
    console.result({**data, "changed": not same, "diff": difference}, difference if mode == "diff" else verdict)
    if not same:
        raise typer.Exit(1)
