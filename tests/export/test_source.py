"""A source that cannot be exported is refused at once, with the file at fault."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from export.source import bundled_minilm, open_source
from tooling.errors import MissingError, UsageError, install_extra


def test_missing_files_are_listed_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        open_source(tmp_path)
    assert [p.what for p in caught.value.problems] == [
        "config.json is missing",
        "model.safetensors is missing",
        "tokenizer.json is missing",
    ]
    assert all(p.where == str(tmp_path) and p.hint for p in caught.value.problems)


def test_missing_tokenizer_is_a_usage_error_with_the_way_to_write_it(source: Path) -> None:
    (source / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"tokenizer\.json is missing") as caught:
        open_source(source)
    assert "AutoTokenizer" in (caught.value.problems[0].hint or "")


@pytest.mark.parametrize("keep", [4, 100, -1])
def test_truncated_weights(keep: int, source: Path) -> None:
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"model\.safetensors: not a whole safetensors file"):
        open_source(source)


def test_missing_shard(source: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    with pytest.raises(UsageError, match=r"model-00001-of-00002\.safetensors: not a whole safetensors file"):
        open_source(source)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}'])
def test_index_without_shards(text: str, source: Path) -> None:
    (source / "model.safetensors").unlink()
    (source / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UsageError, match="names no weight files"):
        open_source(source)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_truncated_json(name: str, source: Path) -> None:
    (source / name).write_text('{"model_type": ')
    with pytest.raises(UsageError, match=f"{name}: not a readable JSON file"):
        open_source(source)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", 5),
        ("vocab_size", "x"),
        ("id2label", [1]),
        ("max_position_embeddings", [80]),
        ("num_labels", True),
    ],
)
def test_setting_of_another_type(name: str, value: object, source: Path, edit_json: Callable[..., None]) -> None:
    edit_json(source / "config.json", **{name: value})
    with pytest.raises(UsageError, match=rf"config\.json: `{name}` is of another type"):
        open_source(source)


@pytest.mark.parametrize("text", ["{}", "[]", '[{"type": "x"}]'])
def test_modules_of_another_form(text: str, source: Path) -> None:
    (source / "modules.json").write_text(text)
    with pytest.raises(UsageError, match=r"modules\.json"):
        open_source(source)


def test_file_instead_of_a_directory(source: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        open_source(source / "config.json")


@pytest.mark.parametrize("name", ["no/such/directory/here", "./nothing", "with blank/model"])
def test_path_that_is_not_there(name: str) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        open_source(name)


def test_hub_id_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(MissingError, match=r"some-owner/some-model: .*cannot be reached") as caught:
        open_source("some-owner/some-model")
    assert "give its directory" in (caught.value.problems[0].hint or "")


def test_digest_follows_every_file_that_matters_and_nothing_else(
    source: Path, add_modules: Callable[..., Path], tmp_path: Path
) -> None:
    add_modules(source, ("Pooling", {}))
    first = open_source(source).digest()
    (source / "README.md").write_text("a note")
    moved = shutil.copytree(source, tmp_path / "elsewhere")
    assert open_source(source).digest() == open_source(moved).digest() == first
    seen = {first}
    for name in ("config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"):
        (source / name).write_text((source / name).read_text() + "\n")
        seen.add(open_source(source).digest())
    assert len(seen) == 5


def test_bundled_model_is_a_whole_source(minilm_dir: Path) -> None:
    source = open_source(minilm_dir)
    assert [module.kind for module in source.modules] == ["Transformer", "Pooling", "Normalize"]
    assert source.config["hidden_size"] == 384


def test_bundled_model_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingError) as caught:
        bundled_minilm()
    assert caught.value.problems[0].hint == install_extra("minilm")
