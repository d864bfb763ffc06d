"""What is exported, decided from the directory alone: tasks, modules, limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.plan import Dense, Normalize, Pool, make_plan, overlong_tokenizer
from export.source import open_source
from tooling.errors import UsageError
from tooling.releases import release_named


def test_plain_encoder_gives_token_vectors(bert_dir: Path) -> None:
    plan = make_plan(open_source(bert_dir))
    assert (plan.steps, plan.task.name) == ((), "feature-extraction")
    assert (plan.opset, plan.max_ir, plan.vocabulary, plan.pad_token, plan.token_types) == (18, 10, 64, 0, 2)
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
    assert (plan.steps, plan.pooled) == ((Pool(mode), Normalize()), True)
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


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["BertForPreTraining"]}, "feature-extraction"),
        ({"architectures": ["BertForMaskedLM"]}, "fill-mask"),
        ({"architectures": ["BertForSequenceClassification"]}, "text-classification"),
        ({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "score"}}, "text-ranking"),
        ({"architectures": ["BertForTokenClassification"]}, "token-classification"),
        ({"architectures": ["BertForQuestionAnswering"]}, "question-answering"),
        ({"architectures": ["GPT2LMHeadModel"]}, "text-generation"),
        ({"architectures": ["LlamaForCausalLM"]}, "text-generation"),
        ({"architectures": None}, "feature-extraction"),
    ],
)
def test_task_follows_from_the_config(
    config: dict[str, Any], task: str, source: Path, edit_json: Callable[..., None]
) -> None:
    edit_json(source / "config.json", **config)
    assert make_plan(open_source(source)).task.name == task


def test_modules_say_that_vectors_are_wanted(
    source: Path, add_modules: Callable[..., Path], edit_json: Callable[..., None]
) -> None:
    edit_json(source / "config.json", architectures=["Qwen3ForCausalLM"])
    assert make_plan(open_source(add_modules(source, ("Pooling", {})))).task.name == "feature-extraction"


@pytest.mark.parametrize("architecture", ["BertForMultipleChoice", "WhisperForConditionalGeneration", "DetrSegmenter"])
def test_other_task_is_refused_with_the_supported_ones(
    architecture: str, source: Path, edit_json: Callable[..., None]
) -> None:
    edit_json(source / "config.json", architectures=[architecture])
    with pytest.raises(UsageError, match=rf"unsupported task.*{architecture}.*one of feature-extraction, text-class"):
        make_plan(open_source(source))


def test_unknown_task_is_refused_with_the_nearest(bert_dir: Path) -> None:
    with pytest.raises(UsageError, match="one of feature-extraction") as caught:
        make_plan(open_source(bert_dir), "text-clasification")
    assert caught.value.problems[0].hint == "did you mean `text-classification`?"


def test_model_of_text_and_images_wants_a_choice(source: Path, edit_json: Callable[..., None]) -> None:
    halves = {"text_config": {"vocab_size": 64, "max_position_embeddings": 77}, "vision_config": {"image_size": 16}}
    edit_json(source / "config.json", architectures=["CLIPModel"], **halves)
    with pytest.raises(UsageError, match="a text and an image half") as caught:
        make_plan(open_source(source))
    assert "--task image-feature-extraction" in (caught.value.problems[0].hint or "")
    assert make_plan(open_source(source), "image-feature-extraction").image == (3, 16, 16)
    assert make_plan(open_source(source), "feature-extraction").max_tokens == 64


@pytest.mark.parametrize(
    "named", [{}, {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}]
)
def test_score_of_a_ranker(named: dict[str, Any], source: Path, edit_json: Callable[..., None]) -> None:
    edit_json(source / "config.json", architectures=["BertForSequenceClassification"], id2label={"0": "x"}, **named)
    assert make_plan(open_source(source)).describe() == ("identity" if named else "sigmoid",)


@pytest.mark.parametrize("change", [{"is_encoder_decoder": True}, {"vocab_size": None}])
def test_not_a_text_encoder(change: dict[str, Any], source: Path, edit_json: Callable[..., None]) -> None:
    edit_json(source / "config.json", architectures=["BertForMaskedLM"], **change)
    with pytest.raises(UsageError, match="not a model for fill-mask"):
        make_plan(open_source(source))


@pytest.mark.parametrize(
    ("release", "opset", "ir"), [("23.01", 17, 8), ("23.03", 18, 8), ("24.10", 18, 10), ("25.10", 18, 11)]
)
def test_release_bounds_opset_and_ir(release: str, opset: int, ir: int, bert_dir: Path) -> None:
    plan = make_plan(open_source(bert_dir), release=release_named(release))
    assert (plan.opset, plan.max_ir) == (opset, ir)


@pytest.mark.parametrize(("opset", "release"), [(13, "24.10"), (22, "24.10"), (18, "23.01")])
def test_opset_that_the_release_does_not_load(opset: int, release: str, bert_dir: Path) -> None:
    with pytest.raises(UsageError, match=f"unsupported opset.*Triton {release}"):
        make_plan(open_source(bert_dir), opset=opset, release=release_named(release))


def test_positions_that_serve_no_token_do_not_count(source: Path, edit_json: Callable[..., None]) -> None:
    """The table of RoBERTa and its kin starts behind the padding token: 514 rows are 512 tokens."""
    edit_json(source / "config.json", model_type="xlm-roberta", max_position_embeddings=514, pad_token_id=1)
    edit_json(source / "tokenizer_config.json", model_max_length=514)
    plan = make_plan(open_source(source))
    assert (plan.max_tokens, overlong_tokenizer(open_source(source), plan)) == (512, 514)


def test_tokenizer_within_the_positions_is_no_fault(bert_dir: Path) -> None:
    assert overlong_tokenizer(open_source(bert_dir), make_plan(open_source(bert_dir))) is None


def test_limit_of_the_sentence_model_counts(source: Path) -> None:
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    assert make_plan(open_source(source)).max_tokens == 24


def test_tokenizer_without_a_limit_does_not_count(source: Path, edit_json: Callable[..., None]) -> None:
    edit_json(source / "tokenizer_config.json", model_max_length=int(1e30))
    assert make_plan(open_source(source)).max_tokens == 80
