"""A tuning on a real GPU: the compose project's Triton, reconfigured and given back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tooling.server.running import RunningServer

from ..gpu import require_docker, up

URL = "127.0.0.1:8000"


@pytest.mark.gpu
def test_minilm_is_tuned_on_the_gpu(
    minilm_repository: Path, run_cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight rows of 256 tokens in a request, the longest that the model takes; batches up to 64 rows."""
    require_docker()
    monkeypatch.setenv("TRITON_MODEL_CONTROL", "explicit")
    traffic = tmp_path / "traffic.yaml"
    traffic.write_text("concurrency: 8\nlengths: [256]\nbatch: 8\n")
    assert run_cli("deploy", "compose", minilm_repository, "-o", tmp_path / "compose").code == 0
    with up(tmp_path / "compose"):
        before = RunningServer(URL).model_config("minilm")
        argv = ["--url", URL, "--allow-reconfigure", "--workload", traffic, "--study", tmp_path / "study"]
        done = run_cli("tune", minilm_repository / "minilm", *argv, "--max-batch-size", "8,16,32,64", "--json")
        assert RunningServer(URL).model_config("minilm") == before
    assert done.code == 0, done.err
    data = done.json["data"]
    assert data["points"] <= 12
    assert data["default"]["figures"]["throughput_rps"]["middle"] > 50
    assert all(trial["figures"] for trial in data["trials"] if trial["state"] == "compared")
