"""Token lengths of real text: the default traffic when the user gives none. Layer: bottom of perf."""

from __future__ import annotations

from pathlib import Path


def sentence_lengths(tokenizer_dir: Path) -> tuple[int, ...]:
    raise NotImplementedError
