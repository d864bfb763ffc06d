"""Streams measured by the real perf_analyzer and by a client of our own: exact tokens, and figures that agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perf.analyzer import find_perf_analyzer
from perf.generation import Ask, generate
from perf.profile_export import read_requests
from perf.workload import Workload
from tooling.errors import MissingError, Refused
from tooling.server import EmbeddedServer

pytestmark = pytest.mark.llm

ASKS = [Ask(f"ask number {number}", tokens) for number, tokens in enumerate([12, 40, 5, 24, 60, 9, 33] * 5)]


def write_asks(path: Path) -> None:
    """ASKS as perf_analyzer's input file; every response shall tell its tokens."""
    flags = dict.fromkeys(("stream", "exclude_input_in_output", "return_num_output_tokens"), True)
    steps = []
    for ask in ASKS:
        sampling = json.dumps({"max_tokens": ask.tokens, "ignore_eos": True, "temperature": 0})
        values = {"text_input": ask.prompt, "sampling_parameters": sampling, **flags}
        steps.append({name: {"content": [value], "shape": [1]} for name, value in values.items()})
    path.write_text(json.dumps({"data": steps}))


def generated(server: EmbeddedServer) -> int:
    found = re.search(r"^vllm:generation_tokens_total{.*} (\d+)", server.metrics(), re.M)
    assert found
    return int(found[1])


def test_perf_analyzer_measures_tokens(served: EmbeddedServer, runtime: Any, tmp_path: Path) -> None:
    write_asks(tmp_path / "asks.json")
    point = find_perf_analyzer(runtime).measure(
        "llama",
        served.grpc_url,
        Workload(concurrency=4, streams=1),
        tmp_path / "asks.json",
        raw_dir=tmp_path / "raw",
        window_ms=1000,
        batching=False,
    )
    assert point.status == "ok", point.message
    sent = read_requests(tmp_path / "raw" / "requests.csv")
    assert sent.tokens is not None
    assert set(sent.tokens.tolist()) <= {ask.tokens for ask in ASKS}
    assert point.ttft_p50_us is not None and point.itl_p50_us is not None and point.tokens_per_s is not None
    assert 0 < point.ttft_p50_us <= point.ttft_p95_us < point.p99_us  # type: ignore[operator]
    span_s = (sent.last_ns.max() - sent.sent_ns.min()) / 1e9
    assert point.tokens_per_s == pytest.approx(sent.tokens.sum() / span_s)


def test_our_own_client_counts_as_the_engine_does(served: EmbeddedServer) -> None:
    before = generated(served)
    answers = generate(served.grpc_url, "llama", ASKS, clients=6)
    assert [answer.tokens for answer in answers] == [ask.tokens for ask in ASKS]
    assert [answer.prompt for answer in answers] == [len(ask.prompt) for ask in ASKS], "a token for each byte"
    assert generated(served) - before == sum(ask.tokens for ask in ASKS)
    assert all(answer.sent_s <= answer.times_s[0] <= answer.times_s[-1] for answer in answers)


def test_static_batches_wait_for_their_longest(served: EmbeddedServer) -> None:
    """Three at a time: none of the second batch is sent before the first is answered whole."""
    answers = generate(served.grpc_url, "llama", ASKS[:6], due_s=[0.0] * 6, clients=3, whole_batches=True)
    first, second = answers[:3], answers[3:]
    assert min(answer.sent_s for answer in second) >= max(answer.times_s[-1] for answer in first)
    assert all(answer.ttft_s > first[1].times_s[-1] for answer in second), "waiting counts"


def test_what_cannot_be_asked(served: EmbeddedServer) -> None:
    with pytest.raises(MissingError, match="does not serve the model"):
        generate(served.grpc_url, "llamas", ASKS[:1])
    with pytest.raises(MissingError, match="no Triton server answers"):
        generate("127.0.0.1:9", "llama", ASKS[:1])
    with pytest.raises(Refused, match="unknown sampling parameters: warmth"):
        generate(served.grpc_url, "llama", ASKS[:1], sampling={"warmth": 1})
