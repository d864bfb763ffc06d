"""What a config that is not written yet would be refused for, as far as its own text can tell. Layer: check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from tooling.check.core import POLL, TENSORS
from tooling.check.finding import Finding
from tooling.check.model import Model
from tooling.check.rules import (
    dynamic,
    features,
    instances,
    onnx_options,
    platform,
    python_model,
    state,
    tensorrt_options,
    tensors,
    text,
    versions,
)
from tooling.check.target import Target
from tooling.check.text import ConfigText
from tooling.pbtxt.cursor import LIMIT

# They ask the text alone, and files that stand beside the versions.
_CHECKS: Final[tuple[Callable[[Model], Iterable[Finding]], ...]] = (
    text.text,
    *POLL,
    *TENSORS,
    platform.backend,
    instances.instance_groups,
    *(onnx_options.parameters, onnx_options.accelerators, python_model.parameters, tensorrt_options.options),
    *(versions.labels, state.states),
    *(dynamic.batching_advice, features.tags, tensors.duplicates),
)


def judge(source: bytes, path: Path, directory: Path, target: Target) -> list[Finding]:
    """Findings about the config text that is to stand at `path`, for the model in `directory`.

    The model file is left out of it: what the config must have in common with that is judged by whoever read it.
    """
    config = ConfigText.of(str(path), path, source)
    model = Model(directory, str(directory), replace(target, strict=True), text=config)
    findings = (finding for check in _CHECKS for finding in check(model))
    return list(islice((finding for finding in findings if finding.rule.holds_for(target.release.tag)), LIMIT))
