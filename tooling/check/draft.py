"""What a config that is not written yet would be refused for, as far as its own text can tell. Layer: check."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

from tooling.check.finding import Finding
from tooling.check.model import Model
from tooling.check.registry import of_the_text
from tooling.check.target import Target
from tooling.check.text import ConfigText
from tooling.pbtxt.cursor import LIMIT


def judge(source: bytes, path: Path, directory: Path, target: Target) -> list[Finding]:
    """Findings about the config text that is to stand at `path`, for the model in `directory`.

    The model file is left out of it: what the config must have in common with that is judged by whoever read it.
    """
    text = ConfigText.of(str(path), path, source)
    model = Model(directory, str(directory), replace(target, strict=True), text=text)
    findings = (finding for check in of_the_text() for finding in check(model))
    return list(islice((finding for finding in findings if finding.rule.holds_for(target.release.tag)), LIMIT))
