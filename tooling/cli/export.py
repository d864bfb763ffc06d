"""`tritune export`: a Hugging Face model as a verified ONNX file in a model repository. Layer: cli."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tooling.cli.app import console_of
from tooling.cli.options import CLIENTS, MOST
from tooling.cli.text_pipeline import Invalid, Padding, Pipeline, TextAsk, write_clients_of, write_pipeline

if TYPE_CHECKING:
    from export.manifest import TensorRecord
    from export.run import ExportResult


def attach(app: typer.Typer) -> None:
    @app.command()
    def export(
        context: typer.Context,
        source: str = typer.Argument(help="Hugging Face model directory, or a hub id where there is a network."),
        repository: Path = typer.Option(..., "--repository", "-r", help="Model repository to write into."),
        name: str | None = typer.Option(
            None, "--name", help="Model name in the repository; default: the source's name."
        ),
        opset: int | None = typer.Option(None, "--opset", help="ONNX operator set, 14 to 20; default: 17."),
        force: bool = typer.Option(
            False, "--force", help="Export even if the same export is already there; replace edited configs."
        ),
        pipeline: Pipeline | None = typer.Option(
            None, help="`text`: models that take texts (NAME, NAME_tokenizer, NAME_model)."
        ),
        padding: Padding | None = typer.Option(
            None, help="How texts become batches; `auto` decides from a service curve. Default: none, or buckets."
        ),
        buckets: str = typer.Option("", metavar="N,…", help="Lengths in tokens to pad to, like 128,256,512."),
        texts: Path | None = typer.Option(None, metavar="FILE", help="Real texts, one a line, to find buckets for."),
        curve: Path | None = typer.Option(
            None, metavar="FILE", help="Of `tritune profile` [.tritune/curves/NAME_model-…]."
        ),
        concurrency: int | None = typer.Option(None, min=1, max=MOST, help=f"Clients to decide for [{CLIENTS}]."),
        max_tokens: int | None = typer.Option(None, min=1, help="Cut texts here. Default: the model's limit."),
        invalid_utf8: Invalid | None = typer.Option(None, help="What to do with such texts [replace]."),
    ) -> None:
        """Export a text encoder to ONNX, verify it against torch and write it into a model repository."""
        from export.plan import DEFAULT_OPSET
        from export.run import export_model

        console = console_of(context)
        ask = TextAsk(padding, buckets, texts, curve, concurrency, max_tokens, invalid_utf8)
        entry = ask.entry_name(source, name) if pipeline else ask.refuse_unused(name)
        result = export_model(
            source,
            repository,
            f"{entry}_model" if pipeline else entry,
            opset=DEFAULT_OPSET if opset is None else opset,
            force=force,
            console=console,
        )
        data = {
            "model_dir": str(result.model_dir),
            "path": str(result.model_file),
            "reused": result.reused,
            "manifest": result.manifest.model_dump(mode="json"),
        }
        if entry and pipeline:
            written, text = write_pipeline(result.model_dir, entry, ask, console, force=force)
            console.result({**data, "pipeline": written}, f"{_text(result)}\n{text}")
            return
        write_clients_of(result.model_dir)
        console.result(data, _text(result))


def _text(result: ExportResult) -> str:
    manifest = result.manifest
    checks = manifest.verification
    done = "reused, exported before" if result.reused else "exported"
    size = f"{manifest.model_bytes / 1e6:.1f} MB, opset {manifest.opset}, IR {manifest.ir_version}"
    error = f"max abs error {checks.max_abs_error:.1e} (limit {checks.tolerance:g})"
    lines = [
        f"{result.model_file}  ({done} in {manifest.duration_s:.1f}s, {size})",
        *(f"  input   {_tensor(tensor)}" for tensor in manifest.inputs),
        *(f"  output  {_tensor(tensor)}" for tensor in manifest.outputs),
        f"  verified against torch: {error} over {len(checks.shapes)} padded batches",
    ]
    return "\n".join(lines)


def _tensor(tensor: TensorRecord) -> str:
    return f"{tensor.name} {tensor.data_type.removeprefix('TYPE_')} {list(tensor.dims)}"
