"""What the native ONNX Runtime backend said to a configuration is what `tritune check` says, word for word."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

RECORDED = yaml.safe_load((Path(__file__).parents[1] / "backend" / "native_verdicts.yaml").read_text(encoding="utf-8"))
CASES = RECORDED["cases"]


def _model_text(model: dict[str, Any]) -> str:
    sides = [
        ", ".join(f"{name}: {kind} [{', '.join(map(str, dims))}]" for name, (kind, *dims) in model[side].items())
        for side in ("inputs", "outputs")
    ]
    return " -> ".join(sides)


@pytest.mark.parametrize("mode", ["complete", "strict"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_verdict_is_the_native_one(
    case: dict[str, Any], mode: str, tmp_path: Path, write: ModuleType, check: Callable[..., dict[str, Any]]
) -> None:
    directory = tmp_path / case["name"]
    write.write_model(directory / "1" / case.get("file", "model.onnx"), _model_text(RECORDED["models"][case["model"]]))
    if case["config"] is not None:
        (directory / "config.pbtxt").write_text(case["config"], encoding="utf-8")
    data = check(tmp_path, "--gpus", "0", *(["--strict"] if mode == "strict" else []))
    expected = case.get("says_strict", case["says"]) if mode == "strict" else case["says"]
    errors = [finding for finding in data["findings"] if finding["severity"] == "error"]
    if expected == "ready":
        assert errors == []
        return
    pattern = re.escape(expected.replace("{model}", case["name"])).replace(r"\{path\}", "/.*")
    said = next(finding["server"] for finding in errors if finding["first"])
    assert said is not None
    assert re.fullmatch(pattern, said) or (said in expected and len(said) > 30)
