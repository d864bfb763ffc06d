"""The contents of an exported model directory: converted, verified, described. Layer: export, above verification."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from export import precision
from export.exporters import Written, candidates, run_exporter
from export.graph import Reference, make_graph
from export.manifest import (
    BatchRecord,
    ExportManifest,
    PassedOverRecord,
    SourceRecord,
    TensorRecord,
    VerificationRecord,
    library_versions,
)
from export.model_file import model_bytes, model_digest, save_model
from export.options import ExportOptions
from export.plan import ExportPlan
from export.quiet import quiet
from export.source import Source
from export.tasks import label_names
from export.torch_model import TorchModel, load_model
from export.verify import Verification, verify
from tooling.console import Console, Progress
from tooling.errors import ExternalError, Refused, TrituneError, UsageError
from tooling.repository import writing
from tooling.signature.onnx_file import read_onnx
from tooling.signature.spec import TensorSpec

VERSION: Final = "1"
TOKENIZER_DIR: Final = "tokenizer"
PROCESSOR_DIR: Final = "processor"
LABELS_FILE: Final = "labels.txt"
_SCRATCH: Final = ".scratch"


@dataclass(frozen=True, slots=True)
class _Artefact:
    """A converted model that has passed, and how it came about."""

    path: Path
    exporter: str
    passed_over: tuple[PassedOverRecord, ...]
    dropped: tuple[str, ...]
    fused: dict[str, int]
    verification: Verification


def build(
    source: Source,
    record: SourceRecord,
    key: str,
    plan: ExportPlan,
    options: ExportOptions,
    release: str,
    staged: Path,
    progress: Progress,
    console: Console,
) -> ExportManifest:
    """Fill the staged model directory and return its manifest. Raises Refused when no exporter's file verifies."""
    started = time.monotonic()
    with quiet(console):
        model = load_model(source, plan, trust_remote_code=options.trust_remote_code)
    progress.step("loaded into torch")
    with writing(staged / VERSION):
        made = _convert(source, model, plan, options, staged, progress, console)
        _copy_settings(source, plan, staged)
    if made.verification.looks_at_padding:
        console.warning("the model's answers depend on padding, in torch as well: send rows of equal length together")
    if made.dropped:
        console.warning(f"no output depends on {', '.join(made.dropped)}: left out of the model's inputs")
    return _manifest(record, key, plan, options, release, made, source, time.monotonic() - started)


def _convert(
    source: Source,
    model: TorchModel,
    plan: ExportPlan,
    options: ExportOptions,
    staged: Path,
    progress: Progress,
    console: Console,
) -> _Artefact:
    """The file of the first exporter whose file verifies. Raises what the last one failed with."""
    passed_over: list[PassedOverRecord] = []
    names = candidates(plan, options.exporter)
    for name in names:
        try:
            with quiet(console):
                path, written, fused = _write(name, source, model, plan, options, staged)
            progress.step(f"converted to ONNX by {name}")
            with quiet(console):
                found = verify(path, Reference(model, plan), plan, source.tokenizer_file, options.precision)
            _require_equal(found, source, options.precision)
        except (ExternalError, Refused, UsageError) as error:
            if name == names[-1]:
                raise
            passed_over.append(PassedOverRecord(exporter=name, reason=_reason(error)))
            console.info(f"exporter {name} is passed over: {passed_over[-1].reason}")
            shutil.rmtree(staged / VERSION)
            continue
        progress.step(f"verified, max abs error {found.worst.max_abs_error:.1e}")
        return _Artefact(path, name, tuple(passed_over), written.dropped, fused, found)
    raise AssertionError("every opset of a plan has an exporter")


def _reason(error: TrituneError) -> str:
    problem = error.problems[0]
    return problem.what if problem.got is None else f"{problem.what.partition(';')[0]}: {problem.got}"


def _write(
    name: str, source: Source, model: TorchModel, plan: ExportPlan, options: ExportOptions, staged: Path
) -> tuple[Path, Written, dict[str, int]]:
    """Export, optimise and convert into the version directory; the path that loads it."""
    import onnx_ir

    version, scratch = staged / VERSION, staged / _SCRATCH
    version.mkdir()
    scratch.mkdir()
    try:
        written = run_exporter(name, make_graph(model, plan), plan, scratch)
        if options.precision == "fp32" and not options.optimize:
            return save_model(written.model, version, options.inline_bytes), written, {}
        raw = scratch / "raw"
        raw.mkdir()
        single = save_model(written.model, raw)
        # Mistakes of the exporter are found before the rounding of the conversion could hide them.
        _require_equal(verify(single, Reference(model, plan), plan, source.tokenizer_file), source, "fp32")
        path, fused = precision.convert(single, scratch, options, model.config)
        converted = onnx_ir.load(path)
        converted.ir_version = written.model.ir_version
        return save_model(converted, version, options.inline_bytes), written, fused
    finally:
        shutil.rmtree(scratch)


def _require_equal(found: Verification, source: Source, kind: str) -> None:
    faults = list(found.faults())
    if not faults:
        return
    hints = {"fp16": "use --precision fp32, or serve in bfloat16 elsewhere", "int8": "use --precision fp32 or fp16"}
    hint = hints.get(kind, "try another --opset or --exporter; the log is shown with -v")
    raise Refused(
        "the exported model does not answer as the source does; nothing was written",
        where=source.id,
        got=" and ".join(faults),
        expected=f"torch's answers in {len(found.checks)} batches, as near as {kind} must be",
        hint=hint,
    )


def _copy_settings(source: Source, plan: ExportPlan, staged: Path) -> None:
    """What a client needs beside the model: tokenizer or image processor, config, labels."""
    folder = staged / (PROCESSOR_DIR if plan.image else TOKENIZER_DIR)
    folder.mkdir()
    for path in (source.directory / "config.json", *(source.processor if plan.image else source.tokenizer)):
        shutil.copyfile(path, folder / path.name)
    if plan.task.labels:
        text = "".join(f"{label}\n" for label in label_names(source.config))
        (staged / LABELS_FILE).write_text(text, encoding="utf-8")


def _manifest(
    record: SourceRecord,
    key: str,
    plan: ExportPlan,
    options: ExportOptions,
    release: str,
    made: _Artefact,
    source: Source,
    duration_s: float,
) -> ExportManifest:
    signature = read_onnx(made.path)
    assert signature.opset is not None and signature.ir_version is not None
    return ExportManifest(
        key=key,
        source=record,
        task=plan.task.name,
        precision=options.precision,
        exporter=made.exporter,
        passed_over=made.passed_over,
        versions=library_versions(),
        release=release,
        opset=signature.opset,
        ir_version=signature.ir_version,
        inputs=_tensors(signature.inputs),
        outputs=_tensors(signature.outputs),
        dropped_inputs=made.dropped,
        labels=len(label_names(source.config)) if plan.task.labels else None,
        steps=plan.describe(),
        fused=made.fused,
        max_tokens=plan.max_tokens or None,
        model_bytes=model_bytes(made.path),
        model_sha256=model_digest(made.path),
        verification=_verification(made.verification),
        duration_s=round(duration_s, 2),
        created=datetime.now(timezone.utc).replace(microsecond=0),
    )


def _verification(found: Verification) -> VerificationRecord:
    return VerificationRecord(
        limits=asdict(found.limits),
        max_abs_error=max(check.max_abs_error for check in found.checks),
        relative_error=found.worst.relative_error,
        cosine=found.cosine,
        top1=found.top1,
        looks_at_padding=found.looks_at_padding,
        batches=tuple(
            BatchRecord(batch=c.batch, max_abs_error=c.max_abs_error, relative_error=c.relative_error)
            for c in found.checks
        ),
    )


def _tensors(specs: Iterable[TensorSpec]) -> tuple[TensorRecord, ...]:
    return tuple(TensorRecord(name=s.name, data_type=s.data_type, dims=s.dims) for s in specs)
