"""A real engine, on a real GPU: built, described by its sidecar, and accepted by gen-config and check."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.gpu
def test_minilm_becomes_an_engine(minilm_repository: Path, run_cli: Callable[..., Any], tmp_path: Path) -> None:
    built = run_cli(
        *("export", minilm_repository / "minilm", "--repository", tmp_path, "--format", "tensorrt"),
        *("--precision", "fp16", "--buckets", "64,128,256", "--json"),
    )
    assert built.code == 0, built.err
    sidecar = json.loads((tmp_path / "minilm" / "1" / "model.plan.json").read_bytes())
    assert [profile["input_ids"]["max"] for profile in sidecar["profiles"]] == [[8, 64], [8, 128], [8, 256]]
    assert run_cli("gen-config", tmp_path / "minilm").code == 0
    assert run_cli("check", tmp_path).code == 0
