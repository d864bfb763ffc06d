"""SHA-256 of files, remembered by their size and time, so that an unchanged file is not read again. Layer: project."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tooling.errors import UsageError
from tooling.project.steps import Tree
from tooling.repository import encode, write_atomic

_SETTLED_NS = 2_000_000_000
"""A file changed so lately may change again within the same tick of its clock: it is read again next time."""


class Digests:
    """Digests of the files under `root`; what is remembered stands in `store`, and is written by `save`."""

    def __init__(self, root: Path, store: Path) -> None:
        self.root, self._store = root, store
        self._stamps: dict[str, list[object]] = _read(store)

    def file(self, path: Path) -> str | None:
        """The digest of one file; None where there is none. Raises UsageError when it cannot be read."""
        name = os.path.relpath(path, self.root)
        try:
            state = path.stat()
            stamp = [state.st_size, state.st_mtime_ns, state.st_ino]
            known = self._stamps.get(name)
            if known and known[:3] == stamp:
                return str(known[3])
            with path.open("rb") as file:
                total = hashlib.sha256()
                while piece := file.read(1 << 20):
                    total.update(piece)
        except (FileNotFoundError, NotADirectoryError):
            self._stamps.pop(name, None)
            return None
        except OSError as error:
            raise UsageError("cannot be read", where=path, got=error.strerror) from error
        if time.time_ns() - state.st_mtime_ns > _SETTLED_NS:
            self._stamps[name] = [*stamp, total.hexdigest()]
        return total.hexdigest()

    def tree(self, tree: Tree) -> str | None:
        """One digest over the names and contents of a tree's files; None where there are none."""
        total = hashlib.sha256()
        found = False
        for path in files_of(self.root, tree):
            digest = self.file(path)
            if digest is not None:
                found = True
                total.update(encode(f"{os.path.relpath(path, self.root)} {digest}\n"))
        return total.hexdigest() if found else None

    def save(self) -> None:
        """Write what is remembered; it is only a shortcut, so a disk that refuses is no fault of the build."""
        try:
            write_atomic(self._store, json.dumps(self._stamps))
        except UsageError:
            return


def files_of(root: Path, tree: Tree) -> Iterator[Path]:
    """The files of a tree in a fixed order: links are followed to files, not to directories."""
    top = root / tree.path
    if not top.is_dir():
        yield top
        return
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(name for name in folders if not _left_out(name, tree))
        files = (name for name in sorted(names) if tree.only in ("", name))
        yield from (Path(folder, name) for name in files if not _left_out(name, tree))


def _left_out(name: str, tree: Tree) -> bool:
    return name in tree.without or (name.startswith(".") and not tree.hidden) or name == "__pycache__"


def _read(store: Path) -> dict[str, list[object]]:
    try:
        stamps = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(stamps, dict) and all(isinstance(s, list) and len(s) == 4 for s in stamps.values())
    return stamps if whole else {}
