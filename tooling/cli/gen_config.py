"""`tritune gen-config`: the config.pbtxt of a model file, written, shown or compared. Layer: cli."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tooling.cli.app import console_of
from tooling.console import Console
from tooling.errors import UsageError
from tooling.units import parse_duration_us

if TYPE_CHECKING:
    from tooling.config.knobs import Knobs
    from tooling.repository import ModelFile
    from tooling.signature.spec import ModelSignature

_DEFAULT_BATCH = 8


class Kind(str, Enum):
    """Where instances run, as on the command line."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"
    MODEL = "model"


def attach(app: typer.Typer) -> None:
    @app.command("gen-config")
    def gen_config(
        context: typer.Context,
        model: Path = typer.Argument(help="A model directory REPO/NAME, its model.onnx, or any ONNX file."),
        name: str | None = typer.Option(None, help="Model name. Default: the name of the model directory or file."),
        max_batch_size: int | None = typer.Option(
            None, help="Largest batch; 0: no batching. Default: 8 where the model can batch, else 0."
        ),
        preferred_batch_size: list[str] = typer.Option(
            [], metavar="N[,N…]", help="Sizes at which a batch is closed early. Leave out unless measured to help."
        ),
        max_queue_delay: str = typer.Option("0", help="How long a request waits for others, like 2ms."),
        dynamic_batching: bool = typer.Option(True, help="Merge waiting requests into batches."),
        instances: int | None = typer.Option(None, help="Copies of the model (on each GPU). Default: left to Triton."),
        kind: Kind = typer.Option(Kind.AUTO, help="Where instances run; `auto` keeps the config portable."),
        threads: int | None = typer.Option(None, help="ONNX Runtime threads of each instance; 0: every core."),
        hardware: str | None = typer.Option(None, help="Write configs/HARDWARE.pbtxt; `auto` names this machine."),
        output: Path | None = typer.Option(None, help="Write this file instead."),
        stdout: bool = typer.Option(False, "--stdout", help="Show the config; write nothing."),
        diff: bool = typer.Option(False, "--diff", help="Show what would change (exit 1 if anything); write nothing."),
        check: bool = typer.Option(False, "--check", help="Exit 1 if the file is not as generated; write nothing."),
        force: bool = typer.Option(False, "--force", help="Overwrite a file that holds edits or measured settings."),
    ) -> None:
        """Write the config.pbtxt of a model from the model file itself."""
        from tooling.config.build import build_config
        from tooling.config.knobs import Knobs
        from tooling.config.render import render
        from tooling.repository import locate_model
        from tooling.signature.onnx_file import read_onnx

        console = console_of(context)
        mode = _mode(stdout=stdout, diff=diff, check=check)
        source = locate_model(model)
        path = None if stdout else _target(source, name, hardware, output)
        signature = read_onnx(source.file)
        batch = _batch_size(signature, max_batch_size, console)
        knobs = Knobs(
            max_batch_size=batch,
            dynamic_batching=dynamic_batching and batch != 0,
            preferred_batch_size=_sizes(preferred_batch_size),
            max_queue_delay_us=_delay_us(max_queue_delay),
            instance_count=instances,
            instance_kind=kind.value,
            intra_op_threads=threads,
        )
        text = render(build_config(signature, name or source.name, knobs))
        _warn_limits(signature, console)
        _answer(console, mode, path, text, knobs, force=force)


def _mode(**flags: bool) -> str:
    """Which of the read-only modes is asked for, or `write`."""
    given = [name for name, on in flags.items() if on]
    if len(given) > 1:
        raise UsageError(f"--{' and --'.join(given)} exclude each other", hint="give one of them")
    return given[0] if given else "write"


def _target(source: ModelFile, name: str | None, hardware: str | None, output: Path | None) -> Path:
    from tooling.repository import config_path, hardware_name

    if output is not None:
        if hardware is not None:
            raise UsageError("--output and --hardware exclude each other", hint="give one of them")
        return output
    if source.model_dir is None:
        raise UsageError(
            "the file stands in no model directory, so there is no place for its config",
            where=source.file,
            expected="REPO/NAME/VERSION/model.onnx",
            hint="name the file to write with --output, or show the config with --stdout",
        )
    if name not in (None, source.name):
        raise UsageError(
            "a model must have the name of its directory",
            where=source.model_dir,
            got=f"`{name}`",
            expected=f"`{source.name}`",
            hint="leave --name out, or rename the directory",
        )
    return config_path(source.model_dir, hardware_name() if hardware == "auto" else hardware)


def _batch_size(signature: ModelSignature, asked: int | None, console: Console) -> int:
    """The largest batch: as asked, else 8, else 0 for a model that cannot batch (said on stderr)."""
    if asked is not None:
        return asked
    if signature.can_batch:
        return _DEFAULT_BATCH
    fixed = ", ".join(f"`{t.name}` {list(t.dims)}" for t in signature.unbatchable)
    console.info(f"no batching (max_batch_size 0): no free first axis in {fixed}")
    return 0


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


def _warn_limits(signature: ModelSignature, console: Console) -> None:
    """Say when the tested Triton release is too old for this file; a newer one may serve it."""
    from tooling.releases import current_release

    release = current_release()
    for what, value, limit in (
        ("opset", signature.opset, release.max_opset),
        ("IR version", signature.ir_version, release.max_ir),
    ):
        if value is not None and value > limit:
            console.warning(
                f"{signature.path}: Triton {release.tag} will not load {what} {value} "
                f"(its ONNX Runtime {release.onnxruntime} takes at most {limit}); export with a lower one"
            )


def _answer(console: Console, mode: str, path: Path | None, text: str, knobs: Knobs, *, force: bool) -> None:
    from tooling.config.knobs import describe, to_dict
    from tooling.repository import guard_overwrite, read_text, write_atomic

    data = {"path": path and str(path), "config": text, "knobs": to_dict(knobs)}
    if path is None:
        console.result(data, text)
        return
    present = read_text(path) if path.exists() else ""
    same = present == text
    if mode == "write":
        if not force:
            guard_overwrite(path, text)
        if not same:
            write_atomic(path, text)
        console.result({**data, "changed": not same}, f"{'unchanged' if same else 'wrote'} {path}: {describe(knobs)}")
        return
    changes = difflib.unified_diff(present.splitlines(True), text.splitlines(True), str(path), "generated")
    difference = "".join(changes)
    verdict = f"{path}: {'as generated' if same else 'not as generated (see --diff)' if present else 'missing'}"
    console.result({**data, "changed": not same, "diff": difference}, difference if mode == "diff" else verdict)
    if not same:
        raise typer.Exit(1)
