"""Directories of language models as Hugging Face writes them, without weights or with a few bytes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "eos_token_id": [128001, 128008],
}

MakeModel = Callable[..., Path]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    """Write a model directory: Llama 3.1 8B with single figures changed, and a file of so many bytes of weights."""

    def make(name: str = "llama", weights: int = 0, **figures: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = {key: value for key, value in {**LLAMA_8B, **figures}.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(config))
        if weights:
            with (folder / "model.safetensors").open("wb") as file:
                file.truncate(weights)
        return folder

    return make
