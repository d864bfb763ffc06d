"""`tritune check` reads the engine arguments of the vLLM that is installed for the embedded server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.llm


def test_the_installed_engine_is_judged_for(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    """The vLLM of 24.10 takes `swap_space`, the embedded server's does not any more; what both take is not told."""
    model = tmp_path / "llama" / "1" / "model.json"
    model.parent.mkdir(parents=True)
    (tmp_path / "llama" / "config.pbtxt").write_text('backend: "vllm"\ninstance_group { kind: KIND_MODEL }\n')
    model.write_text('{"model": "org/llm", "max_num_seqs": 8, "swap_space": 4}')
    result = run_cli("check", tmp_path, "--release", "24.10", "--json")
    assert result.code == 0, result.err
    said = [f["message"] for f in result.json["data"]["findings"] if f["rule"] == "vllm-installed-differs"]
    assert said == ["the vLLM installed here has no engine argument swap_space"]
