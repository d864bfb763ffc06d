"""Files of a repository, read without waiting for a pipe, and no more than is looked at. Layer: check."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from tooling.config.yaml_file import loader


def read_limited(path: Path, most: int, *, pipe: bool = False) -> bytes | None:
    """The content of a file; None when it holds more than `most` bytes.

    `pipe` allows a pipe, which a shell makes of `<(…)`. Raises OSError for a device, for a directory, and for what
    cannot be read.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode)) or stat.S_ISDIR(mode)):
        raise OSError(None, "not a regular file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    return content if len(content) <= most else None


def is_file(path: Path) -> bool:
    """Whether a regular file stands here, as far as that can be seen."""
    try:
        return path.is_file()
    except OSError:
        return False


def exists(path: Path) -> bool:
    """Whether anything stands here, as far as that can be seen."""
    try:
        return path.exists()
    except OSError:
        return False


def closed(directory: Path) -> str | None:
    """Why the entries of a directory cannot be seen; None where they can, or where no directory is."""
    try:
        with os.scandir(directory):
            pass
    except PermissionError as error:
        return error.strerror
    except OSError:
        return None
    return None


def json_object(path: Path, most: int = 2**20) -> dict[str, Any] | None:
    """The JSON object that a file holds; None for any other file, and for none."""
    try:
        content = json.loads(read_limited(path, most) or b"")
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def yaml_object(path: Path, most: int = 2**20) -> dict[str, Any] | None:
    """The YAML mapping that a file holds; None for any other file, and for none."""
    import yaml

    try:
        content = yaml.load(read_limited(path, most) or b"", loader())
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
