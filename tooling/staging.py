"""Directories that are filled beside their place and put there whole. Layer: above repository."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from tooling.repository import directory_for, require_room, writing

_TAKEN: Final = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_HERE: Final = -100
_EXCHANGE: Final = 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A fresh directory beside `target` to fill and then `publish`; whatever is left of it is removed on the way out.

    Raises UsageError when it cannot be made, or when the disk is full.
    """
    staged = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    with ExitStack() as stack:
        with writing(target):
            stack.enter_context(directory_for(target.parent))
            staged.mkdir()
            stack.callback(_remove, staged)
            require_room(staged)
        yield staged


def publish(staged: Path, target: Path) -> None:
    """Put the finished directory `staged` in the place of `target`: whoever reads meanwhile finds the old one or the
    new one, and of two that publish at once the last one stays. What stood there is removed.

    Both must be on one file system (see `staging`). Raises UsageError when it cannot be done; `target` stays as it was.
    """
    with writing(target):
        if not _renamed(staged, target) and not _exchanged(staged, target):
            _replaced(staged, target)
    _remove(staged)


def link(source: str | Path, target: str | Path) -> None:
    """A second name for a file; a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _renamed(staged: Path, target: Path) -> bool:
    """Move it where nothing stands; False where something does."""
    try:
        staged.rename(target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def _exchanged(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where the system or its file system cannot."""
    import ctypes

    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _replaced(staged: Path, target: Path) -> None:
    """The same in two steps, between which nothing stands there; what stood there comes back when the second fails."""
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.old")
    target.rename(old)
    try:
        staged.rename(target)
    except OSError:
        old.rename(target)
        raise
    _remove(old)


def _remove(path: Path) -> None:
    """Take away a directory with all in it, or a link to one; nothing where it is gone."""
    if path.is_symlink():
        with suppress(OSError):
            path.unlink()
    shutil.rmtree(path, ignore_errors=True)
