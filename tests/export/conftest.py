"""Small models with random weights, drawn wide enough that every mistake shows in the output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from export.cache import CACHE_VARIABLE
from export.quiet import quiet
from tooling.console import Console

SILENT = Console(quiet=True)
ZOO: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "zoo.yaml").read_text())
VOCABULARY = 64
LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IMAGE = {"image_size": 16, "patch_size": 8}
DEVIATION = 0.3


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test finds what another one exported."""
    place = tmp_path_factory.mktemp("cache") / "exports"
    monkeypatch.setenv(CACHE_VARIABLE, str(place))
    return place


def write_model(directory: Path, kind: str = "bert") -> Path:
    """A whole Hugging Face directory of a two-layer model of the zoo; every weight is random."""
    with quiet(SILENT):
        import torch

        torch.manual_seed(7)
        torch.set_num_threads(1)  # the models are too small for threads to pay
        model = _small(ZOO[kind])
        with torch.no_grad():
            for weight in model.parameters():
                noise = torch.randn_like(weight) * ZOO[kind].get("deviation", DEVIATION)
                weight.copy_(noise if weight.dim() > 1 else weight + noise)
            for table in (layer for layer in model.modules() if isinstance(layer, torch.nn.Embedding)):
                if table.padding_idx is not None:
                    table.weight[table.padding_idx] = 0  # as it is made, and as training leaves it
        model.save_pretrained(directory)
        _write_tokenizer(directory)
    if "pool" in ZOO[kind]:
        write_modules(directory, ("Pooling", {"pooling_mode": ZOO[kind]["pool"]}))
    return directory


def _small(entry: dict[str, Any]) -> Any:
    import transformers

    made = getattr(transformers, entry["class"])
    config = made.config_class
    if entry["class"] == "CLIPModel":
        halves = {"text_config": {**LAYERS, **TEXT}, "vision_config": {**LAYERS, **IMAGE}}
        return made(config(**halves, **entry["config"]))
    if entry.get("sizes") is False:
        return made(config(**entry["config"]))
    sizes = LAYERS if made.main_input_name == "pixel_values" else {**LAYERS, **TEXT}
    return made(config(**{**sizes, **entry["config"]}))


def _write_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {letter: 3 + place for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    letters |= {letter.upper(): 29 + place for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}
    words = Tokenizer(models.WordLevel({"w0": 0, "w1": 1, "w2": 2, **letters, "unknown": 63}, unk_token="unknown"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")  # one token a letter
    words.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "w0", "model_max_length": 64}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def write_modules(directory: Path, *modules: tuple[str, dict[str, Any]]) -> Path:
    """Make a plain directory one of sentence-transformers."""
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
    return write_modules
