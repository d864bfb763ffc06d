"""The problems of a project file, with their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.cli import build
from tooling.errors import UsageError


def problems(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "tritune.yaml"
    file.write_text(text)
    (tmp_path / "model_repository" / "m").mkdir(parents=True, exist_ok=True)
    with pytest.raises(UsageError) as caught:
        build.read(file)
    return [f"{str(p).replace(str(tmp_path), '.')}{f' | {p.hint}' if p.hint else ''}" for p in caught.value.problems]
