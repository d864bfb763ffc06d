"""`tritune check` reads the engine arguments of the vLLM that is installed for the embedded server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.llm


def test_the_installed_engine_is_judged_for(
    add_llm: Callable[..., Path], run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    """The vLLM of 24.10 takes `swap_space`, the embedded server's does not any more; what both take is not told."""
    add_llm(tmp_path, "llama", swap_space=4)
    result = run_cli("check", tmp_path, "--release", "24.10", "--json")
    assert result.code == 0, result.err
    said = [f["message"] for f in result.json["data"]["findings"] if f["rule"] == "vllm-installed-differs"]
    assert said == ["the vLLM installed here has no engine argument swap_space"]
