"""A real engine, on a real GPU: built, described by its sidecar, and accepted by gen-config and check."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.engine import bindings


@pytest.mark.gpu
def test_minilm_becomes_an_engine(minilm_repository: Path, run_cli: Callable[..., Any], tmp_path: Path) -> None:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no NVIDIA GPU here")
    if not (shutil.which("docker") or shutil.which("trtexec") or bindings.available()):
        pytest.skip("no TensorRT here: docker, trtexec or the Python package tensorrt")
    built = run_cli(
        *("export", minilm_repository / "minilm", "--repository", tmp_path, "--format", "tensorrt"),
        *("--precision", "fp16", "--buckets", "64,128,256", "--json"),
    )
    assert built.code == 0, built.err
    sidecar = json.loads((tmp_path / "minilm" / "1" / "model.plan.json").read_bytes())
    assert [profile["input_ids"]["max"] for profile in sidecar["profiles"]] == [[8, 64], [8, 128], [8, 256]]
    assert run_cli("gen-config", tmp_path / "minilm").code == 0
    assert run_cli("check", tmp_path).code == 0
