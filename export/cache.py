"""Finished exports by what they follow from, kept in the user's cache. Layer: export cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from export.manifest import ExportManifest, read_manifest
from export.model_file import model_digest
from tooling.errors import UsageError
from tooling.repository import locate_model
from tooling.staging import publish, staging

CACHE_VARIABLE: Final = "TRITUNE_EXPORT_CACHE"
_LIMIT_BYTES: Final = 20_000_000_000


def export_key(facts: Mapping[str, Any]) -> str:
    """One name for all that an export follows from: source, options, versions."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def cache_root() -> Path:
    """$TRITUNE_EXPORT_CACHE, else a directory in the user's cache."""
    from platformdirs import user_cache_path

    return Path(os.environ.get(CACHE_VARIABLE) or user_cache_path("tritune", appauthor=False) / "exports")


def whole_export(model_dir: Path, key: str) -> ExportManifest | None:
    """The manifest of the export with this key in a directory, if its model is there as it was written."""
    try:
        manifest = read_manifest(model_dir)
        if manifest.key != key or model_digest(locate_model(model_dir / "1").file) != manifest.model_sha256:
            return None
    except (UsageError, OSError):
        return None
    return manifest


def fetch(key: str, target: Path) -> ExportManifest | None:
    """Copy the export with this key into the empty directory `target`; None, and nothing copied, when there is none."""
    kept = cache_root() / key
    manifest = whole_export(kept, key)
    if manifest is None:
        return None
    try:
        shutil.copytree(kept, target, dirs_exist_ok=True)
        os.utime(kept)
    except OSError:
        shutil.rmtree(target)
        target.mkdir()
        return None
    return manifest


def store(key: str, export: Path) -> bool:
    """Keep a copy of a finished export; what was used longest ago makes room. Whether it is kept.

    A cache that cannot be written is no fault of the export.
    """
    root = cache_root()
    try:
        size = _size(export)
        if size > _LIMIT_BYTES:
            return False
        with staging(root / key) as staged:
            shutil.copytree(export, staged, dirs_exist_ok=True)
            publish(staged, root / key)
        _make_room(root, key)
    except (OSError, UsageError):
        return False
    return True


def _make_room(root: Path, newest: str) -> None:
    kept = sorted((entry for entry in root.iterdir() if entry.name != newest), key=lambda entry: entry.stat().st_mtime)
    total = _size(root)
    for entry in kept:
        if total <= _LIMIT_BYTES:
            return
        total -= _size(entry)
        shutil.rmtree(entry, ignore_errors=True)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
