"""Texts on the real server: the reference's answers, each to its own caller, bad requests alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tooling.repository import read_config
from tooling.server import EmbeddedServer

pytestmark = pytest.mark.live
EVERY = [
    "bucketed",
    "merged",
    pytest.param("free", marks=pytest.mark.long),
    pytest.param("routed", marks=pytest.mark.long),
]
Embed = Callable[..., Any]


def least_cosine(one: Any, other: Any) -> float:
    return float(((one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)).min())


@pytest.mark.long
@pytest.mark.parametrize("way", ["free", "bucketed", "merged", "routed"])
def test_answers_are_those_of_the_reference_library(
    way: str, embed: Embed, texts: Sequence[bytes], reference: Any
) -> None:
    with ThreadPoolExecutor(16) as pool:
        served = np.concatenate(list(pool.map(lambda text: embed(way, [text]), texts)))
    assert served.shape == (len(texts), 384) and len(texts) > 210
    assert least_cosine(served, reference) >= 0.99999


@pytest.mark.parametrize("way", EVERY)
def test_a_hundred_at_once_each_get_their_own_answer(
    way: str, embed: Embed, alone: Callable[..., Any], texts: Sequence[bytes]
) -> None:
    """Real, odd and broken texts, three to every third request; all in flight together, so that they are merged."""
    some = [text for text in texts[:20] + texts[200:] if len(text) < 1_000]
    own = alone(some)
    parts = [(number % (len(some) - 2), 3 if number % 3 == 0 else 1) for number in range(100)]
    with ThreadPoolExecutor(100) as pool:
        served = list(pool.map(lambda part: embed(way, some[part[0] : sum(part)]), parts))
    for (begin, rows), answer in zip(parts, served, strict=True):
        assert answer.shape == (rows, 384)
        assert np.abs(answer - own[begin : begin + rows]).max() <= 1e-5


@pytest.mark.parametrize("way", EVERY)
def test_an_answer_does_not_depend_on_its_neighbours(way: str, embed: Embed) -> None:
    """With longer texts in the same request it is padded further."""
    alone = embed(way, [b"She moved to the coast."])
    for others in ([b"word " * 20], [b"word " * 50, b"word " * 400]):
        together = embed(way, [b"She moved to the coast.", *others])
        assert np.abs(together[0] - alone[0]).max() <= 1e-5


@pytest.mark.parametrize("way", EVERY)
def test_token_count_is_counted_after_the_cut(way: str, embed: Embed) -> None:
    assert embed(way, [b"", b"Thanks!", b"word " * 400], output="token_count").tolist() == [[2], [4], [256]]


@pytest.mark.parametrize("way", EVERY)
def test_a_bad_request_fails_alone(
    way: str, embed: Embed, alone: Callable[..., Any], texts: Sequence[bytes], server: EmbeddedServer
) -> None:
    """A token the model does not know, and wrong shapes, each among good requests."""
    own = alone(texts[:30])
    bad = [
        (_raw([1, 1], [b"far <beyond> it"]), "the token id 30522, outside the model's vocabulary of 30522"),
        (_raw([2], [b"a", b"b"]), "unexpected shape for input 'text'"),
        (_raw([9, 1], [b"a"] * 9), "batch-size must be <= 8"),
        (_raw([1, 1], [b"a", b"b"]), "unexpected number of string elements 2"),
        (_raw([1, 2], [b"a", b"b"]), "unexpected shape for input 'text'"),
    ]

    def ask(number: int) -> Any:
        if number % 3 == 2:
            return _post(server, way, *bad[number // 3 % len(bad)][0])
        return embed(way, [texts[number]])[0]

    embed(way, [b"warm"])
    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(ask, range(30)))
    for number, answer in enumerate(answers):
        if number % 3 == 2:
            assert answer[0] == 400 and bad[number // 3 % len(bad)][1] in answer[1]
        else:
            assert np.abs(answer - own[number]).max() <= 1e-5


def test_what_only_the_model_refuses_and_what_is_no_utf8_fails_alone_too(
    embed: Embed, texts: Sequence[bytes], server: EmbeddedServer, text_repository: Path
) -> None:
    """A step that is told of a larger vocabulary lets the bad id through; the merged call then fails as a whole."""
    file = text_repository / "merged" / "1" / "text.json"
    before = file.read_text()
    embed("merged", [b"warm"])
    file.write_text(json.dumps({**json.loads(before), "invalid_utf8": "reject", "vocabulary": 40_000}))
    bad = {1: b"caf\xe9", 6: b"far <beyond> it"}
    try:
        server.load("merged")
        asked = [_raw([1, 1], [bad.get(number % 8, texts[number])]) for number in range(32)]
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda one: _post(server, "merged", *one), asked))
    finally:
        file.write_text(before)
        server.load("merged")
    assert [status == 200 for status, _ in answers] == [number % 8 not in bad for number in range(32)]
    assert "the text is not UTF-8: unexpected end of data at byte 3" in answers[1][1]
    assert "indices element out of data bounds, idx=30522" in answers[6][1]


@pytest.mark.long
def test_a_broken_length_prefix_fails_alone_in_a_step_that_does_not_batch(
    embed: Embed, texts: Sequence[bytes], server: EmbeddedServer, text_repository: Path
) -> None:
    """Triton's own check lets it pass, and its Python backend then fails a whole batch."""
    embed("bucketed", [b"warm"])
    batching, config = (read_config(text_repository / "bucketed_tokenizer") for _ in range(2))
    config.ClearField("dynamic_batching")
    shape, data = _raw([1, 1], [b"abc"])
    asked = [(shape, data[:-1]) if number % 8 == 4 else _raw([1, 1], [texts[number]]) for number in range(64)]
    try:
        server.load("bucketed_tokenizer", config)
        with ThreadPoolExecutor(64) as pool:
            answers = list(pool.map(lambda one: _post(server, "bucketed", *one), asked))
    finally:
        server.load("bucketed_tokenizer", batching)
    assert [status for status, _ in answers] == [400 if number % 8 == 4 else 200 for number in range(64)]


def _raw(shape: list[int], elements: Sequence[bytes]) -> tuple[list[int], bytes]:
    return shape, b"".join(struct.pack("<I", len(element)) + element for element in elements)


def _post(server: EmbeddedServer, model: str, shape: list[int], data: bytes) -> tuple[int, str]:
    """Whatever bytes, as no client library would send them."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    connection = HTTPConnection(server.http_url, timeout=30)
    headers = {"Inference-Header-Content-Length": str(len(head))}
    connection.request("POST", f"/v2/models/{model}/infer", head + data, headers)
    response = connection.getresponse()
    answer = response.status, response.read().decode(errors="replace")
    connection.close()
    return answer
