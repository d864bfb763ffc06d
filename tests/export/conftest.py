"""Small models with random weights, drawn wide enough that every mistake shows in the output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.quiet import quiet
from tooling.console import Console

SILENT = Console(quiet=True)
SIZES = {"vocab_size": 64, "max_position_embeddings": 80}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2, "pad_token_id": 0},
    "distilbert": {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "pad_token_id": 0},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 1},
    "mpnet": {"pad_token_id": 1},
    "longformer": {"pad_token_id": 1, "attention_window": 8},
    "fnet": {"type_vocab_size": 2, "pad_token_id": 0},
}


def write_model(directory: Path, kind: str = "bert") -> Path:
    """A whole Hugging Face directory of a two-layer model."""
    with quiet(SILENT):
        import torch
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import AutoConfig, AutoModel

        torch.manual_seed(7)
        torch.set_num_threads(1)  # the models are too small for threads to pay
        layers = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        sizes = SIZES if kind == "distilbert" else {**SIZES, **layers}
        config = AutoConfig.for_model(kind, initializer_range=0.3, **sizes, **CONFIGS[kind])
        AutoModel.from_config(config).save_pretrained(directory)
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(SIZES["vocab_size"])}, unk_token="w3"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        words.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "w0", "model_max_length": 64})
    )
    return directory


@pytest.fixture(scope="session")
def make_model() -> Callable[[Path, str], Path]:
    return write_model


@pytest.fixture(scope="session")
def bert_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random BERT; read-only, see `source`."""
    return write_model(tmp_path_factory.mktemp("source") / "tiny-bert")


@pytest.fixture
def source(bert_dir: Path, tmp_path: Path) -> Path:
    """A copy of the small BERT to damage."""
    return Path(shutil.copytree(bert_dir, tmp_path / "tiny-bert"))


@pytest.fixture
def edit_json() -> Callable[..., None]:
    """Change keys of a JSON file."""

    def edit(path: Path, **changes: Any) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


@pytest.fixture(scope="session")
def add_modules() -> Callable[..., Path]:
    """Make a plain directory one of sentence-transformers: `add_modules(directory, ("Pooling", {...}), ...)`."""

    def add(directory: Path, *modules: tuple[str, dict[str, Any]]) -> Path:
        listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        for number, (kind, config) in enumerate(modules, start=1):
            folder = f"{number}_{kind}"
            listed.append(
                {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{kind}"}
            )
            (directory / folder).mkdir()
            (directory / folder / "config.json").write_text(json.dumps(config))
        (directory / "modules.json").write_text(json.dumps(listed))
        return directory

    return add
