"""The arithmetic of memory and the settings that follow, against figures that are known otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tooling.errors import UsageError
from tooling.llm.memory import Layout, budget
from tooling.llm.model_facts import read_facts, weight_files
from tooling.llm.plan import Speculation, Wants, make_plan, set_apart

GIB = 2**30
ENCODER = (
    '{"architectures": ["BertModel"], "hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 6,'
    ' "vocab_size": 30522}'
)


def test_llama_8b_by_its_figures(make_model) -> None:
    """Its card says 8.03 billion parameters; 32 layers × 8 heads × 128 values × 2 (keys, values) × 2 bytes: 128 KiB."""
    facts = read_facts(make_model())
    assert facts.weight_bytes == pytest.approx(2 * 8.03e9, rel=0.001)
    assert facts.counted
    assert facts.cache_bytes(1, 2) == 131072
    assert facts.cache_bytes(2, 2) == 65536
    assert facts.cache_bytes(1, 1) == 65536
    assert facts.cache_bytes(16, 2) == facts.cache_bytes(8, 2), "every GPU stores one head at least"


@pytest.mark.parametrize(
    ("figures", "token"),
    [
        ({"num_key_value_heads": None}, 4 * 131072),
        ({"head_dim": 64}, 131072 // 2),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 32 * 576 * 2),
        ({"layer_types": ["full_attention", "sliding_attention"] * 16, "sliding_window": 1024}, 131072 // 2),
    ],
    ids=["no grouped heads", "own head size", "latent cache", "half of the layers keep a window"],
)
def test_bytes_of_a_token_by_the_kind_of_attention(make_model, figures, token) -> None:
    assert read_facts(make_model(**figures)).cache_bytes(1, 2) == token


def test_older_names_of_figures(make_model) -> None:
    names = dict.fromkeys(["hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads"])
    facts = read_facts(make_model(**names, n_embd=768, n_head=12, n_layer=12, n_positions=1024, vocab_size=50257))
    assert (facts.hidden, facts.heads, facts.kv_heads, facts.layers, facts.head_size) == (768, 12, 12, 12, 64)


def test_figures_of_other_types_are_no_figures(make_model) -> None:
    """Each is left out, or told; none makes the arithmetic fall over."""
    assert read_facts(make_model(architectures=-1)).architecture == "An unnamed model"
    for figures in ({"hidden_size": "4096"}, {"num_hidden_layers": True}, {"vocab_size": -1}):
        with pytest.raises(UsageError, match="no decoder"):
            read_facts(make_model(str(figures).strip("{}"), **figures))


def test_weights_are_those_of_the_index(make_model) -> None:
    folder = make_model(weights=3000)
    (folder / "consolidated.safetensors").write_bytes(bytes(9000))
    assert [file.name for file in weight_files(folder)] == ["model.safetensors"]
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "consolidated.safetensors"}}')
    facts = read_facts(folder)
    assert (facts.weight_bytes, facts.counted) == (9000, False)


def test_the_parts_of_a_gpu_add_up(make_model) -> None:
    facts = read_facts(make_model())
    parts = budget(facts, Layout(), 72 * GIB, 2048, 64)
    assert parts.weights + parts.work + parts.cache == parts.usable == 72 * GIB
    assert parts.tokens % 16 == 0
    assert 0 <= parts.cache - parts.tokens * parts.token < 16 * parts.token


def test_one_gpu_where_it_fits_and_two_where_it_does_not(make_model) -> None:
    facts = read_facts(make_model())
    plan = make_plan(facts, Wants(80 * GIB, gpus=4, context=8192, streams=64))
    assert (plan.layout.gpus, plan.sequences, plan.context, plan.batched_tokens) == (1, 64, 8192, 2048)
    assert make_plan(facts, Wants(16 * GIB, gpus=4, context=8192)).layout.tensor_parallel == 2
    with pytest.raises(UsageError, match="the weights do not fit"):
        make_plan(facts, Wants(16 * GIB))


def test_heads_that_do_not_divide_leave_pipeline_stages(make_model) -> None:
    facts = read_facts(make_model(num_attention_heads=7, num_key_value_heads=7, hidden_size=3584, head_dim=512))
    layout = make_plan(facts, Wants(9 * GIB, gpus=4, context=1024)).layout
    assert (layout.tensor_parallel, layout.pipeline_parallel) == (1, 3)


def test_fp8_halves_what_a_token_takes_and_the_weights(make_model) -> None:
    facts = read_facts(make_model())
    plain = make_plan(facts, Wants(24 * GIB))
    assert make_plan(facts, Wants(24 * GIB, cache_type="fp8")).budget.token * 2 == plain.budget.token
    assert make_plan(facts, Wants(24 * GIB, quantization="fp8")).budget.weights * 2 == plain.budget.weights


def test_the_token_budget_holds_every_stream(make_model) -> None:
    facts = read_facts(make_model())
    assert make_plan(facts, Wants(80 * GIB, streams=4000, mean_tokens=100)).batched_tokens == 4000
    with pytest.raises(UsageError, match="at least one token of each stream"):
        make_plan(facts, Wants(80 * GIB, streams=64, token_budget=63))


@pytest.mark.parametrize(
    ("wants", "said"),
    [
        (Wants(80 * GIB, context=200_000), "longer than the model can read"),
        (Wants(80 * GIB, context=512, mean_tokens=1024), "longer than the longest"),
        (Wants(24 * GIB, context=131_072), "no room is left"),
    ],
)
def test_what_cannot_be_is_refused_with_figures(make_model, wants: Wants, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan(read_facts(make_model()), wants)


def test_quantised_weights_are_not_quantised_again(make_model) -> None:
    facts = read_facts(make_model(quantization_config={"quant_method": "awq"}))
    with pytest.raises(UsageError, match="quantised already"):
        make_plan(facts, Wants(24 * GIB, quantization="fp8"))


def test_a_draft_model_takes_its_own_memory(make_model) -> None:
    facts, draft = read_facts(make_model()), make_model("draft", weights=2 * GIB, num_hidden_layers=4)
    plain = make_plan(facts, Wants(80 * GIB, context=4096))
    drafted = make_plan(facts, Wants(80 * GIB, context=4096, speculation=Speculation(4, draft)))
    assert plain.budget.usable - drafted.budget.usable == 2 * GIB
    assert drafted.budget.token - plain.budget.token == 4 * 2 * 8 * 128 * 2, "the draft caches the same tokens"
    fp8 = make_plan(facts, Wants(80 * GIB, context=4096, speculation=Speculation(4, draft), cache_type="fp8"))
    assert 2 * fp8.budget.token == drafted.budget.token


def test_urgent_requests_get_a_share_or_a_gpu(make_model) -> None:
    facts = read_facts(make_model())
    rest, quick, gpu = set_apart(facts, Wants(80 * GIB, context=8192))
    assert gpu is None
    assert rest.share + quick.share == pytest.approx(0.9)
    assert make_plan(facts, quick).mean_streams >= 8
    rest, quick, gpu = set_apart(facts, Wants(80 * GIB, gpus=2, context=8192))
    assert (rest.gpus, rest.share, quick.gpus, quick.share, gpu) == (1, 0.9, 1, 0.9, 1)
    with pytest.raises(UsageError, match="the weights a second time"):
        set_apart(facts, Wants(18 * GIB))


def test_what_a_person_should_know_is_said(make_model) -> None:
    facts = read_facts(make_model())
    notes = "; ".join(make_plan(facts, Wants(24 * GIB, streams=200, cache_type="fp8")).notes)
    assert "counted from its figures" in notes
    assert "the others wait" in notes
    assert "tritune quality" in notes
    silent = replace(facts, counted=False)
    assert make_plan(silent, Wants(80 * GIB, context=2048, streams=8)).notes == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "not a model's config"),
        ("", "got an empty file"),
        ("{", "not a JSON file"),
        ('{"num_hidden_layers": 2}', "no decoder that generates text"),
        ('{"is_encoder_decoder": true, "num_hidden_layers": 2, "hidden_size": 8}', "no num_attention_heads"),
        ('{"num_hidden_layers": "2", "n_embd": 0}', 'got num_hidden_layers "2", n_embd 0, no num_attention_heads, no'),
        ('{"n_layer": 2, "n_embd": 8, "n_head": 9, "vocab_size": 9}', "got 9 attention heads of 8 values"),
        (f'{{"num_hidden_layers": {10**400}}}', "got num_hidden_layers 1000000"),
        (ENCODER, r"no decoder that generates text \(got BertModel; expected a causal language model"),
        (ENCODER.replace("BertModel", "RobertaForSequenceClassification"), "got RobertaForSequenceClassification"),
    ],
)
def test_directories_that_hold_no_language_model(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=said):
        read_facts(tmp_path)
    with pytest.raises(UsageError, match=r"config\.json"):
        read_facts(tmp_path / "absent")
