"""The arguments of language models' engines: keys that stand twice, and models that are named by paths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tooling.llm.model_place import folders

Judge = Callable[..., list[dict[str, Any]]]
MODEL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99}
CODE = "from tensorrt_llm import LLM\nclass TritonPythonModel: pass"
TRITON = "triton_config: {max_batch_size: 0, decoupled: true}"


@pytest.fixture
def judge(tmp_path: Path, check: Callable[..., dict[str, Any]]) -> Judge:
    """What is said of these files of a version, of rules for every engine; a `model.yaml` makes it TensorRT-LLM's. Of
    models that have to be fetched only with `notes`."""

    def run(notes: bool = False, **files: str) -> list[dict[str, Any]]:
        version = tmp_path / "repository" / "llm" / "1"
        version.mkdir(parents=True, exist_ok=True)
        backend = "python" if "yaml" in files else "vllm"
        (version.parent / "config.pbtxt").write_text(f'backend: "{backend}"\n')
        for kind, text in files.items():
            (version / ("multi_lora.json" if kind == "lora" else f"model.{kind}")).write_text(text)
        if backend == "python":
            (version / "model.py").write_text(CODE)
        found = [f for f in check(version.parents[1])["findings"] if f["rule"].startswith("llm-")]
        return [f for f in found if (f["rule"] == "llm-model-fetched") == notes]

    return run


def said(findings: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(one["rule"], one["severity"], one["message"]) for one in findings]


def test_a_key_that_stands_twice_is_told_with_the_value_that_counts(judge: Judge) -> None:
    found = judge(json='{"model": "org/llm", "max_num_seqs": 8, "dtype": "half", "max_num_seqs": 64}')
    assert said(found) == [("llm-argument-twice", "warning", "max_num_seqs stands twice: `8`, then `64`")]
    assert found[0]["file"].endswith("llm/1/model.json")


def test_keys_of_inner_objects_and_more_than_two(judge: Judge) -> None:
    inner = '{"method": "ngram", "num_speculative_tokens": 4, "num_speculative_tokens": 2}'
    found = judge(json=f'{{"model": "a", "model": "b", "model": "org/llm", "speculative_config": {inner}}}')
    assert [one["message"] for one in found] == [
        "num_speculative_tokens stands twice: `4`, then `2`",
        "model stands 3 times: `a`, then `b`, then `org/llm`",
    ]


def test_one_name_in_two_objects_is_no_key_that_stands_twice(judge: Judge) -> None:
    draft = {"model": "org/draft", "method": "draft_model"}
    assert judge(json=json.dumps({"model": "org/llm", "speculative_config": draft})) == []


def test_yaml_keeps_the_last_too(judge: Judge) -> None:
    found = judge(yaml=f"model: org/llm\n{TRITON}\nkv_cache_config: {{dtype: fp8, dtype: auto}}\nmax_num_tokens: 1\n")
    assert said(found) == [("llm-argument-twice", "warning", "dtype stands twice: `fp8`, then `auto`")]


def test_yaml_that_refers_to_itself_ends(judge: Judge) -> None:
    assert judge(yaml=f"model: org/llm\n{TRITON}\nmodel_kwargs: &a\n  inner: *a\n") == []


def test_adapters_of_lora_are_looked_at(judge: Judge) -> None:
    found = judge(json='{"model": "org/llm", "enable_lora": true}', lora='{"a": "./a", "b": "/no/such", "b": "/no/b"}')
    assert [one["message"] for one in found] == [
        "b stands twice: `/no/such`, then `/no/b`",
        "a: `./a` is not looked for beside this file, but below the directory the server was started in",
        "b: nothing stands at /no/b on this machine",
    ]


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("/no/such/dir", "model: nothing stands at /no/such/dir on this machine"),
        ("./weights", "model: `./weights` is not looked for beside this file"),
        ("../weights", "model: `../weights` is not looked for"),
        ("a/b/c", "model: `a/b/c` is not looked for"),
        ("~/llama", "model: `~/llama` is not looked for"),
        ("my llama", "model: `my llama` is not looked for"),
        ("weights/", "model: `weights/` is not looked for"),
    ],
)
def test_a_path_at_which_nothing_stands(judge: Judge, named: str, told: str) -> None:
    (found,) = judge(json=json.dumps({"model": named}))
    assert (found["rule"], found["severity"]) == ("llm-model-elsewhere", "warning")
    assert found["message"].startswith(told)
    assert "on the server" in found["hint"] or "where the server has it" in found["hint"]


@pytest.mark.parametrize(
    "named",
    ["meta-llama/Llama-3.1-8B", "gpt2", "org/llm:Q4_K_M", "org/llm-GGUF/llm.Q4.gguf", "s3://bucket/llm"],
)
def test_what_may_be_an_id_or_a_store_is_not_told(judge: Judge, named: str) -> None:
    assert judge(json=json.dumps({"model": named})) == []


@pytest.mark.parametrize("place", ["llm/1/weights", "llm/weights", "weights"])
def test_a_directory_beside_is_what_was_meant(judge: Judge, tmp_path: Path, place: str) -> None:
    """`weights` may be an id; with a model's directory of that name beside it, it hardly is."""
    folder = tmp_path / "repository" / place
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(MODEL))
    (found,) = judge(json='{"model": "weights"}')
    assert found["hint"] == f"the absolute path on the server; here it is {folder}"


def test_a_model_that_stands_where_it_is_named_is_not_told(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    named = str(tmp_path)
    assert judge(json=json.dumps({"model": named, "tokenizer": named})) == []
    assert judge(json=json.dumps({"model": str(tmp_path / "config.json")})) == [], "one file may hold all"


def test_a_directory_without_a_model(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (found,) = judge(json=json.dumps({"model": str(tmp_path / "empty")}))
    assert found["message"] == f"model: {tmp_path / 'empty'} holds no config.json"


def test_a_tokenizer_alone_is_no_model(judge: Judge, tmp_path: Path) -> None:
    words, config = tmp_path / "words", tmp_path / "config"
    for file in (words / "tokenizer.json", config / "config.json"):
        file.parent.mkdir()
        file.write_text("{}")
    (found,) = judge(json=json.dumps({"model": str(words), "tokenizer": str(words)}))
    assert found["message"] == f"model: {words} holds no config.json"
    assert judge(json=json.dumps({"model": str(words), "hf_config_path": str(config)})) == []


def test_tokenizers_and_drafts_are_models_too(judge: Judge) -> None:
    draft = {"model": "./draft", "num_speculative_tokens": 3}
    found = judge(json=json.dumps({"model": "org/llm", "tokenizer": "./words", "speculative_config": draft}))
    assert [one["message"].partition(":")[0] for one in found] == ["tokenizer", "speculative_config.model"]
    ngram = {"method": "ngram", "model": "[ngram]", "num_speculative_tokens": 3}
    assert judge(json=json.dumps({"model": "org/llm", "speculative_config": ngram})) == []


def test_the_llm_api_looks_there_too(judge: Judge) -> None:
    (found,) = judge(yaml=f"model: ./weights\n{TRITON}\n")
    assert found["rule"] == "llm-model-elsewhere"
    assert found["file"].endswith("model.yaml")


def test_an_engine_of_tensorrt_llm_has_an_absolute_path(tmp_path: Path, check: Callable[..., dict[str, Any]]) -> None:
    (tmp_path / "llm" / "1").mkdir(parents=True)
    config = 'backend: "tensorrtllm"\nparameters { key: "gpt_model_path" value { string_value: "%s" } }'

    def rules(path: str) -> list[str]:
        (tmp_path / "llm" / "config.pbtxt").write_text(config % path)
        return [f["rule"] for f in check(tmp_path)["findings"] if f["rule"].startswith("trtllm-engine-path")]

    assert rules("engines/llm") == ["trtllm-engine-path-relative"]
    assert rules("/engines/llm") == rules("${engine_dir}") == []


def test_what_stands_in_the_repository_is_there_in_the_container(judge: Judge, tmp_path: Path) -> None:
    (tmp_path / "repository" / "llm" / "1" / "weights").mkdir(parents=True)
    assert judge(json='{"model": "/models/llm/1/weights"}') == []
    (found,) = judge(json='{"model": "/models/llm/1/wights"}')
    assert found["message"] == "model: nothing stands at /models/llm/1/wights on this machine"


def test_a_model_that_has_to_be_fetched_is_noted(judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    draft = {"method": "draft_model", "model": "org/draft:Q4", "num_speculative_tokens": 3}
    written = json.dumps({"model": "org/llm", "speculative_config": draft, "tokenizer": "s3://bucket/words"})
    (model, other) = judge(notes=True, json=written)
    assert model["severity"] == "info"
    assert model["message"] == (
        f"model: `org/llm` is a Hugging Face id, and not in {tmp_path / 'hub'}: the engine has to fetch it"
    )
    assert "`hf download org/llm` into the cache" in model["hint"]
    assert other["message"].startswith("speculative_config.model: `org/draft:Q4` is a Hugging Face id")
    assert "`hf download org/draft`" in other["hint"]
    snapshot = tmp_path / "hub" / "models--org--llm" / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    assert len(judge(notes=True, json='{"model": "org/llm"}')) == 1, "an empty snapshot holds nothing"
    (snapshot / "config.json").write_text("{}")
    assert judge(notes=True, json='{"model": "org/llm"}') == []


def test_the_llm_api_fetches_too(judge: Judge) -> None:
    (found,) = judge(notes=True, yaml=f"model: org/no-such-llm\n{TRITON}\n")
    assert found["message"].startswith("model: `org/no-such-llm` is a Hugging Face id")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- org/llm\n", "no YAML mapping"),
        ("model: [org/llm\n", "no YAML mapping"),
        ("model: 3\n", "names no model (got `3`;"),
        ("model: ''\n", "names no model (got ``;"),
        ("max_seq_len: 8\n", "names no model (got max_seq_len;"),
    ],
)
def test_settings_of_the_llm_api_that_name_no_model(judge: Judge, text: str, said: str) -> None:
    (found,) = (one for one in judge(yaml=text) if one["rule"] == "llm-api-settings-broken")
    assert found["message"].startswith(f"model.yaml: {said}")


def test_a_snapshot_of_the_cache_is_mounted_with_what_its_links_lead_to() -> None:
    cache = Path("/cache/hub/models--org--llm")
    assert folders({"model": f"{cache}/snapshots/0a1b", "tokenizer": f"{cache}/snapshots/0a1b"}) == [cache]
    assert folders({"model": "/snapshots/llm", "tokenizer": "/words"}) == [Path("/snapshots/llm"), Path("/words")]
