"""The examples: each is built by `tritune build`, served by the embedded server and answers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tooling.server import EmbeddedServer

pytestmark = [pytest.mark.live, pytest.mark.long]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the example that the test names, which is also the directory we are in."""
    root = Path(shutil.copytree(EXAMPLES / request.param, tmp_path / request.param))
    monkeypatch.chdir(root)
    return root


def ask(
    server: EmbeddedServer, model: str, output: str, parameters: dict[str, Any] | None = None, **inputs: Any
) -> Any:
    """The answer of a model to one request of numpy arrays."""
    import tritonclient.grpc as triton

    with triton.InferenceServerClient(server.grpc_url) as client:
        tensors = []
        for name, value in inputs.items():
            kind = "BYTES" if value.dtype == np.object_ else "INT64"
            tensors.append(triton.InferInput(name, list(value.shape), kind))
            tensors[-1].set_data_from_numpy(value)
        return client.infer(model, tensors, **(parameters or {})).as_numpy(output)


def texts(*words: str) -> Any:
    return np.array([[word.encode()] for word in words], dtype=np.object_)


@pytest.mark.parametrize("example", ["embedding"], indirect=True)
def test_an_embedding_service(example: Path, run_cli: Callable[..., Any], runtime: Any) -> None:
    file = example / "tritune.yaml"
    file.write_text(file.read_text().replace("budget: 60s", "budget: 5s"))
    built = run_cli("build")
    assert built.code == 0, built.err
    assert "6 steps done" in built.out
    with EmbeddedServer(example / "model_repository", runtime) as server:
        for name in server.models():
            server.load(name)
        rows = ask(server, "embed", "embeddings", text=texts("cancel my order", "stop the order", "a blue sky"))
    near, far = rows[0] @ rows[1], rows[0] @ rows[2]
    assert near > far + 0.2
    assert run_cli("build", "--frozen").code == 0


@pytest.mark.parametrize("example", ["classifier"], indirect=True)
def test_a_classifier_with_priorities(example: Path, run_cli: Callable[..., Any], runtime: Any) -> None:
    subprocess.run([sys.executable, "make_model.py"], cwd=example, check=True)
    built = run_cli("build")
    assert built.code == 0, built.err
    with EmbeddedServer(example / "model_repository", runtime) as server:
        server.load("sentiment")
        tensors = {name: np.ones((1, 5), np.int64) for name in ("input_ids", "attention_mask")}
        urgent, other = (ask(server, "sentiment", "logits", {"priority": level}, **tensors) for level in (1, 2))
    assert urgent.shape == (1, 2)
    np.testing.assert_array_equal(urgent, other)


@pytest.mark.parametrize("example", ["ensemble"], indirect=True)
def test_an_ensemble_of_models_that_are_there(example: Path, run_cli: Callable[..., Any], runtime: Any) -> None:
    built = run_cli("build")
    assert built.code == 0, built.err
    with EmbeddedServer(example / "model_repository", runtime) as server:
        for name in ("clean", "score", "review"):
            server.load(name)
        scores = ask(server, "review", "score", text=texts("Great food, friendly people!", "SLOW.", "It rained."))
    assert scores.tolist() == [[1.0], [-1.0], [0.0]]
