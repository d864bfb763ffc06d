"""`tritune export`: a Hugging Face model as a verified ONNX file in a model repository. Layer: cli."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from export.options import INLINE_BYTES, OPSETS, ExportOptions
from tooling.cli.app import console_of
from tooling.cli.engine import SETTINGS, Builder, EngineAsk, export_engine, parse_settings, refuse_engine_options
from tooling.cli.options import CLIENTS, MOST, counted, counts, given, heeding, repeated, size_bytes
from tooling.cli.text_pipeline import (
    Invalid,
    Padding,
    Pipeline,
    TextAsk,
    refuse_text_options,
    write_clients_of,
    write_pipeline,
)
from tooling.errors import UsageError

if TYPE_CHECKING:
    from export.manifest import ExportManifest, TensorRecord
    from export.run import ExportResult

_Format = Literal["onnx", "tensorrt"]
_Precision = Literal["fp32", "fp16", "int8"]
_Exporter = Literal["dynamo", "torchscript"]


def _read_task(name: str) -> None:
    from export.tasks import task_named

    task_named(name)


def _inline_bytes(size: str) -> int:
    wanted = size_bytes("--external-data", size)
    if wanted > INLINE_BYTES:
        raise UsageError(
            "no file holds so much", where="--external-data", got=size, expected="at most 2GB", hint="leave it out"
        )
    return wanted


def attach(app: typer.Typer) -> None:
    app.command()(export)


def export(
    context: typer.Context,
    source: str = typer.Argument(help="Hugging Face model directory, or a hub id where there is a network."),
    repository: Path = typer.Option(..., "--repository", "-r", help="Model repository to write into."),
    name: str | None = typer.Option(None, "--name", help="Model name in the repository; default: the source's name."),
    task: str | None = typer.Option(
        None, "--task", callback=heeding(_read_task), help="What for, such as fill-mask. Default: as its config says."
    ),
    precision: _Precision = typer.Option("fp32", "--precision", help="fp16 for GPUs, int8 for CPUs."),
    convert_io: bool = typer.Option(False, "--convert-io", help="With fp16: inputs and outputs in FP16 too."),
    optimize: bool = typer.Option(False, "--optimize", help="Fuse operators for ONNX Runtime."),
    release: str | None = typer.Option(None, metavar="YY.MM", help="The oldest Triton that must load it, like 24.10."),
    opset: int | None = typer.Option(
        None,
        "--opset",
        min=OPSETS[0],
        max=OPSETS[-1],
        help="ONNX operator set; default: 18, or what the release loads.",
    ),
    exporter: _Exporter | None = typer.Option(
        None, "--exporter", help="Default: torchscript, else dynamo: the first whose file verifies."
    ),
    external_data: str | None = typer.Option(
        None,
        metavar="SIZE",
        callback=heeding(_inline_bytes),
        help="Put larger weights into a file of their own; default: 2GB, which is as much as fits.",
    ),
    file_format: _Format = typer.Option("onnx", "--format", help="tensorrt: an engine, from ONNX or any source."),
    max_batch_size: int | None = typer.Option(None, min=1, max=MOST, help="Largest batch of an engine; default: 8."),
    workload: Path | None = typer.Option(None, metavar="FILE", help="Traffic that an engine's profiles are made for."),
    builder: Builder | None = typer.Option(
        None, help="What builds an engine. Default: container, else trtexec, else python."
    ),
    engine: list[str] = repeated(
        "--engine", "KEY=VALUE", parse_settings, f"A setting of an engine: {', '.join(SETTINGS)}."
    ),
    print_command: bool = typer.Option(False, "--print-command", help="Show how an engine would be built."),
    trust_remote_code: bool = typer.Option(False, "--trust-remote-code", help="Run Python that the model comes with."),
    force: bool = typer.Option(
        False, "--force", help="Export even if the same export is already there; replace edited configs."
    ),
    pipeline: Pipeline | None = typer.Option(
        None, help="`text`: models that take texts (NAME, NAME_tokenizer, NAME_model)."
    ),
    padding: Padding | None = typer.Option(
        None, help="How texts become batches; `auto` decides from a service curve. Default: none, or buckets."
    ),
    buckets: str = counted("--buckets", "Lengths in tokens to pad to, like 128,256,512."),
    texts: Path | None = typer.Option(None, metavar="FILE", help="Real texts, one a line, to find buckets for."),
    curve: Path | None = typer.Option(
        None, metavar="FILE", help="Service curve of `tritune profile` [.tritune/curves/NAME_model-…]."
    ),
    concurrency: int | None = typer.Option(None, min=1, max=MOST, help=f"Clients to decide for [{CLIENTS}]."),
    max_tokens: int | None = typer.Option(None, min=1, max=MOST, help="Cut texts here. Default: the model's limit."),
    invalid_utf8: Invalid | None = typer.Option(None, help="What to do with such texts [replace]."),
) -> None:
    """Export a transformer to ONNX, verify it against torch and write it into a model repository."""

    from export.run import export_model

    options = ExportOptions(
        task=task,
        opset=opset,
        release=release,
        exporter=exporter,
        precision=precision,
        convert_io=convert_io,
        optimize=optimize,
        trust_remote_code=trust_remote_code,
        inline_bytes=_inline_bytes(external_data) if external_data else INLINE_BYTES,
    )
    if convert_io and precision != "fp16":
        raise UsageError("--convert-io is for --precision fp16", hint="leave it out, or ask for half precision")
    console, said = console_of(context), given(context)
    if file_format == "tensorrt":
        wanted = EngineAsk(
            options,
            said,
            max_batch_size=max_batch_size,
            edges=counts("--buckets", buckets),
            longest=max_tokens,
            workload=workload,
            bucketed=padding == "buckets",
            builder=builder,
            settings=parse_settings(engine),
            print_command=print_command,
        )
        export_engine(
            source,
            repository,
            name,
            wanted,
            lambda onnx: export_model(source, repository, name, onnx, force=force, console=console).model_file,
            console,
        )
        return
    refuse_engine_options(said)
    if not pipeline:
        refuse_text_options(said)
    ask = TextAsk(padding, buckets, texts, curve, concurrency, max_tokens, invalid_utf8)
    entry = ask.entry_name(source, repository, name, force=force) if pipeline else name
    named = f"{entry}_model" if pipeline else entry
    result = export_model(source, repository, named, options, force=force, console=console)
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
    done = "reused, exported before" if result.reused else "exported"
    kind = f"{manifest.task}, {manifest.precision}, {manifest.exporter}"
    size = f"{manifest.model_bytes / 1e6:.1f} MB, opset {manifest.opset}, IR {manifest.ir_version}"
    fused = ", ".join(f"{count} {name}" for name, count in manifest.fused.items())
    lines = [
        f"{result.model_file}  ({done} in {manifest.duration_s:.1f}s, {kind}, {size})",
        *(f"  input   {_tensor(tensor)}" for tensor in _few(manifest.inputs)),
        *(f"  output  {_tensor(tensor)}" for tensor in _few(manifest.outputs)),
        *([f"  fused   {fused}"] if fused else []),
        f"  verified against torch: {_deviation(manifest)}",
    ]
    return "\n".join(lines)


def _deviation(manifest: ExportManifest) -> str:
    found = manifest.verification
    parts = [f"max abs error {found.max_abs_error:.1e}, relative {found.relative_error:.1e}"]
    parts += [] if found.cosine is None else [f"cosine {found.cosine:.5f}"]
    parts += [] if found.top1 is None else [f"same first class {found.top1:.1%}"]
    limit = f"relative limit {found.limits['error']:g}"
    return f"{', '.join(parts)} over {len(found.batches)} batches ({limit})"


def _few(tensors: tuple[TensorRecord, ...]) -> tuple[TensorRecord, ...]:
    """The tensors to show: of a decoder's cache those of the first layer."""
    return tuple(tensor for tensor in tensors if not tensor.name.startswith(_CACHES) or ".0." in tensor.name)


_CACHES = ("past_key_values.", "present.")


def _tensor(tensor: TensorRecord) -> str:
    return f"{tensor.name} {tensor.data_type.removeprefix('TYPE_')} {list(tensor.dims)}"
