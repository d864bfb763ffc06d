"""Real engines, on a real GPU: built, described by their sidecar, accepted by check, served, and right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.engine import bindings
from export.verify import open_session

from ..gpu import require_docker, up

BUCKETS = ((8, 64), (8, 128), (8, 256))


@pytest.mark.gpu
@pytest.mark.parametrize("builder", ["container", "trtexec", "python"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_minilm_becomes_an_engine(
    builder: str, precision: str, minilm_repository: Path, run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    _require(builder)
    _build(run_cli, minilm_repository, tmp_path, builder, precision)
    sidecar = json.loads((tmp_path / "minilm" / "1" / "model.plan.json").read_bytes())
    assert [tuple(profile["input_ids"]["max"]) for profile in sidecar["profiles"]] == list(BUCKETS)
    assert sidecar["precision"] == ("fp16" if precision == "fp16" else "onnx")
    assert run_cli("check", tmp_path).code == 0


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_answers_as_its_model_does(
    precision: str, minilm_repository: Path, run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    """In NVIDIA's image, in every bucket, against ONNX Runtime on the CPU; no value may be NaN or infinite."""
    import numpy as np
    from tritonclient.http import InferenceServerClient, InferInput

    require_docker()
    models = tmp_path / "models"
    _build(run_cli, minilm_repository, models, "container", precision)
    assert run_cli("deploy", "compose", models, "-o", tmp_path / "out", "--http-port", "8100").code == 0
    session = open_session(minilm_repository / "minilm" / "1" / "model.onnx")
    names = [entry.name for entry in session.get_inputs()]
    random = np.random.default_rng(0)
    with up(tmp_path / "out"):
        client = InferenceServerClient("127.0.0.1:8100")
        for rows, length in BUCKETS:
            ids = random.integers(1000, 30_000, (rows, length))
            tensors = {
                name: ids if name == "input_ids" else np.full_like(ids, name == "attention_mask") for name in names
            }
            sent = []
            for name, values in tensors.items():
                sent.append(InferInput(name, values.shape, "INT64"))
                sent[-1].set_data_from_numpy(values)
            (expected,) = session.run(None, tensors)
            answer = client.infer("minilm", sent).as_numpy(session.get_outputs()[0].name)
            cosine = (answer * expected).sum(-1) / (np.linalg.norm(answer, axis=-1) * np.linalg.norm(expected, axis=-1))
            assert np.isfinite(answer).all() and cosine.min() > (0.999 if precision == "fp16" else 0.9999)
        client.close()


def _build(run_cli: Callable[..., Any], source: Path, models: Path, builder: str, precision: str) -> None:
    built = run_cli(
        *("export", source / "minilm", "--repository", models, "--format", "tensorrt", "--builder", builder),
        *("--precision", precision, "--buckets", ",".join(str(length) for _, length in BUCKETS), "--json"),
    )
    assert built.code == 0, built.err
    assert run_cli("gen-config", models / "minilm").code == 0


def _require(builder: str) -> None:
    if builder == "container":
        require_docker()
    elif builder == "trtexec" and shutil.which("trtexec") is None:
        pytest.skip("no trtexec on the PATH")
    elif builder == "python" and not bindings.available():
        pytest.skip("the Python package tensorrt is not installed")
