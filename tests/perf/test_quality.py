"""Answers beside recorded ones: the figures by hand, and the command against a server that speaks Triton's generate."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from perf.quality import Generated, Reference, Step, compare, judge, load, read_prompts, save
from perf.slo import Slo
from tooling.errors import UsageError


def answer(prompt: str, tokens: str, **logprobs: float) -> Generated:
    """Tokens are letters; each costs what it is said to, and an x is always among the alternatives, at -3."""
    steps = tuple(Step(token, {token: logprobs.get(token, -1.0), "x": -3.0}) for token in tokens)
    return Generated(prompt, tokens, steps)


def reference(*answers: Generated) -> Reference:
    return Reference("plain", 8, answers)


def test_equal_answers_agree_wholly() -> None:
    found = compare(reference(answer("p", "abcd"), answer("q", "")), [answer("p", "abcd"), answer("q", "")])
    assert (found.token_agreement, found.exact_answers, found.perplexity_ratio, found.parted) == (1, 1, 1, ())


def test_tokens_agree_up_to_the_first_that_differs() -> None:
    """2 of 4, and 3 of 4 where an answer goes on for one token; what comes after a difference says nothing."""
    before = reference(answer("p", "abcd"), answer("q", "abc"))
    found = compare(before, [answer("p", "abyd"), answer("q", "abcd")])
    assert found.token_agreement == pytest.approx((0.5 + 0.75) / 2)
    assert (found.exact_answers, found.parted, found.tokens) == (0, ("p", "q"), 7)


def test_perplexity_is_of_the_references_tokens_where_both_said_the_same_before() -> None:
    """a and b cost 1 each and 2 each; at the third they part: c cost 1, and costs at least as much as the x's 3."""
    before, now = reference(answer("p", "abcd")), answer("p", "abyd", a=-2.0, b=-2.0)
    found = compare(before, [now])
    assert found.perplexity == pytest.approx(math.exp((2 + 2 + 3) / 3))
    assert found.perplexity_ratio == pytest.approx(math.exp((2 + 2 + 3) / 3 - 1))
    known = Generated("p", "abx", (*now.steps[:2], Step("y", {"y": -0.5, "c": -1.5})))
    assert compare(before, [known]).perplexity == pytest.approx(math.exp((2 + 2 + 1.5) / 3))


def test_without_probabilities_there_is_no_perplexity() -> None:
    silent = Generated("p", "ab", (Step("a", {}), Step("b", {})))
    found = compare(reference(silent), [silent])
    assert (found.token_agreement, found.perplexity, found.perplexity_ratio) == (1, None, None)
    assert [str(one.term) for one in judge(found, "")] == ["token_agreement>=0.9"]
    assert [one.answer for one in judge(found, "perplexity_ratio<1.1")] == ["unknown"]


def test_limits_are_those_of_answers() -> None:
    found = compare(reference(answer("p", "abcd")), [answer("p", "abyd")])
    assert [one.answer for one in judge(found, "token_agreement>0.4,exact_answers>0.5")] == ["met", "not met"]
    for words in ("p99<5ms", "throughput", "token_agreement"):
        with pytest.raises(UsageError, match="no limit of the quality"):
            judge(found, words)
    assert Slo.parse("token_agreement>=0.98,perplexity_ratio<1.02,ttft_p95<300ms,itl<40ms,tokens_per_s>1000").terms


def test_a_reference_is_read_as_it_was_saved(tmp_path: Path) -> None:
    before = reference(answer("größer 漢字", "ab"), answer("q", ""))
    save(tmp_path / "r.json", before)
    assert load(tmp_path / "r.json") == before


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema_version": 1, "model": "m", "max_tokens": 1, "answers": []}', "\x00", '{"a": ']
)
def test_files_that_hold_no_answers(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(UsageError, match="holds no recorded answers"):
        load(tmp_path / "r.json")


def test_answers_of_a_later_format(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"schema_version": 2}')
    with pytest.raises(UsageError, match="the record of answers is in a newer format"):
        load(tmp_path / "r.json")


def test_prompts_are_lines_or_entries(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("one\n\n two \n")
    (tmp_path / "p.jsonl").write_text('{"prompt": "one"}\n{"text_input": "two"}\n')
    assert read_prompts(tmp_path / "p.txt") == ("one", " two ")
    assert read_prompts(tmp_path / "p.jsonl") == ("one", "two")
    for name, text, said in (("e.txt", "\n", "holds no prompt"), ("b.jsonl", '{"a": 1}\n', "b.jsonl:1")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=said):
            read_prompts(tmp_path / name)


class _Model(BaseHTTPRequestHandler):
    """A language model that repeats its prompt's letters; the one called `other` says z instead of e."""

    inputs: list[str]

    def do_GET(self) -> None:
        name = self.path.split("/")[3]
        known = [{"name": tensor} for tensor in self.inputs]
        self._reply(200 if name in ("plain", "other") else 400, {"input": known, "error": "unknown model"})

    def do_POST(self) -> None:
        name, body = self.path.split("/")[3], json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked = json.loads(body.get("sampling_parameters", "{}"))
        count = asked.get("max_tokens") or body.get("sampling_param_max_tokens") or body.get("max_tokens")
        text = body["text_input"][:count].replace("e", "z" if name == "other" else "e")
        reply: dict[str, Any] = {"text_output": text}
        if body.get("return_logprobs"):
            likely = {letter: {str(ord(letter)): {"logprob": -0.1}, "0": {"logprob": -4.0}} for letter in text}
            reply["logprobs"] = json.dumps([likely[letter] for letter in text])
        self._reply(200, reply)

    def _reply(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


VLLM = ["text_input", "stream", "sampling_parameters", "exclude_input_in_output", "return_logprobs"]


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(*inputs: str) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Model", (_Model,), {"inputs": list(inputs)}))
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_record_then_compare(serve: Callable[..., str], run_cli: Callable[..., Any], tmp_path: Path) -> None:
    file, url = tmp_path / "plain.json", serve(*VLLM)
    done = run_cli("quality", file, "--record", "--model", "plain", "--url", url, "--max-tokens", 12)
    assert done.code == 0, done.err
    assert [len(one.steps) for one in load(file).answers] == [12] * 32
    same = run_cli("quality", file, "--url", url, "--json")
    assert (same.code, same.json["data"]["token_agreement"], same.json["data"]["perplexity_ratio"]) == (0, 1, 1)
    other = run_cli("quality", file, "--model", "other", "--url", url, "--json").json
    assert (other["exit_code"], other["data"]["met"]) == (1, False)
    assert other["data"]["token_agreement"] < 0.9
    assert other["data"]["perplexity_ratio"] > 1.05
    loose = run_cli("quality", file, "--model", "other", "--url", url, "--slo", "token_agreement>0.01")
    assert (loose.code, "token_agreement>0.01: met" in loose.out) == (0, True)


@pytest.mark.parametrize(
    "inputs",
    [("text_input", "sampling_param_max_tokens"), ("text_input", "max_tokens", "top_k")],
    ids=["LLM API", "engine"],
)
def test_models_that_do_not_say_their_tokens(
    serve: Callable[..., str], run_cli: Callable[..., Any], tmp_path: Path, minilm_dir: Path, inputs: tuple[str, ...]
) -> None:
    file, url = tmp_path / "plain.json", serve(*inputs)
    asked = ("quality", file, "--record", "--model", "plain", "--url", url)
    refused = run_cli(*asked)
    assert (refused.code, "--tokenizer" in refused.err) == (2, True)
    assert not file.exists()
    assert run_cli(*asked, "--tokenizer", minilm_dir).code == 0
    found = run_cli("quality", file, "--url", url, "--tokenizer", minilm_dir, "--json")
    assert (found.code, found.json["data"]["perplexity_ratio"]) == (0, None)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--record",), 2, "the model is not named"),
        (("--record", "--model", "plain", "--slo", "token_agreement>0.5"), 2, "exclude each other"),
        (("--model", "plain"), 2, "no such file"),
        (("--record", "--model", "absent"), 2, "the server has no such model"),
        (("--record", "--model", "plain", "--prompts", "absent.txt"), 2, "absent.txt"),
        (("--record", "--model", "plain", "--tokenizer", "absent"), 2, "the tokenizer is missing"),
    ],
)
def test_what_is_wrong_is_told(
    serve: Callable[..., str],
    run_cli: Callable[..., Any],
    tmp_path: Path,
    options: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    result = run_cli("quality", tmp_path / "plain.json", "--url", serve(*VLLM), *options)
    assert (result.code, said in result.err.lower() or said in result.err) == (code, True), result.err


def test_what_is_there_is_not_lost_and_no_server_is_no_answer(
    serve: Callable[..., str], run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "plain.json"
    save(file, reference(answer("p", "ab")))
    refused = run_cli("quality", file, "--record", "--model", "plain", "--url", serve(*VLLM))
    assert (refused.code, "--force" in refused.err) == (2, True)
    gone = run_cli("quality", file, "--model", "plain", "--url", "127.0.0.1:9")
    assert (gone.code, "no Triton server answers" in gone.err) == (3, True)
    encoder = run_cli("quality", file, "--model", "plain", "--url", serve("input_ids"))
    assert (encoder.code, "takes no text_input" in encoder.err) == (2, True)
