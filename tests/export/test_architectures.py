"""Encoders of several families and every pooling, judged by torch and by a second judge each."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.quiet import quiet
from export.run import ExportResult, export_model
from tooling.console import Console

SILENT = Console(quiet=True)


def pooling(mode: str) -> dict[str, Any]:
    return {"word_embedding_dimension": 32, f"pooling_mode_{mode}": True}


NORMALIZE = ("Normalize", {})
DENSE = ("Dense", {"in_features": 32, "out_features": 12, "activation_function": "torch.nn.modules.activation.Tanh"})
HEADS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "mean": (("Pooling", pooling("mean_tokens")), NORMALIZE),
    "cls": (("Pooling", pooling("cls_token")),),
    "max": (("Pooling", pooling("max_tokens")), NORMALIZE),
    "lasttoken": (("Pooling", pooling("lasttoken")),),
    "dense": (("Pooling", pooling("mean_tokens")), DENSE, NORMALIZE),
}


@pytest.fixture(scope="module")
def padded() -> dict[str, Any]:
    """Three rows of 11, 6 and 1 tokens."""
    mask = (np.arange(11) < np.array([[11], [6], [1]])).astype(np.int64)
    tokens = np.random.default_rng(3).integers(4, 64, mask.shape) * mask
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}


@pytest.fixture(scope="module")
def headed(
    bert_dir: Path, tmp_path_factory: pytest.TempPathFactory, add_modules: Callable[..., Path]
) -> dict[str, tuple[Path, ExportResult]]:
    """For each head: the sentence-transformers directory and its export."""
    from safetensors.numpy import save_file

    place = tmp_path_factory.mktemp("heads")
    done = {}
    for name, modules in HEADS.items():
        source = add_modules(Path(shutil.copytree(bert_dir, place / name)), *modules)
        if name == "dense":
            drawn = np.random.default_rng(5)
            weights = {"linear.weight": drawn.normal(size=(12, 32)), "linear.bias": drawn.normal(size=12)}
            save_file({k: v.astype(np.float32) for k, v in weights.items()}, source / "2_Dense" / "model.safetensors")
        done[name] = (source, export_model(source, place / "repository", name, console=SILENT))
    return done


def answer(model: Path, inputs: dict[str, Any]) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model))
    return session.run(None, {entry.name: inputs[entry.name] for entry in session.get_inputs()})[0]


@pytest.mark.parametrize("head", HEADS)
def test_head_agrees_with_sentence_transformers(
    head: str, headed: dict[str, tuple[Path, ExportResult]], padded: dict[str, Any]
) -> None:
    source, result = headed[head]
    (output,) = result.manifest.outputs
    assert (output.name, output.dims) == ("embeddings", (-1, 12 if head == "dense" else 32))
    with quiet(SILENT):
        import torch
        from sentence_transformers import SentenceTransformer

        judge = SentenceTransformer(str(source), device="cpu").eval()
        with torch.no_grad():
            expected = judge({name: torch.from_numpy(values) for name, values in padded.items()})["sentence_embedding"]
    assert np.abs(answer(result.model_file, padded) - expected.numpy()).max() < 1e-4


@pytest.mark.live
def test_heads_answer_the_same_on_the_onnxruntime_of_the_server(
    headed: dict[str, tuple[Path, ExportResult]], padded: dict[str, Any], runtime: Any, tmp_path: Path
) -> None:
    """Operators that the server's older version lacks show here; the file must load and answer alike."""
    np.savez(tmp_path / "inputs.npz", **padded)
    program = (
        "import sys, numpy, onnxruntime\n"
        "inputs = dict(numpy.load(sys.argv[1]))\n"
        "answers = {m: onnxruntime.InferenceSession(m).run(None, inputs)[0] for m in sys.argv[3:]}\n"
        "numpy.savez(sys.argv[2], *answers.values())\n"
    )
    models = [str(result.model_file) for _, result in headed.values()]
    argv = [str(runtime.python), "-c", program, str(tmp_path / "inputs.npz"), str(tmp_path / "answers.npz"), *models]
    subprocess.run(argv, check=True, env=runtime.env(), capture_output=True, timeout=60)
    there = np.load(tmp_path / "answers.npz")
    for number, model in enumerate(models):
        assert np.abs(there[f"arr_{number}"] - answer(Path(model), padded)).max() < 1e-5


@pytest.mark.parametrize("kind", ["distilbert", "roberta", "mpnet"])
def test_only_inputs_that_carry_information(kind: str, make_model: Callable[..., Path], tmp_path: Path) -> None:
    result = export_model(make_model(tmp_path / kind, kind), tmp_path / "repository", console=SILENT)
    assert [tensor.name for tensor in result.manifest.inputs] == ["input_ids", "attention_mask"]


def test_dense_without_its_weights(source: Path, add_modules: Callable[..., Path], tmp_path: Path) -> None:
    from export.source import open_source
    from tooling.errors import UsageError

    add_modules(source, *HEADS["dense"])
    (source / "2_Dense" / "model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match=r"2_Dense/model\.safetensors: not a whole safetensors file"):
        open_source(source)
    (source / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"2_Dense/model\.safetensors: not the weights of a Dense module"):
        export_model(source, tmp_path / "repository", console=SILENT)


def test_minilm_gives_the_embeddings_of_sentence_transformers(minilm_repository: Path, minilm_dir: Path) -> None:
    """The whole path of a user: text, the tokenizer kept beside the model, the exported file."""
    texts = ["Triton serves models.", "A much longer sentence, so that the shorter one needs padding.", "short"]
    model_dir = minilm_repository / "minilm"
    with quiet(SILENT):
        from sentence_transformers import SentenceTransformer
        from tokenizers import Tokenizer

        expected = SentenceTransformer(str(minilm_dir), device="cpu").encode(texts)
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer" / "tokenizer.json"))
        tokenizer.enable_padding()
        encoded = tokenizer.encode_batch(texts)
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    inputs = {name: np.array([getattr(e, column) for e in encoded], np.int64) for name, column in columns.items()}
    found = answer(model_dir / "1" / "model.onnx", inputs)
    assert found.shape == (3, 384)
    assert np.abs(found - expected).max() < 1e-4
    manifest = json.loads((model_dir / "export.json").read_text())
    assert manifest["verification"]["max_abs_error"] <= 1e-4
