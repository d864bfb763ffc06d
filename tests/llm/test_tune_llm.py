"""`tritune tune` of a vLLM model on the real engine: a starved scheduler is found and mended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.llm


def test_a_single_place_is_too_few(add_llm: Callable[..., Path], run_cli: Callable[..., Any], tmp_path: Path) -> None:
    model = add_llm(tmp_path / "models", "llama", max_num_seqs=1)
    asked = ("--concurrency", 6, "--lengths", "8,30", "--output-lengths", "8,40", "--apply", "--json")
    result = run_cli("tune", model, *asked)
    assert result.code == 0, result.err
    found = result.json["data"]
    assert found["met"]
    assert found["changed"], found
    assert found["chosen"]["max_num_seqs"] >= 4
    assert found["points"] <= 12
    written = json.loads((model / "1" / "model.json").read_text())
    assert written["max_num_seqs"] == found["chosen"]["max_num_seqs"]
    assert written["max_model_len"] == 512
