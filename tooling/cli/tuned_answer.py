"""What a tuning leaves on the terminal: the paths that were written, and what is left to do. Layer: cli."""

from __future__ import annotations

import shlex
from pathlib import Path


def paths(files: dict[str, str | None]) -> str:
    """The paths that were written, a line each, relative where that is shorter to read."""
    return "\n".join(f"{name:<8} {_here(Path(path))}" for name, path in files.items() if path)


def next_steps(written: Path | None, url: str = "") -> str:
    """What is left to do before a setting that was chosen serves: `written` is its REPO/NAME/configs/HARDWARE.pbtxt,
    `url` the running server that it was tuned on."""
    if written is None:
        return "next\n  the same command with --apply: it writes the config, and measures nothing again"
    name, repository = written.stem, written.absolute().parents[2]
    if url:
        return f"next\n  start Triton with --model-config-name={name}"
    return f"next\n  tritune serve {shlex.quote(str(_here(repository)))} --config-name {name}"


def _here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
