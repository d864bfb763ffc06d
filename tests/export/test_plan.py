"""What is exported, decided from the directory alone: tasks, modules, limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.plan import Dense, Normalize, Pool, make_plan
from export.source import open_source
from tooling.errors import UsageError


def test_plain_encoder_gives_token_vectors(bert_dir: Path) -> None:
    plan = make_plan(open_source(bert_dir))
    assert (plan.steps, plan.output) == ((), "last_hidden_state")
    assert (plan.opset, plan.vocabulary, plan.pad_token, plan.token_types) == (17, 64, 0, 2)
    assert plan.max_tokens == 64  # the tokenizer's limit, below the 80 positions of the model


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({}, "mean"),
    ],
)
def test_pooling_is_read_from_both_generations_of_config(
    config: dict[str, Any], mode: str, source: Path, add_modules: Callable[..., Path]
) -> None:
    plan = make_plan(open_source(add_modules(source, ("Pooling", config), ("Normalize", {}))))
    assert (plan.steps, plan.output) == ((Pool(mode), Normalize()), "embeddings")
    assert plan.describe() == (f"pool:{mode}", "normalize")


def test_dense_activation_defaults_to_that_of_sentence_transformers(
    source: Path, add_modules: Callable[..., Path]
) -> None:
    add_modules(source, ("Pooling", {}), ("Dense", {}))
    assert make_plan(open_source(source)).steps[1] == Dense(source / "2_Dense", "Tanh")


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([("Pooling", {"pooling_mode_mean_sqrt_len_tokens": True})], "unsupported pooling"),
        ([("Pooling", {"pooling_mode": ["mean", "max"]})], "got mean \\+ max"),
        ([("Pooling", {"pooling_mode": "weightedmean"})], "one of mean, cls, max, lasttoken"),
        ([("Normalize", {})], "Transformer → Pooling"),
        ([("Pooling", {}), ("LayerNorm", {})], "got LayerNorm"),
        ([("Pooling", {}), ("Dense", {"activation_function": "torch.nn.modules.activation.ReLU"})], "got ReLU"),
        ([("Pooling", {}), ("Dense", {"use_residual": True})], "unsupported Dense module"),
        ([("Pooling", {}), ("Normalize", {"module_input_name": "token_embeddings"})], "unsupported Normalize module"),
    ],
)
def test_unsupported_module_is_named(
    modules: list[tuple[str, dict[str, Any]]], message: str, source: Path, add_modules: Callable[..., Path]
) -> None:
    with pytest.raises(UsageError, match=message):
        make_plan(open_source(add_modules(source, *modules)))


@pytest.mark.parametrize("architecture", ["BertForSequenceClassification", "BertForTokenClassification", "GPT2LMHead"])
def test_other_task_is_refused_with_the_supported_one(
    architecture: str, source: Path, edit_json: Callable[..., None]
) -> None:
    edit_json(source / "config.json", architectures=[architecture])
    with pytest.raises(UsageError, match=f"unsupported task.*{architecture}.*feature extraction"):
        make_plan(open_source(source))


def test_pretraining_head_is_fine(source: Path, edit_json: Callable[..., None]) -> None:
    edit_json(source / "config.json", architectures=["BertForMaskedLM"])
    assert make_plan(open_source(source)).output == "last_hidden_state"


@pytest.mark.parametrize("change", [{"is_encoder_decoder": True}, {"vocab_size": None}])
def test_not_a_text_encoder(change: dict[str, Any], source: Path, edit_json: Callable[..., None]) -> None:
    edit_json(source / "config.json", **change)
    with pytest.raises(UsageError, match="not a text encoder"):
        make_plan(open_source(source))


@pytest.mark.parametrize("opset", [13, 21])
def test_opset_out_of_range(opset: int, bert_dir: Path) -> None:
    with pytest.raises(UsageError, match="expected 14 to 20"):
        make_plan(open_source(bert_dir), opset)


def test_limit_of_the_sentence_model_counts(source: Path) -> None:
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    assert make_plan(open_source(source)).max_tokens == 24


def test_tokenizer_without_a_limit_does_not_count(source: Path, edit_json: Callable[..., None]) -> None:
    edit_json(source / "tokenizer_config.json", model_max_length=int(1e30))
    assert make_plan(open_source(source)).max_tokens == 80
