"""What is told of a step that ended."""

from __future__ import annotations

from tooling.project.answers import said
from tooling.project.steps import Step


def test_an_export_tells_its_texts_too() -> None:
    step = Step(name="m export", action="export", words=("export", "source"), reads=())
    assert said(step, {"padding": "none", "max_tokens": 256}, 1.0).startswith("m export: padding none")
