"""One export from source to published model directory. Layer: export, top."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from export import cache
from export.build import LABELS_FILE, PROCESSOR_DIR, TOKENIZER_DIR, VERSION, build
from export.manifest import MANIFEST_FILE, ExportManifest, SourceRecord, library_versions
from export.options import ExportOptions
from export.plan import make_plan, overlong_tokenizer
from export.quiet import quiet
from export.source import open_source
from tooling.console import Console
from tooling.errors import UsageError
from tooling.releases import current_release, release_named
from tooling.repository import alone_in, check_model_name, locate_model, write_atomic, writing
from tooling.staging import link, publish, staging

_OURS: Final = frozenset({VERSION, TOKENIZER_DIR, PROCESSOR_DIR, LABELS_FILE, MANIFEST_FILE})


@dataclass(frozen=True, slots=True)
class ExportResult:
    """`reused`: this very export was there already, in the repository or in the cache, and was not made again."""

    model_dir: Path
    manifest: ExportManifest
    reused: bool = False

    @property
    def model_file(self) -> Path:
        return locate_model(self.model_dir / VERSION).file


def export_model(
    source: Path | str,
    repository: Path,
    name: str | None = None,
    options: ExportOptions | None = None,
    *,
    force: bool = False,
    console: Console | None = None,
) -> ExportResult:
    """Export a Hugging Face model into `repository/name`, verified against torch; whole or not at all.

    An existing model keeps its config and other versions; version 1 and what describes it are replaced together. The
    same source, options and library versions are not exported twice, wherever to, unless `force`. Without a name it is
    the source's. Raises UsageError (source, options, name, repository), MissingError (a library, the hub),
    ExternalError (torch's exporters fail) and Refused when the model differs from torch.
    """
    console, options = console or Console(quiet=True), options or ExportOptions()
    with quiet(console):
        found = open_source(source, code=options.trust_remote_code)
    release = release_named(options.release, "--release") if options.release else current_release()
    plan = make_plan(found, options.task, opset=options.opset, release=release)
    overlong = overlong_tokenizer(found, plan)
    if overlong:
        console.warning(f"usable sequence length is {plan.max_tokens}, though the tokenizer cuts at {overlong}")
    name = found.name if name is None else name
    check_model_name(name)
    model_dir = repository / name
    _check_target(model_dir, force)
    record = SourceRecord(id=found.id, revision=found.revision, sha256=found.digest())
    facts = {"task": plan.task.name, "opset": plan.opset, "release": release.tag, "ir_version": plan.max_ir}
    key = cache.export_key(
        {"source": record.sha256, "versions": library_versions(), "options": asdict(options) | facts}
    )
    existing = None if force else cache.whole_export(model_dir, key)
    if existing is not None:
        return ExportResult(model_dir, existing, reused=True)
    with staging(model_dir) as staged, console.progress(f"export {name}", total=4) as progress:
        kept = None if force else cache.fetch(key, staged)
        if kept is None:
            manifest = build(found, record, key, plan, options, release.tag, staged, progress, console)
        else:
            manifest = kept.model_copy(update={"source": record})
        write_atomic(staged / MANIFEST_FILE, manifest.model_dump_json(indent=2) + "\n")
        if kept is None:
            cache.store(key, staged)
        with alone_in(model_dir):
            _carry_over(model_dir, staged)
            publish(staged, model_dir)
        if kept is None:
            progress.step(f"published in {model_dir}")
    return ExportResult(model_dir, manifest, reused=kept is not None)


def _check_target(model_dir: Path, force: bool) -> None:
    """Never replace what an export did not write, unless told to."""
    with writing(model_dir):
        blocked = model_dir.exists() and not model_dir.is_dir()
        foreign = (model_dir / VERSION).exists() and not (model_dir / MANIFEST_FILE).exists()
    if blocked:
        raise UsageError("not a directory", where=model_dir, hint="choose another name with --name")
    if foreign and not force:
        raise UsageError(
            "holds a version 1 that was not exported by tritune",
            where=model_dir,
            expected="a new name, or a model directory with export.json",
            hint="choose another name with --name, or replace version 1 with --force",
        )


def _carry_over(model_dir: Path, staged: Path) -> None:
    """Take the config, configs/ and other versions of an existing model along, as links where the disk allows."""
    if not model_dir.is_dir():
        return

    def ours(folder: str, names: list[str]) -> set[str]:
        return set(_OURS).intersection(names) if Path(folder) == model_dir else set()

    with writing(staged):
        shutil.copytree(model_dir, staged, symlinks=True, ignore=ours, copy_function=link, dirs_exist_ok=True)
