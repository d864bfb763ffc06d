"""The image follows from the backends of a repository, the same for compose and on Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import PYTHON, PYTHON_MODEL

Run = Callable[..., Any]
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "eos_token_id": 128001,
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


@pytest.fixture
def language_model(run_cli: Run, tmp_path: Path, minilm_dir: Path) -> Callable[..., Path]:
    """`language_model("vllm", release)` → a repository with the models that `gen-config --llm` writes."""

    def make(backend: str, *argv: str, name: str = "llm") -> Path:
        llm = tmp_path / "llama"
        llm.mkdir(exist_ok=True)
        (llm / "config.json").write_text(json.dumps(LLAMA))
        (llm / "tokenizer.json").write_bytes((minilm_dir / "tokenizer.json").read_bytes())
        model = tmp_path / "repository" / name
        room = ("--gpu-memory", "80GiB", "--context", "8192", "--streams", "16")
        done = run_cli("gen-config", model, "--llm", llm, "--backend", backend, *room, *argv)
        assert done.code == 0, done.err
        return model.parent

    return make


def images(run_cli: Run, repository: Path, out: Path, *argv: str) -> set[str]:
    """What compose and Kubernetes run it in."""
    for kind, more in (("compose", ()), ("kubernetes", ("--name", "enc"))):
        done = run_cli("deploy", kind, repository, "-o", out / kind, *argv, *more)
        assert done.code == 0, done.err
    compose = yaml.safe_load((out / "compose/docker-compose.yml").read_text())["services"]["triton"]
    settings = dict(line.split("=", 1) for line in (out / "compose/.env").read_text().splitlines() if "=" in line)
    release = "${TRITON_RELEASE:?is not set - see .env}"
    pod = yaml.safe_load((out / "kubernetes/base/deployment.yaml").read_text())["spec"]["template"]["spec"]
    (runtime, _) = yaml.safe_load_all((out / "kubernetes/kserve/serving.yaml").read_text())
    return {
        compose["image"].replace(release, settings["TRITON_RELEASE"]),
        pod["containers"][0]["image"],
        runtime["spec"]["containers"][0]["image"],
    }


def test_the_plain_image(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    expected = {"nvcr.io/nvidia/tritonserver:25.03-py3"}
    assert images(run_cli, repository(m=PYTHON), tmp_path, "--release", "25.03") == expected


@pytest.mark.parametrize(("backend", "variant"), [("vllm", "vllm-python-py3"), ("tensorrtllm", "trtllm-python-py3")])
def test_the_image_of_a_language_model(
    backend: str, variant: str, language_model: Callable[..., Path], run_cli: Run, tmp_path: Path
) -> None:
    """Beside it Python models run too, such as those around an engine."""
    repository = language_model(backend, "--release", "24.10")
    (repository / "beside" / "1").mkdir(parents=True)
    (repository / "beside" / "config.pbtxt").write_text(PYTHON)
    (repository / "beside" / "1" / "model.py").write_text(PYTHON_MODEL)
    expected = {f"nvcr.io/nvidia/tritonserver:24.10-{variant}"}
    assert images(run_cli, repository, tmp_path / "out", "--release", "24.10") == expected
    without = run_cli("deploy", "compose", repository, "-o", tmp_path / "cpu", "--gpus", "none")
    assert (without.code, "a model runs on GPUs only" in without.err) == (2, True)


def test_no_image_has_everything(
    language_model: Callable[..., Path], run_cli: Run, minilm_repository: Path, tmp_path: Path
) -> None:
    repository = language_model("vllm")
    (repository / "minilm").symlink_to(minilm_repository / "minilm")
    done = run_cli("deploy", "compose", repository, "-o", tmp_path / "out")
    assert done.code == 2
    assert "no image of Triton has every backend of this repository" in done.err
    assert "got llm needs vllm, minilm the plain image" in done.err
    assert "hint: deploy them as two repositories" in done.err
