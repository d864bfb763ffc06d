"""The files of a deployment: the text of those in YAML, and all of them written into a directory that may hold an
earlier one. Layer: deploy, its bottom.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tooling.errors import Problem, UsageError
from tooling.repository import alone_in, directory_for, read_text, write_all, writing


def yaml_text(command: str, documents: Iterable[object]) -> str:
    """A file of these documents whose first line names the command that wrote it."""
    import yaml

    text = yaml.safe_dump_all(documents, sort_keys=False, width=120, allow_unicode=True)
    return f"# Written by `tritune {command}`.\n{text}"


def write_files(output: Path, files: Mapping[str, str], *, force: bool) -> list[Path]:
    """Write each file that differs, and return those; the others are left alone. Of two that write at once the second
    finds what the first has written.

    Raises UsageError, before anything is written, for files that exist with another content, unless `force`.
    """
    with writing(output / next(iter(files))), directory_for(output), alone_in(output):
        changed: dict[Path, bytes | str] = {
            output / name: text for name, text in files.items() if _differs(output / name, text)
        }
        kept = [path for path in changed if path.exists()]
        if kept and not force:
            raise UsageError(
                problems=[
                    Problem(
                        "is there with another content",
                        where=str(path),
                        hint="take --force to replace it, or another --output",
                    )
                    for path in kept
                ]
            )
        write_all(changed)
        return list(changed)


def _differs(path: Path, text: str) -> bool:
    return not path.exists() or read_text(path) != text
