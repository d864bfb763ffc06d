"""What users put into their CI: the commands of the workflow and of the pre-commit hooks run on a built project."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def commands() -> list[str]:
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "github-workflow.yml").read_text())
    steps = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    entries = [" ".join([hook["entry"], *hook.get("args", [])]) for hook in hooks]
    return [command for command in [*steps, *entries] if command.startswith("tritune")]


@pytest.mark.parametrize("command", commands())
def test_a_command_passes_on_what_is_right_and_fails_on_what_is_not(
    command: str, built: Path, run_cli: Callable[..., Any]
) -> None:
    line, _, file = command.partition(" > ")
    words = shlex.split(line)[1:]
    good = run_cli(*words)
    assert good.code == 0, good.err
    if file:
        assert json.loads(good.out)["runs"][0]["results"] is not None
    (built / "model_repository" / "one" / "1" / "model.onnx").write_bytes(b"")
    assert run_cli(*words).code == 1
