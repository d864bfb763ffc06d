"""The generated clients, run as a user would, against the real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.analyzer import find_perf_analyzer
from perf.input_data import write_input_data
from perf.workload import Workload
from tooling.server import EmbeddedServer
from tooling.signature.spec import ModelSignature, TensorSpec

pytestmark = pytest.mark.live
TEXTS = [b"How do I reset my password?", b"She moved to the coast."]
NAMES = ["http.py", "grpc.py", "async.py", "curl.sh"]


@pytest.mark.parametrize("client", NAMES)
@pytest.mark.parametrize("model", ["bucketed", pytest.param("encoder_model", marks=pytest.mark.long)])
def test_a_client_gets_the_answers(
    client: str,
    model: str,
    server: EmbeddedServer,
    text_repository: Path,
    load: Callable[[str], str],
    alone: Callable[..., np.ndarray],
) -> None:
    load(model)
    file = text_repository / model / "clients" / f"client_{client}"
    url = server.grpc_url if client in ("grpc.py", "async.py") else server.http_url
    done = subprocess.run(
        ["sh" if client.endswith(".sh") else sys.executable, file, url],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stderr
    if client == "curl.sh":
        outputs = {tensor["name"]: tensor["data"] for tensor in json.loads(done.stdout)["outputs"]}
        assert len(outputs["embeddings"]) == 2 * 384
        if model == "bucketed":
            assert outputs["token_count"] == [9, 8]
            assert np.abs(np.reshape(outputs["embeddings"], (2, 384)) - alone(TEXTS)).max() <= 1e-5
        return
    shown = done.stdout.replace("\n", " ")
    assert shown.startswith("embeddings [[")
    first = float(shown.split("[[")[1].split()[0])
    if model == "bucketed":
        assert shown.rstrip().endswith("token_count [[9]  [8]]")
        assert first == pytest.approx(float(alone(TEXTS)[0, 0]), abs=1e-5)


@pytest.mark.long
def test_perf_analyzer_sends_texts_as_one_element_each(
    server: EmbeddedServer, load: Callable[[str], str], runtime: Any, tmp_path: Path
) -> None:
    """Whatever their length: a shape of the number of characters would be refused."""
    signature = ModelSignature(tmp_path, "ensemble", (TensorSpec("text", "TYPE_STRING", (-1, 1)),), ())
    workload = Workload(concurrency=2)
    requests = write_input_data(tmp_path / "requests.json", signature, workload, None).path
    (step, *_) = json.loads(requests.read_text())["data"]
    assert step["text"]["shape"] == [1] and len(step["text"]["content"][0]) > 1
    seen = find_perf_analyzer(runtime).measure(
        load("bucketed"), server.grpc_url, workload, requests, raw_dir=tmp_path / "raw", window_ms=1_000
    )
    assert seen.status in ("ok", "unstable") and seen.throughput_rps and seen.throughput_rps > 1
