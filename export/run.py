"""One export from source to published model directory. Layer: export, top."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from export.manifest import (
    MANIFEST_FILE,
    ExportManifest,
    ShapeRecord,
    SourceRecord,
    TensorRecord,
    VerificationRecord,
    library_versions,
    read_manifest,
)
from export.plan import DEFAULT_OPSET, ExportPlan, make_plan
from export.quiet import quiet
from export.source import Source, file_digest, open_source
from export.torch_onnx import EXPORTER, load_model, torch_reference, write_onnx
from export.verify import Verification, verify
from tooling.console import Console, Progress
from tooling.errors import Refused, UsageError
from tooling.repository import MODEL_FILE, check_model_name, publish, staging, write_atomic, writing
from tooling.signature.onnx_file import read_onnx
from tooling.signature.spec import TensorSpec

TOKENIZER_DIR: Final = "tokenizer"
_VERSION: Final = "1"
_OURS: Final = frozenset({_VERSION, TOKENIZER_DIR, MANIFEST_FILE})


@dataclass(frozen=True, slots=True)
class ExportResult:
    """`reused`: the repository already held exactly this export, and nothing was written."""

    model_dir: Path
    manifest: ExportManifest
    reused: bool = False

    @property
    def model_file(self) -> Path:
        return self.model_dir / _VERSION / MODEL_FILE


def export_model(
    source: Path | str,
    repository: Path,
    name: str | None = None,
    *,
    opset: int = DEFAULT_OPSET,
    force: bool = False,
    console: Console | None = None,
) -> ExportResult:
    """Export a Hugging Face model into `repository/name`, verified against torch; whole or not at all.

    An existing model keeps its config and other versions; version 1, tokenizer and manifest are replaced together. The
    same source, opset and library versions are not exported twice unless `force`. Without a name it is the source's.
    Raises UsageError (source, name, opset, repository), MissingError (a library, the hub), ExternalError (torch's
    exporter fails) and Refused when the model differs from torch.
    """
    console = console or Console(quiet=True)
    with quiet(console):
        found = open_source(source)
    plan = make_plan(found, opset)
    name = found.name if name is None else name
    check_model_name(name)
    model_dir = repository / name
    _check_target(model_dir, force)
    record = SourceRecord(id=found.id, revision=found.revision, sha256=found.digest())
    existing = None if force else _existing(model_dir, record, plan)
    if existing is not None:
        return ExportResult(model_dir, existing, reused=True)
    with staging(model_dir) as staged, console.progress(f"export {name}", total=4) as progress:
        manifest = _build(found, record, plan, staged, progress, console)
        write_atomic(staged / MANIFEST_FILE, manifest.model_dump_json(indent=2) + "\n")
        _carry_over(model_dir, staged)
        publish(staged, model_dir)
        progress.step(f"published in {model_dir}")
    return ExportResult(model_dir, manifest)


def _check_target(model_dir: Path, force: bool) -> None:
    """Never replace what an export did not write, unless told to."""
    with writing(model_dir):
        blocked = model_dir.exists() and not model_dir.is_dir()
        foreign = (model_dir / _VERSION).exists() and not (model_dir / MANIFEST_FILE).exists()
    if blocked:
        raise UsageError("not a directory", where=model_dir, hint="choose another name with --name")
    if foreign and not force:
        raise UsageError(
            "holds a version 1 that was not exported by tritune",
            where=model_dir,
            expected="a new name, or a model directory with export.json",
            hint="choose another name with --name, or replace version 1 with --force",
        )


def _existing(model_dir: Path, source: SourceRecord, plan: ExportPlan) -> ExportManifest | None:
    """The manifest in place when it describes this very export and its files are still there unchanged."""
    model = model_dir / _VERSION / MODEL_FILE
    try:
        manifest = read_manifest(model_dir)
        same = (manifest.source.sha256, manifest.opset) == (source.sha256, plan.opset)
        if not same or manifest.exporter != EXPORTER or manifest.versions != library_versions():
            return None
        whole = (model_dir / TOKENIZER_DIR).is_dir() and file_digest(model) == manifest.model_sha256
    except (UsageError, OSError):
        return None
    return manifest if whole else None


def _build(
    source: Source, record: SourceRecord, plan: ExportPlan, staged: Path, progress: Progress, console: Console
) -> ExportManifest:
    """Fill the staged model directory and return its manifest. Raises Refused when the verification fails."""
    started = time.monotonic()
    path = staged / _VERSION / MODEL_FILE
    with quiet(console):
        model = load_model(source, plan)
    progress.step("loaded into torch")
    with writing(path), quiet(console):
        path.parent.mkdir()
        write_onnx(model, plan, path)
    progress.step("converted to ONNX")
    with quiet(console):
        verification = verify(path, torch_reference(model, plan.steps), plan)
    _require_equal(verification, source)
    progress.step(f"verified, max abs error {verification.worst.max_abs_error:.1e}")
    _copy_tokenizer(source, staged / TOKENIZER_DIR)
    return _manifest(record, plan, path, verification, time.monotonic() - started)


def _require_equal(verification: Verification, source: Source) -> None:
    if verification.passed:
        return
    worst = verification.worst
    raise Refused(
        "the exported model does not answer as the source does; nothing was written",
        where=source.id,
        got=f"{worst.failure or f'a difference of {worst.max_abs_error:.3g}'} at {worst.where} "
        f"of batch {worst.batch} × {worst.length} tokens",
        expected=f"at most {verification.tolerance:g} from torch in {len(verification.checks)} padded batches",
        hint="try another --opset; the log is shown with -v",
    )


def _copy_tokenizer(source: Source, folder: Path) -> None:
    with writing(folder):
        folder.mkdir()
        for path in (source.directory / "config.json", *source.tokenizer):
            shutil.copyfile(path, folder / path.name)


def _manifest(
    source: SourceRecord, plan: ExportPlan, path: Path, verification: Verification, duration_s: float
) -> ExportManifest:
    signature = read_onnx(path)
    assert signature.opset is not None and signature.ir_version is not None
    checks = verification.checks
    return ExportManifest(
        source=source,
        exporter=EXPORTER,
        versions=library_versions(),
        opset=signature.opset,
        ir_version=signature.ir_version,
        inputs=_tensors(signature.inputs),
        outputs=_tensors(signature.outputs),
        steps=plan.describe(),
        max_tokens=plan.max_tokens,
        model_bytes=path.stat().st_size,
        model_sha256=file_digest(path),
        verification=VerificationRecord(
            tolerance=verification.tolerance,
            max_abs_error=verification.worst.max_abs_error,
            shapes=tuple(ShapeRecord(batch=c.batch, length=c.length, max_abs_error=c.max_abs_error) for c in checks),
        ),
        duration_s=round(duration_s, 2),
        created=datetime.now(timezone.utc).replace(microsecond=0),
    )


def _tensors(specs: Iterable[TensorSpec]) -> tuple[TensorRecord, ...]:
    return tuple(TensorRecord(name=s.name, data_type=s.data_type, dims=s.dims) for s in specs)


def _carry_over(model_dir: Path, staged: Path) -> None:
    """Take the config, configs/ and other versions of an existing model along, as links where the disk allows."""
    if not model_dir.is_dir():
        return

    def ours(folder: str, names: list[str]) -> set[str]:
        return set(_OURS).intersection(names) if Path(folder) == model_dir else set()

    with writing(staged):
        shutil.copytree(model_dir, staged, symlinks=True, ignore=ours, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
