"""`tritune openai`: what AIPerf is asked for, how its records are counted, and what is told where it cannot be done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from perf.aiperf import REQUESTS, Endpoint, command, find_aiperf, read_streams, require_served, write_requests
from perf.llm_traffic import LlmTraffic
from tooling.errors import ExternalError, MissingError, Refused, UsageError

TRAFFIC = LlmTraffic((4, 9), (3, 5), clients=2, requests=8, seed=1)


def record(ms: float, tokens: int, start_ms: float, phase: str = "profiling", **more: Any) -> dict[str, Any]:
    """A request as AIPerf 0.13 records it: its first token after a tenth of its `ms`."""
    metrics = {
        "time_to_first_token": {"value": ms / 10, "unit": "ms"},
        "request_latency": {"value": ms, "unit": "ms"},
        "input_sequence_length": {"value": 7, "unit": "tokens"},
        "output_sequence_length": {"value": tokens, "unit": "tokens"},
    }
    if tokens > 1:
        metrics["inter_token_latency"] = {"value": 0.9 * ms / (tokens - 1) / 1e3, "unit": "sec"}
    times = {"request_start_ns": int(start_ms * 1e6), "request_end_ns": int((start_ms + ms) * 1e6)}
    return {"metadata": {"benchmark_phase": phase, **times}, "metrics": metrics, "error": None, **more}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Any]:
    def write_and_read(*records: dict[str, Any]) -> Any:
        path = tmp_path / "profile_export.jsonl"
        path.write_text("\n".join(map(json.dumps, records)) + "\n")
        return read_streams(path)

    return write_and_read


def test_figures_are_counted_from_the_records(read: Callable[..., Any]) -> None:
    """Over the time from the first request to the last answer; units as they are written, warm-up aside."""
    found = read(record(5, 1, 0, "warmup"), record(100, 10, 1000), record(200, 19, 1050), record(50, 1, 1950))
    assert (found.requests, found.prompt_tokens, found.output_tokens) == (3, 7, 10)
    assert found.figures["tokens_per_s"] == pytest.approx(30)
    assert found.figures["throughput_rps"] == pytest.approx(3)
    assert found.figures["ttft_p50_us"] == pytest.approx(10_000)
    assert found.figures["ttft_avg_us"] == pytest.approx(35_000 / 3)
    assert found.figures["itl_avg_us"] == pytest.approx(10_000), "an answer of one token has none"
    assert found.figures["p99_us"] == pytest.approx(200_000)


def test_a_request_that_failed_is_no_figure(read: Callable[..., Any]) -> None:
    failed = record(1, 1, 0, error={"code": 400, "type": "Bad Request", "message": "no such model"}) | {"metrics": None}
    with pytest.raises(Refused, match="1 of 2: no such model"):
        read(record(100, 10, 0), failed)
    with pytest.raises(Refused, match="AIPerf recorded no request"):
        read(record(5, 1, 0, "warmup"))


def test_without_the_number_of_tokens_nothing_is_made_up(read: Callable[..., Any]) -> None:
    silent = record(100, 10, 0)
    del silent["metrics"]["output_sequence_length"]
    with pytest.raises(ExternalError, match="does not tell how many tokens") as error:
        read(record(100, 10, 0), silent)
    assert error.value.problems[0].hint == "--tokenizer DIR counts them here"


@pytest.mark.parametrize("text", ["{", "[]", '{"metadata": {}}', '{"metadata": {"benchmark_phase": "profiling"}}'])
def test_other_records_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "profile_export.jsonl").write_text(text)
    with pytest.raises(ExternalError, match="not the records of streams"):
        read_streams(tmp_path / "profile_export.jsonl")


def test_no_stream_has_no_first_token(read: Callable[..., Any]) -> None:
    whole = record(100, 10, 0)
    del whole["metrics"]["time_to_first_token"]
    with pytest.raises(ExternalError, match="0 of 1 requests have `time_to_first_token`"):
        read(whole)


def test_requests_are_those_of_the_traffic(tmp_path: Path) -> None:
    write_requests(tmp_path / REQUESTS, TRAFFIC)
    lines = [json.loads(line) for line in (tmp_path / REQUESTS).read_text().splitlines()]
    assert [(one["text"], one["output_length"]) for one in lines] == [(a.prompt, a.tokens) for a in TRAFFIC.asks()]
    assert all(one["extra"]["min_tokens"] == one["output_length"] and one["extra"]["ignore_eos"] for one in lines)
    write_requests(tmp_path / REQUESTS, TRAFFIC, own_ends=True)
    assert "ignore_eos" not in (tmp_path / REQUESTS).read_text()


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def words(endpoint: Endpoint, traffic: LlmTraffic = TRAFFIC) -> str:
        return " ".join(command(("aiperf",), endpoint, traffic, tmp_path))

    clients = words(Endpoint("http://h:1", "m"))
    assert "profile --model m --url http://h:1 --endpoint-type completions --streaming" in clients
    assert "--concurrency 2" in clients and "--request-count 8" in clients and "--request-rate" not in clients
    assert f"--tokenizer {tmp_path / 'tokenizer'} --use-server-token-count" in clients
    rate = words(Endpoint("http://h:1", "m", "chat", "words"), LlmTraffic((4,), (3,), rate_rps=2.5))
    assert "--request-rate 2.5 --request-rate-mode poisson" in rate and "--concurrency" not in rate
    assert "--tokenizer words " in rate and "--use-server-token-count" not in rate
    monkeypatch.setenv("OPENAI_API_KEY", "s3cret")
    assert "--api-key s3cret" in words(Endpoint("http://h:1", "m"))


class _Listing(BaseHTTPRequestHandler):
    """An endpoint that lists its models, with a key or without."""

    key: ClassVar[str] = ""

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self.send_error(404)
        elif self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            self.send_error(401)
        else:
            body = json.dumps({"data": [{"id": "llama"}, {"id": "qwen"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listing() -> Iterator[Callable[..., str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(key: str = "") -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Listing", (_Listing,), {"key": key}))
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_endpoint_is_asked_for_the_model_first(
    listing: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    require_served(Endpoint(listing(), "llama"))
    with pytest.raises(UsageError, match=r"got `lama`; expected llama, qwen") as error:
        require_served(Endpoint(listing(), "lama"))
    assert error.value.problems[0].hint == "did you mean `llama`?"
    guarded = listing("k")
    with pytest.raises(UsageError, match="asks for a key"):
        require_served(Endpoint(guarded, "llama"))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    require_served(Endpoint(guarded, "llama"))
    with pytest.raises(MissingError, match="no server answers here"):
        require_served(Endpoint("http://127.0.0.1:9", "llama"))


def test_without_aiperf_the_way_to_it_is_told(run_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("TRITUNE_AIPERF", raising=False)
    result = run_cli("openai", "llama")
    assert (result.code, "AIPerf is not here" in result.err, "pip install aiperf" in result.err) == (3, True, True)
    monkeypatch.setenv("TRITUNE_AIPERF", "/no/such/aiperf --more")
    with pytest.raises(MissingError, match=r"\$TRITUNE_AIPERF: AIPerf is not here \(got /no/such/aiperf --more\)"):
        find_aiperf()
    monkeypatch.setenv("TRITUNE_AIPERF", "'")
    with pytest.raises(MissingError, match="not a command line"):
        find_aiperf()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url", "ftp://h"], "no server's address"),
        (["--url", "localhost:8000/v1/completions"], "hint: give http://localhost:8000"),
        (["--concurrency", "2", "--request-rate", "3"], "exclude each other"),
        (["--lengths", "x"], "not a usable number"),
        (["--slo", "ttft<1"], "--slo"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_sent(
    run_cli: Callable[..., Any], options: list[str], said: str
) -> None:
    result = run_cli("openai", "llama", *options)
    assert (result.code, said in result.err) == (2, True), result.err


def test_a_program_that_fails_is_told_with_its_last_line(
    run_cli: Callable[..., Any], listing: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is no AIPerf; what it said stays in the directory that is kept, and a directory in use is refused."""
    program = tmp_path / "aiperf"
    program.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setenv("TRITUNE_AIPERF", str(program))
    result = run_cli("openai", "llama", "--url", listing(), "--output", tmp_path / "kept")
    assert (result.code, "exit code 2: no such option" in result.err) == (4, True), result.err
    assert (tmp_path / "kept" / "aiperf.err").read_text() == "no such option\n"
    again = run_cli("openai", "llama", "--url", listing(), "--output", tmp_path / "kept")
    assert (again.code, "the directory is there already" in again.err) == (2, True)
    program.write_text("#!/bin/sh\nsleep 60\n")
    late = run_cli("openai", "llama", "--url", listing(), "--time-limit", "1s")
    assert (late.code, "did not end in time" in late.err) == (4, True)


def test_a_path_before_the_api_is_kept(
    run_cli: Callable[..., Any], listing: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is told the address without `/v1`, which AIPerf adds itself."""
    program = tmp_path / "aiperf"
    program.write_text('#!/bin/sh\necho "$@" >&2\nexit 2\n')
    program.chmod(0o755)
    monkeypatch.setenv("TRITUNE_AIPERF", str(program))
    url = listing()
    for given, told in ((f"{url}/v1/", url), (f"{url}/proxy/v1", f"{url}/proxy")):
        assert f"--url {told} --endpoint-type" in run_cli("openai", "llama", "--url", given).err
