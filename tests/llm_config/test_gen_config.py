"""`tritune gen-config --llm`: the files, what check says of them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tooling.llm.arguments import arguments_of, takes
from tooling.releases import releases

CONTEXT = ["--gpu-memory", "80GiB", "--context", "8192"]


def _model_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "1" / "model.json").read_text())


@pytest.mark.parametrize("release", [release.tag for release in releases() if release.vllm])
def test_a_vllm_model_is_right_for_every_release(make_model, run_cli, tmp_path: Path, release: str) -> None:
    llm, folder = make_model(), tmp_path / "repository" / "llm"
    asked = ["--backend", "vllm", *CONTEXT, "--streams", "64", "--release", release]
    assert run_cli("gen-config", folder, "--llm", llm, *asked).code == 0
    arguments = _model_json(folder)
    known = arguments_of(next(r.vllm for r in releases() if r.tag == release) or "")
    assert all(takes(known[name], value) for name, value in arguments.items())
    assert (arguments["model"], arguments["max_num_seqs"], arguments["max_model_len"]) == (str(llm), 64, 8192)
    config = (folder / "config.pbtxt").read_text()
    assert "KIND_MODEL" in config and "decoupled: true" in config and "max_batch_size: 0" in config
    checked = run_cli("check", folder.parent, "--release", release, "--json").json["data"]["findings"]
    assert [finding["rule"] for finding in checked if finding["rule"].startswith("vllm")] == []


def test_every_choice_is_explained(make_model, run_cli, tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "llm"
    run_cli("gen-config", folder, "--llm", make_model(), *CONTEXT, "--streams", "64", "--speculate", "ngram:3")
    page = (folder / "engine.md").read_text()
    for name in _model_json(folder):
        assert name == "model" or f"`{name}`" in page, name
    assert "| token budget | 2048 tokens a step |" in page
    assert "| weights | bfloat16 |" in page
    assert "1984 tokens of them a step while all run" in page


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("24.10", {"speculative_model": "[ngram]", "num_speculative_tokens": 3, "enable_chunked_prefill": False}),
        ("25.10", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}),
    ],
)
def test_speculation_in_the_words_of_the_release(
    make_model, run_cli, tmp_path: Path, release: str, names: dict[str, Any]
) -> None:
    folder = tmp_path / "repository" / "llm"
    asked = ["--llm", make_model(), *CONTEXT, "--speculate", "ngram:3", "--release", release]
    assert run_cli("gen-config", folder, *asked).code == 0
    arguments = _model_json(folder)
    for name, value in names.items():
        found = arguments[name]
        assert value == found if not isinstance(value, dict) else value.items() <= found.items()
    assert arguments["max_num_batched_tokens"] >= (8192 if release == "24.10" else 2048)


@pytest.mark.parametrize(
    ("release", "config", "code"),
    [
        ("25.08", {}, 0),
        ("25.09", {}, 2),
        ("26.01", {}, 2),
        ("26.02", {}, 0),
        ("25.10", {"architectures": ["EagleLlamaForCausalLM"]}, 0),
        ("25.10", {"model_type": "medusa"}, 0),
    ],
)
def test_a_draft_model_is_for_the_releases_whose_vllm_takes_one(
    make_model, run_cli, tmp_path: Path, release: str, config: dict[str, Any], code: int
) -> None:
    """Engines of 25.09 to 26.01 refuse whole models as drafts, and take heads of the model itself."""
    draft = make_model("draft", num_hidden_layers=4, hidden_size=512, intermediate_size=1024, **config)
    asked = ["--llm", make_model(), *CONTEXT, "--speculate", f"{draft}:3", "--release", release]
    result = run_cli("gen-config", tmp_path / "repository" / "llm", *asked)
    assert result.code == code, result.err
    if code:
        assert "--speculate: vLLM 0.1" in result.err
        assert (
            "speculates by n-grams but with no draft model, unlike those before 0.10.0 and from 0.15.0 on" in result.err
        )
        assert "give ngram:N, or another --release" in result.err


def test_urgent_requests_have_an_engine_of_their_own(make_model, run_cli, tmp_path: Path) -> None:
    repository, llm = tmp_path / "repository", make_model()
    asked = ["--llm", llm, *CONTEXT, "--streams", "64"]
    assert run_cli("gen-config", repository / "llm", *asked, "--low-latency", "urgent").code == 0
    shares = [_model_json(repository / name)["gpu_memory_utilization"] for name in ("llm", "urgent")]
    assert sum(shares) == pytest.approx(0.9)
    assert _model_json(repository / "urgent")["max_num_batched_tokens"] == 512
    assert run_cli("check", repository).code == 0
    apart = tmp_path / "apart"
    assert run_cli("gen-config", apart / "llm", *asked, "--low-latency", "urgent", "--llm-gpus", "2").code == 0
    assert "gpus: [1]" in (apart / "urgent" / "config.pbtxt").read_text()
    assert run_cli("check", apart, "--gpus", "2").code == 0


def test_own_arguments_stand_over_the_chosen_ones(make_model, run_cli, tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "llm"
    asked = ["--llm", make_model(), *CONTEXT, "--engine", "model=/models/llama", "--engine", "enforce_eager=true"]
    result = run_cli("gen-config", folder, *asked)
    arguments = _model_json(folder)
    assert (arguments["model"], arguments["enforce_eager"]) == ("/models/llama", True)
    assert "-v /models/llama:/models/llama:ro" in result.out
    assert "vllm-python-py3 tritonserver --model-repository=/models" in result.out


def test_the_backend_reads_a_text_for_lora(make_model, run_cli, tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "llm"
    asked = ("gen-config", folder, "--llm", make_model(), *CONTEXT)
    assert run_cli(*asked, "--engine", 'enable_lora="true"').code == 0
    assert _model_json(folder)["enable_lora"] == "true"
    refused = run_cli(*asked, "--engine", 'enforce_eager="true"')
    assert refused.code == 2 and "write true without quotes" in refused.err


def test_the_command_that_serves_mounts_every_model(make_model, run_cli, tmp_path: Path) -> None:
    llm, draft = make_model(), make_model("draft", num_hidden_layers=4, hidden_size=512, intermediate_size=1024)
    asked = ["--llm", llm, *CONTEXT, "--speculate", f"{draft}:3", "--engine", "tokenizer=/words"]
    result = run_cli("gen-config", tmp_path / "vllm" / "llm", *asked, "--release", "26.02")
    for folder in (llm, draft, "/words"):
        assert result.out.count(f"-v {folder}:{folder}:ro") == 1
    asked = [*asked[:-1], "tokenizer=org/words", "--backend", "tensorrtllm", "--release", "26.01"]
    result = run_cli("gen-config", tmp_path / "trtllm" / "llm", *asked)
    for folder in (llm, draft):
        assert result.out.count(f"-v {folder}:{folder}:ro") == 1


def test_a_snapshot_is_mounted_with_what_its_links_lead_to(make_model, run_cli, tmp_path: Path) -> None:
    """Files of a snapshot in Hugging Face's cache are links into the directory of the model above."""
    cache = tmp_path / "models--org--llm"
    (cache / "snapshots").mkdir(parents=True)
    llm = make_model().rename(cache / "snapshots" / "0a1b")
    for backend in (["vllm"], ["tensorrtllm", "--release", "26.01"]):
        result = run_cli("gen-config", tmp_path / backend[0] / "llm", "--llm", llm, *CONTEXT, "--backend", *backend)
        assert result.out.count(f"-v {cache}:{cache}:ro") == 1


def test_an_edited_model_json_is_not_lost(make_model, run_cli, tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "llm"
    asked = ["gen-config", folder, "--llm", make_model(), *CONTEXT]
    assert run_cli(*asked).code == 0
    assert run_cli(*asked, "--streams", "8").code == 0, "what tritune wrote is written anew"
    path = folder / "1" / "model.json"
    path.write_text(path.read_text().replace('"max_num_seqs": 8', '"max_num_seqs": 9'))
    refused = run_cli(*asked)
    assert (refused.code, "model.json" in refused.err, "--force" in refused.err) == (2, True, True)
    assert '"max_num_seqs": 9' in path.read_text()
    assert run_cli(*asked, "--force").code == 0


def test_check_and_diff_look_at_the_engine_too(make_model, run_cli, tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "llm"
    asked = ["gen-config", folder, "--llm", make_model(), *CONTEXT]
    missing = run_cli(*asked, "--check")
    assert (missing.code, missing.out.count("missing")) == (1, 3)
    assert run_cli(*asked).code == 0
    same = run_cli(*asked, "--check")
    assert (same.code, same.out.strip()) == (0, f"{folder / 'config.pbtxt'}: as generated")
    changed = run_cli(*asked, "--streams", "8", "--diff")
    assert (changed.code, '+  "max_num_seqs": 8,' in changed.out) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "max_model_length=8"], "did you mean `max_model_len`?"),
        (["--engine", "kv_cache_dtype=float8"], "not a value of kv_cache_dtype"),
        (["--engine", "max_num_seqs=5000"], "has none for some of 5000 sequences"),
        (["--engine", "max_num_seqs"], "KEY=VALUE"),
        (["--engine", "dtype=half", "--engine", "dtype=float"], "an argument is given twice"),
        (["--engine", "model=./llama"], "the engine looks for a relative path below the directory that its server"),
        (["--engine", "model="], 'names no model (got `""`'),
        (["--engine", "model=null"], "names no model (got `null`"),
        (["--engine", "max_model_len=0"], "max_model_len is 0, and must be 1 or more"),
        (["--streams", "0"], "out of range"),
        (["--speculate", "ngram:0"], "not understood"),
        (["--speculate", "ngram:999"], "not understood"),
        (["--form", "bls"], "--form is for TensorRT-LLM"),
        (["--backend", "onnxruntime"], "--backend: no engine for language models"),
        (["--release", "24.01"], "the vLLM of this release is not known"),
        (["--gpu-memory", "80"], "not a size"),
        (["--gpu-memory", "1MiB"], "no GPU is so small"),
        (["--low-latency", "llm"], "both models have one name"),
        (["--low-latency", "../urgent"], "not a usable model name"),
        (["--quantization", "awq"], "plain weights are not quantised so"),
    ],
)
def test_what_is_wrong_is_told(make_model, run_cli, tmp_path: Path, options: list[str], said: str) -> None:
    folder = tmp_path / "repository" / "llm"
    result = run_cli("gen-config", folder, "--llm", make_model(), *CONTEXT, *options)
    assert (result.code, said in result.err) == (2, True), result.err
    assert not folder.exists()


def test_options_of_language_models_need_one(run_cli, tmp_path: Path) -> None:
    for options in (["--streams", "8"], ["--backend", "tensorrtllm"], ["--engine", "a=1"], ["--no-prefix-caching"]):
        result = run_cli("gen-config", tmp_path / "m", *options)
        assert (result.code, "is for --llm" in result.err) == (2, True)


def test_the_memory_of_a_gpu_must_be_known(make_model, run_cli, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = run_cli("gen-config", tmp_path / "r" / "llm", "--llm", make_model())
    assert (result.code, "--gpu-memory" in result.err) == (3, True)


def test_the_llm_api_of_tensorrt_llm(make_model, run_cli, tmp_path: Path) -> None:
    folder, llm = tmp_path / "repository" / "llm", make_model()
    asked = ["--llm", llm, "--backend", "tensorrtllm", *CONTEXT, "--streams", "64", "--release", "26.01"]
    own = ["--kv-cache", "fp8", "--engine", 'kv_cache_config={"enable_partial_reuse": false}']
    result = run_cli("gen-config", folder, *asked, *own, "--speculate", "ngram:3")
    assert result.code == 0
    settings = yaml.safe_load((folder / "1" / "model.yaml").read_text())
    assert settings["model"] == str(llm)
    assert settings["kv_cache_config"] == {
        "free_gpu_memory_fraction": 0.9,
        "enable_block_reuse": True,
        "dtype": "fp8",
        "enable_partial_reuse": False,
    }
    assert settings["speculative_config"]["decoding_type"] == "NGram"
    assert settings["triton_config"] == {"max_batch_size": 0, "decoupled": True, "cancellation_check_period_ms": 100}
    assert "max_batch_size: 0" in (folder / "config.pbtxt").read_text()
    assert "26.01-trtllm-python-py3 cp /app/all_models/llmapi/" in result.out
    (folder / "1" / "model.py").write_text("from tensorrt_llm import LLM\nclass TritonPythonModel: pass\n")
    checked = run_cli("check", folder.parent, "--json").json["data"]["findings"]
    assert [finding["rule"] for finding in checked if finding["severity"] != "info"] == []


@pytest.mark.parametrize("form", ["ensemble", "bls"])
def test_an_engine_and_the_models_around_it(make_model, run_cli, tmp_path: Path, minilm_dir: Path, form: str) -> None:
    repository, llm = tmp_path / "repository", make_model()
    (llm / "tokenizer.json").write_bytes((minilm_dir / "tokenizer.json").read_bytes())
    asked = ["--llm", llm, "--backend", "tensorrtllm", *CONTEXT, "--streams", "16", "--release", "24.10"]
    result = run_cli("gen-config", repository / "llm", *asked, "--form", form, "--kv-cache", "fp8")
    assert result.code == 0
    assert sorted(path.name for path in repository.iterdir()) == [
        *("llm", "llm_engine", "llm_postprocessing", "llm_preprocessing")
    ]
    engine = (repository / "llm_engine" / "config.pbtxt").read_text()
    assert ("decoupled: true" in engine) == (form == "bls")
    for text in ("inflight_fused_batching", "guaranteed_no_evict", "enable_chunked_context"):
        assert text in engine
    assert "--kv_cache_dtype fp8" in result.out and "--use_paged_context_fmha enable" in result.out
    assert "24.10-trtllm-python-py3 trtllm-build" in result.out
    checked = run_cli("check", repository, "--release", "24.10", "--json").json["data"]["findings"]
    assert [finding["rule"] for finding in checked if finding["severity"] != "info"] == []


def test_a_draft_engine_beside_the_other(make_model, run_cli, tmp_path: Path, minilm_dir: Path) -> None:
    repository, llm = tmp_path / "repository", make_model()
    draft = make_model("draft", num_hidden_layers=4, hidden_size=512, intermediate_size=1024)
    for folder in (llm, draft):
        (folder / "tokenizer.json").write_bytes((minilm_dir / "tokenizer.json").read_bytes())
    asked = ["--llm", llm, "--backend", "tensorrtllm", *CONTEXT, "--streams", "4", "--release", "24.10"]
    result = run_cli("gen-config", repository / "llm", *asked, "--speculate", f"{draft}:5")
    assert result.code == 0
    assert "num_draft_tokens" in (repository / "llm" / "config.pbtxt").read_text()
    assert result.out.count("--speculative_decoding_mode draft_tokens_external --max_draft_len 5") == 1
    assert result.out.count("trtllm-build") == 2
    for name in ("llm_engine", "llm_draft"):
        assert "max_tokens_in_paged_kv_cache" in (repository / name / "config.pbtxt").read_text()
    assert run_cli("check", repository).code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--form", "api", "--release", "24.10"], "the LLM API came with TensorRT-LLM 1.0"),
        (["--form", "ensemble", "--release", "24.10"], "tokenizer.json"),
        (["--form", "bls", "--release", "24.10", "--speculate", "ngram"], "a draft model"),
        (["--low-latency", "urgent"], "--low-latency is for vLLM"),
        (["--quantization", "fp8", "--release", "26.01"], "the LLM API quantises nothing itself"),
        (["--quantization", "bitsandbytes", "--release", "24.10"], "plain weights are not quantised so"),
        (["--release", "26.08"], "no TensorRT-LLM is known"),
        (["--engine", "max_new_tokens=4", "--release", "26.01"], "LLM() has no such argument"),
        (["--engine", "tokenizer=../words", "--release", "26.01"], "the absolute path on the server"),
        (["--engine", "model=", "--release", "26.01"], 'names no model (got `""`'),
    ],
)
def test_what_tensorrt_llm_cannot_do(make_model, run_cli, tmp_path: Path, options: list[str], said: str) -> None:
    folder = tmp_path / "repository" / "llm"
    result = run_cli("gen-config", folder, "--llm", make_model(), "--backend", "tensorrtllm", *CONTEXT, *options)
    assert (result.code, said in result.err) == (2, True), result.err
