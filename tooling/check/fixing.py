"""Applies the safe fixes of findings to config files, one after the other, comments and order kept. Layer: check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tooling.check.files import is_file
from tooling.check.finding import Finding
from tooling.check.runner import Report
from tooling.config.proto import pb
from tooling.errors import UsageError
from tooling.pbtxt.editor import edit
from tooling.pbtxt.message import load
from tooling.pbtxt.paths import apply
from tooling.repository import alone_in, write_atomic

_ROUNDS: Final = 50
"""Each takes the first finding of every file away, so a file that needs more does not exist."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """One fix that was written: the finding, and the assignments that were made."""

    finding: Finding
    file: Path


def fix(judge: Callable[[], Report]) -> tuple[list[Fixed], Report]:
    """Judge, fix the first finding of each file that has a safe fix, and judge again, until none is left.

    A fix that does not take its finding away, or a text that cannot be edited, is left alone. Raises UsageError when a
    file cannot be written.
    """
    done: list[Fixed] = []
    left: set[tuple[str, str, str]] = set()
    report = judge()
    for _ in range(_ROUNDS):
        firsts: dict[str, Finding] = {}
        for finding in report.findings:
            if finding.fix and _key(finding) not in left:
                firsts.setdefault(finding.place.file, finding)
        if not firsts:
            break
        left.update(map(_key, firsts.values()))
        done += [Fixed(finding, Path(file)) for file, finding in firsts.items() if _write(Path(file), finding)]
        report = judge()
    return done, report


def _key(finding: Finding) -> tuple[str, str, str]:
    return finding.rule.id, finding.place.file, finding.message


def _write(path: Path, finding: Finding) -> bool:
    """Change one file; False when its text has faults."""
    with alone_in(path.parent):
        source = path.read_bytes() if is_file(path) else b""
        try:
            config = load(source, pb().ModelConfig(), path)
            changed = edit(source, apply(config, finding.fix), path)
        except UsageError:
            return False
        if changed == source:
            return False
        write_atomic(path, changed)
        return True
