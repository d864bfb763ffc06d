"""What gen-config writes runs on the real vLLM as it is; and other weights do not pass for the same model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tooling.server import EmbeddedServer, ServerOptions

pytestmark = pytest.mark.llm
SHORT = ["--max-tokens", "8"]


@pytest.fixture(scope="module")
def other_dir(tmp_path_factory: pytest.TempPathFactory, llama_dir: Path) -> Path:
    """The same model with a little noise on its weights, as a coarse quantisation leaves them."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("other") / "llama"
    shutil.copytree(llama_dir, folder)
    torch.manual_seed(1)
    weights = {
        name: tensor + 0.2 * tensor.std() * torch.randn_like(tensor)
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_answers_of_the_same_model_agree_and_of_another_do_not(
    tmp_path: Path,
    llama_dir: Path,
    other_dir: Path,
    runtime: Any,
    run_cli: Callable[..., Any],
    load_all: Callable[..., None],
) -> None:
    repository, prompts, plain = tmp_path / "repository", tmp_path / "prompts.txt", tmp_path / "plain.json"
    prompts.write_text("".join(f"prompt number {number}, and so\n" for number in range(8)))
    share = ["--gpu-memory", "4GiB", "--engine", "gpu_memory_utilization=0.1", "--engine", "enforce_eager=true"]
    asked = ["--backend", "vllm", "--streams", "4", "--context", "128", "--release", "26.08", *share]
    for name, folder in (("plain", llama_dir), ("noisy", other_dir)):
        assert run_cli("gen-config", repository / name, "--llm", folder, *asked).code == 0
    with EmbeddedServer(repository, runtime, ServerOptions(load_timeout_s=240)) as server:
        load_all((server, "plain"), (server, "noisy"))
        url = ["--url", server.http_url]
        assert run_cli("quality", plain, "--record", "--model", "plain", "--prompts", prompts, *SHORT, *url).code == 0
        again = run_cli("quality", plain, *url, "--json")
        assert again.code == 0, again.err
        assert again.json["data"]["token_agreement"] == 1
        assert again.json["data"]["perplexity_ratio"] == pytest.approx(1, abs=1e-6)
        noisy = run_cli("quality", plain, "--model", "noisy", *url, "--json")
        assert (noisy.code, noisy.json["data"]["met"]) == (1, False)
        assert noisy.json["data"]["token_agreement"] < 0.9
        assert noisy.json["data"]["perplexity_ratio"] > 1.05
