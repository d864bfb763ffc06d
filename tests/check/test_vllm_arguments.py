"""Engine arguments of vLLM: judged for the vLLM inside the release, and for the one that is installed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tooling.runtime.llm import LLM_MARKER
from tooling.runtime.location import LLM_PINS, llm_root

Judge = Callable[..., list[dict[str, Any]]]
DRAFT = {"model": "org/draft", "num_speculative_tokens": 4}


@pytest.fixture
def judge(tmp_path: Path, check: Callable[..., dict[str, Any]]) -> Judge:
    def run(arguments: dict[str, Any], *options: str, config: str = "") -> list[dict[str, Any]]:
        version = tmp_path / "repository" / "llm" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(f'backend: "vllm"\n{config}')
        (version / "model.json").write_text(json.dumps({"model": "org/llm", **arguments}))
        return [f for f in check(version.parents[1], *options)["findings"] if f["rule"].startswith("vllm-")]

    return run


@pytest.mark.parametrize(
    ("arguments", "release", "rules"),
    [
        ({"disable_log_requests": True}, "25.08", []),
        ({"disable_log_requests": True}, "25.09", ["vllm-argument-removed"]),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}, "25.10", []),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}},
            "24.10",
            ["vllm-argument-unknown"],
        ),
        ({"speculative_model": "[ngram]", "use_v2_block_manager": True}, "24.10", []),
        ({"speculative_model": "[ngram]"}, "24.10", ["vllm-arguments-contradict"]),
        ({"speculative_model": "[ngram]"}, "25.01", []),
        ({"speculative_model": "[ngram]", "enable_chunked_prefill": True}, "25.01", ["vllm-arguments-contradict"]),
        ({"speculative_model": "[ngram]", "enable_chunked_prefill": True}, "25.02", []),
        ({"speculative_config": DRAFT}, "25.08", []),
        ({"speculative_config": DRAFT}, "25.09", ["vllm-arguments-contradict"]),
        ({"speculative_config": {**DRAFT, "method": "draft_model"}}, "26.01", ["vllm-arguments-contradict"]),
        ({"speculative_config": DRAFT}, "26.02", []),
        ({"speculative_config": {**DRAFT, "method": "eagle"}}, "25.10", []),
        ({"speculative_config": {**DRAFT, "model": "org/EAGLE-llm"}}, "25.10", []),
        ({"swap_space": 4}, "26.03", []),
        ({"swap_space": 4}, "26.04", ["vllm-argument-removed"]),
        ({"kv_cache_dtype": "fp8"}, "24.10", []),
        ({"kv_cache_dtype": "bfloat16"}, "24.10", ["vllm-argument-value"]),
        ({"kv_cache_dtype": "bfloat16"}, "25.11", []),
        ({"max_num_seqs": "64"}, "25.10", ["vllm-argument-value"]),
        ({"enable_lora": "false", "enforce_eager": True, "dtype": "half"}, "25.10", []),
        ({"anything": 1}, "24.01", []),
    ],
)
def test_every_key_and_value_by_release(
    judge: Judge, arguments: dict[str, Any], release: str, rules: list[str]
) -> None:
    assert [finding["rule"] for finding in judge(arguments, "--release", release)] == rules


def test_an_unknown_key_is_told_with_what_was_meant_or_when_it_comes(judge: Judge) -> None:
    (finding,) = judge({"max_model_length": 8}, "--release", "24.10")
    assert (finding["severity"], finding["hint"]) == ("error", "did you mean `max_model_len`?")
    assert "vLLM 0.5.5 (Triton 24.10) has no engine argument max_model_length" in finding["message"]


def test_the_token_budget_is_checked(judge: Judge) -> None:
    (finding,) = judge({"max_num_seqs": 256, "max_num_batched_tokens": 128})
    assert (
        finding["message"]
        == "a step of 128 tokens (max_num_batched_tokens) has none for some of 256 sequences (max_num_seqs)"
    )


def test_priority_does_not_reach_the_engine(judge: Judge) -> None:
    (finding,) = judge({"scheduling_policy": "priority"})
    assert (finding["rule"], finding["severity"]) == ("vllm-priority-unused", "warning")


def test_every_instance_is_an_engine_with_its_share(judge: Judge) -> None:
    (finding,) = judge({"gpu_memory_utilization": 0.9}, config="instance_group { kind: KIND_MODEL count: 2 }")
    assert finding["message"] == "sum of gpu_memory_utilization on one GPU is 1.8: llm 0.9, llm 0.9"


def test_the_model_on_this_machine_is_looked_at(judge: Judge, tmp_path: Path) -> None:
    figures = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99}
    (tmp_path / "config.json").write_text(json.dumps({**figures, "max_position_embeddings": 2048}))
    said = judge({"model": str(tmp_path), "tensor_parallel_size": 3, "max_model_len": 4096})
    assert [finding["message"] for finding in said] == [
        "4 attention heads do not divide over 3 GPUs",
        "max_model_len 4096, and the model reads 2048 tokens (max_position_embeddings)",
    ]


def test_the_installed_vllm_is_judged_beside_the_release(judge: Judge, tmp_path: Path) -> None:
    source = tmp_path / "vllm" / "engine" / "arg_utils.py"
    source.parent.mkdir(parents=True)
    fields = "model: str = ''; max_num_seqs: int = 8; dtype: Literal['half', 'float'] = 'half'"
    source.write_text(f"class EngineArgs:\n    {fields}\n")
    said = judge({"max_num_seqs": 4, "max_model_len": 512, "dtype": "bfloat16"}, "--vllm", str(tmp_path / "vllm"))
    assert [(f["rule"], f["message"]) for f in said] == [
        ("vllm-installed-differs", "the vLLM installed here has no engine argument max_model_len"),
        ("vllm-installed-differs", 'dtype is "bfloat16"; the vLLM installed here takes "float" | "half"'),
    ]


def test_what_the_release_does_not_take_is_told_once(judge: Judge, tmp_path: Path) -> None:
    source = tmp_path / "vllm" / "engine" / "arg_utils.py"
    source.parent.mkdir(parents=True)
    source.write_text("class EngineArgs:\n    model: str = ''\n    max_num_seqs: int = 8\n")
    said = judge({"max_model_length": 512, "max_num_seqs": []}, "--vllm", str(tmp_path / "vllm"))
    assert [f["rule"] for f in said] == ["vllm-argument-unknown", "vllm-argument-value"]


def test_the_embedded_vllm_is_found_by_itself(
    tmp_path: Path, run_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_RUNTIME", str(tmp_path / "runtime"))
    packages = llm_root(tmp_path / "runtime") / "venv" / "lib" / "python3.11" / "site-packages"
    source = packages / "vllm" / "engine" / "arg_utils.py"
    source.parent.mkdir(parents=True)
    source.write_text("class EngineArgs:\n    model: str = ''\n")
    version = tmp_path / "repository" / "llm" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "vllm"\n')
    (version / "model.json").write_text('{"model": "org/llm", "max_model_len": 512}')

    def said() -> list[str]:
        findings = run_cli("check", version.parents[1], "--json").json["data"]["findings"]
        return [f["message"] for f in findings if f["rule"] == "vllm-installed-differs"]

    assert said() == [], "an installation that was not finished is none"
    for name, pin in LLM_PINS.items():
        (packages / f"{name.replace('-', '_')}-{pin}.dist-info").mkdir()
    (llm_root(tmp_path / "runtime") / LLM_MARKER).touch()
    assert said() == ["the vLLM installed here has no engine argument max_model_len"]


@pytest.mark.parametrize(
    ("value", "said"),
    [("0,0", "names a GPU twice"), ("gpu0", "is no list"), ("0", "spread over 2"), ("1,0", "")],
)
def test_the_gpus_a_model_is_pinned_to(judge: Judge, value: str, said: str) -> None:
    config = f'parameters {{ key: "GPU_DEVICE_IDS" value {{ string_value: "{value}" }} }}'
    found = judge({"tensor_parallel_size": 2}, config=config)
    assert [said in finding["message"] for finding in found] == ([True] if said else [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a JSON file (got an empty file; expected a JSON object with vLLM's engine arguments)"),
        ("{", "not a JSON file (got Expecting property name enclosed in double quotes: line 1 column 2 (char 1);"),
        ("\ufeff{}", "not a JSON file (got Unexpected UTF-8 BOM"),
        ("[" * 100_000, "not a JSON file (got "),
        ('["org/llm"]', "not a JSON object (got a list;"),
        ("null", "not a JSON object (got null;"),
        ("3", "not a JSON object (got a number;"),
        ("{}", "names no model (got an empty object;"),
        ('{"max_num_seqs": 8}', "names no model (got max_num_seqs;"),
        ('{"model": 3}', "names no model (got `3`;"),
        ('{"model": ""}', 'names no model (got `""`;'),
        ('{"model": ["org/llm"]}', 'names no model (got `["org/llm"]`;'),
    ],
)
def test_what_is_no_file_of_arguments_is_told_with_what_it_holds(
    tmp_path: Path, check: Callable[..., dict[str, Any]], text: str, said: str
) -> None:
    version = tmp_path / "repository" / "llm" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "vllm"\n')
    (version / "model.json").write_text(text, encoding="utf-8")
    (finding,) = (f for f in check(version.parents[1])["findings"] if f["rule"].startswith("vllm-"))
    assert finding["rule"] == "vllm-arguments-broken"
    assert finding["message"].startswith(f"model.json: {said}")


@pytest.mark.parametrize("context", [0, -2])
def test_a_context_of_no_tokens(judge: Judge, context: int) -> None:
    (finding,) = judge({"max_model_len": context})
    assert (finding["rule"], finding["severity"]) == ("vllm-arguments-contradict", "error")
    assert finding["message"] == f"max_model_len is {context}, and must be 1 or more"


def test_a_context_that_the_engine_chooses(judge: Judge) -> None:
    assert judge({"max_model_len": -1}) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "enable_lora without multi_lora.json"),
        (
            "",
            "multi_lora.json: not a JSON file (got an empty file; expected a JSON object with adapters' names and",
        ),
        ('["/a"]', "multi_lora.json: not a JSON object (got a list;"),
        ('{"a": 3}', "multi_lora.json: the path of a is `3`"),
    ],
)
def test_adapters_are_listed_by_names_and_paths(
    tmp_path: Path, check: Callable[..., dict[str, Any]], text: str | None, said: str
) -> None:
    version = tmp_path / "repository" / "llm" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "vllm"\n')
    (version / "model.json").write_text('{"model": "org/llm", "enable_lora": true}')
    if text is not None:
        (version / "multi_lora.json").write_text(text)
    (finding,) = (f for f in check(version.parents[1])["findings"] if f["rule"].startswith("vllm-"))
    assert (finding["rule"], finding["severity"]) == ("vllm-lora-missing", "error")
    assert finding["message"].startswith(said)
