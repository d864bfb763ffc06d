"""The asyncio client against a real server: padding, texts, retries, deadlines, priorities, a trial's share."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.client import Client, Split
from tooling.errors import ExternalError, Refused, UsageError
from tooling.server import EmbeddedServer, ServerOptions

pytestmark = pytest.mark.live

MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        {work}
        answers = []
        for request in requests:
            outputs = [pb_utils.Tensor({pairs})]
            answers.append(pb_utils.InferenceResponse(outputs))
        return answers
"""
X = 'pb_utils.get_input_tensor_by_name(request, "x").as_numpy()'
ECHO = f'"y", {X}'
WIDTH = f'"y", {X} * 0 + {X}.shape[1]'
GATE = """while not __import__("os").path.exists({!r}):
            time.sleep(0.002)"""
CONFIG = """
backend: "python"
max_batch_size: 4
input [ {{ name: "x" data_type: {kind} dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: {kind} dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
FULL = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
LEVELS = """dynamic_batching { priority_levels: 2 default_priority_level: 2 max_queue_delay_microseconds: 0
  default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 10000000 } }"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While this file is not there, the model `levels` answers nothing."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, runtime: Any, gate: Path) -> Iterator[EmbeddedServer]:
    repository = tmp_path_factory.mktemp("clients")
    for name, work, kind, more in (
        ("echo", "pass", "TYPE_INT64", "dynamic_batching {}"),
        ("width", "pass", "TYPE_INT64", ""),
        ("echo.next", "pass", "TYPE_INT64", "version_policy { specific { versions: [7] } }"),
        ("words", "pass", "TYPE_STRING", ""),
        ("full", "time.sleep(0.15)", "TYPE_INT64", FULL),
        ("levels", GATE.format(str(gate)), "TYPE_INT64", LEVELS),
    ):
        version = repository / name / ("7" if "7" in more else "1")
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL.format(work=work, pairs=WIDTH if name == "width" else ECHO))
        config = CONFIG.format(kind=kind) + more
        (repository / name / "config.pbtxt").write_text(
            config.replace("size: 4", "size: 1") if work != "pass" else config
        )
    with EmbeddedServer(repository, runtime, ServerOptions(strict_config=True)) as running:
        for name in running.models():
            running.load(name)
        yield running


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


async def ask(server: EmbeddedServer, model: str, value: Any, options: dict[str, Any] | None = None, **how: Any) -> Any:
    async with Client(server.grpc_url, model, **(options or {})) as client:
        return await client.infer({"x": value}, **how)


def test_an_answer_has_its_values_and_names_its_version(server: EmbeddedServer) -> None:
    answer = run(ask(server, "echo", np.array([[5, 6, 7]])))
    assert (answer.model, answer.version, answer["y"].tolist()) == ("echo", "1", [[5, 6, 7]])
    assert run(ask(server, "words", [["größe", "", "b"]]))["y"].tolist() == [["größe".encode(), b"", b"b"]]


def test_texts_are_padded_with_empty_ones_and_pads_must_fit(server: EmbeddedServer) -> None:
    rows = [["a", "b"], ["c"]]
    assert run(ask(server, "words", rows))["y"].tolist() == [[b"a", b"b"], [b"c", b""]]
    assert run(ask(server, "words", rows, {"edges": (4,), "pad": {"x": "-"}}))["y"].tolist() == [
        [b"a", b"b"],
        [b"c", b"-"],
    ]
    for model, value, pad in (
        ("words", [["\ud800"]], ""),
        ("words", [["a"]], 0),
        ("echo", [[1]], 1.5),
        ("echo", [[1]], "-"),
    ):
        with pytest.raises(UsageError, match="an input cannot take these values") as raised:
            run(ask(server, model, value, {"pad": {"x": pad}}))
        assert raised.value.problems[0].where == f"`{model}`, input `x`"


def test_rows_are_padded_to_the_next_edge_and_answers_cut_back(server: EmbeddedServer) -> None:
    seen = run(ask(server, "echo", [[1, 2, 3], [4]], {"pad": {"x": -1}}))
    assert seen["y"].tolist() == [[1, 2, 3], [4, -1, -1]], "to the longest row where there are no edges"
    answer = run(ask(server, "echo", [[1, 2, 3], [4]], {"edges": (8, 4), "pad": {"x": -1}}))
    assert answer["y"].tolist() == [[1, 2, 3], [4, -1, -1]]
    for rows, width in (([[1, 2, 3], [4]], 4), ([[0] * 4], 4), ([[0] * 5], 8)):
        sent = run(ask(server, "width", rows, {"edges": (8, 4)}))["y"]
        assert (sent.shape[1], set(sent.flat)) == (max(map(len, rows)), {width}), "the server sees the edge"
    with pytest.raises(UsageError, match="longer than the last edge") as raised:
        run(ask(server, "echo", [[0] * 9], {"edges": (4, 8)}))
    assert raised.value.problems[0].expected == "at most 8"


def test_a_full_queue_is_asked_again_after_a_pause(server: EmbeddedServer) -> None:
    async def crowd(attempts: int) -> list[Any]:
        async with Client(server.grpc_url, "full", attempts=attempts) as client:
            asked = (client.infer({"x": [[n]]}) for n in range(6))
            return await asyncio.gather(*asked, return_exceptions=True)

    once = run(crowd(1))
    refused = [error for error in once if isinstance(error, ExternalError)]
    assert 1 <= len(refused) < 6
    assert all("Exceeds maximum queue size" in str(error) for error in refused)
    answers = run(crowd(40))
    assert [answer["y"].tolist() for answer in answers] == [[[n]] for n in range(6)]


def test_the_deadline_holds_for_all_attempts_together(server: EmbeddedServer) -> None:
    """An answer takes 0.15 s, and ten one after the other 1.5 s: without the deadline each would come."""
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        run(ask(server, "full", [[1]], timeout_s=0.05))

    async def crowd() -> list[Any]:
        async with Client(server.grpc_url, "full", attempts=1_000) as client:
            asked = (client.infer({"x": [[n]]}, timeout_s=0.4) for n in range(10))
            return await asyncio.gather(*asked, return_exceptions=True)

    failed = [error for error in run(crowd()) if isinstance(error, Exception)]
    assert failed
    assert {type(error) for error in failed} <= {TimeoutError, ExternalError}


def test_asking_what_the_model_takes_is_part_of_the_deadline(server: EmbeddedServer) -> None:
    with pytest.raises(TimeoutError, match="`echo`: no answer within 1e-06 s"):
        run(ask(server, "echo", [[1]], timeout_s=1e-6))


async def waiting(server: EmbeddedServer, count: int) -> None:
    """Until so many requests wait in the queue of `levels`."""
    line = re.compile(r'^nv_inference_pending_request_count\{model="levels",version="1"\} (\d+)', re.MULTILINE)
    deadline = time.monotonic() + 20
    while int(line.findall(server.metrics())[0]) != count:
        assert time.monotonic() < deadline, line.findall(server.metrics())
        await asyncio.sleep(0.01)


def test_priorities_overtake_and_queue_timeouts_end_waiting(server: EmbeddedServer, gate: Path) -> None:
    """One request computes and up to two more are handed to the instance already: those are not overtaken."""

    async def crowd() -> list[str]:
        done: list[str] = []
        async with Client(server.grpc_url, "levels") as client:

            async def one(name: str, **how: int) -> None:
                await client.infer({"x": [[1]]}, **how)
                done.append(name)

            gate.unlink(missing_ok=True)
            asked = [asyncio.create_task(one("low")) for _ in range(6)]
            await waiting(server, 5)
            asked.append(asyncio.create_task(one("high", priority=1)))
            await waiting(server, 6)
            gate.touch()
            await asyncio.gather(*asked)
        return done

    assert run(crowd()).index("high") < 4, "it does not wait for all that came before it"

    async def late() -> list[Any]:
        async with Client(server.grpc_url, "levels", attempts=1) as client:
            gate.unlink()
            asked = [asyncio.create_task(client.infer({"x": [[1]]})) for _ in range(4)]
            await waiting(server, 3)
            asked.append(asyncio.create_task(client.infer({"x": [[1]]}, queue_timeout_us=1_000)))
            await waiting(server, 4)
            gate.touch()
            return await asyncio.gather(*asked, return_exceptions=True)

    (expired,) = (error for error in run(late()) if isinstance(error, Exception))
    assert "Request timeout expired" in str(expired)


def test_a_trial_gets_its_share_and_hands_requests_back_when_it_is_gone(server: EmbeddedServer, tmp_path: Path) -> None:
    async def many(split: Any, count: int = 400, key: str | None = None) -> Counter[tuple[str, str]]:
        async with Client(server.grpc_url, "echo", split=split) as client:
            answers = await asyncio.gather(*(client.infer({"x": [[1]]}, key=key) for _ in range(count)))
        return Counter((answer.model, answer.version) for answer in answers)

    seen = run(many(Split("echo", "echo.next", 25)))
    assert set(seen) == {("echo", "1"), ("echo.next", "7")}
    assert 40 < seen["echo.next", "7"] < 160
    assert len(run(many(Split("echo", "echo.next", 50), 50, key="user 17"))) == 1, "a key stays on its side"
    assert set(run(many(Split("echo", "gone", 50)))) == {("echo", "1")}

    file = tmp_path / "split.json"
    assert set(run(many(file, 20))) == {("echo", "1")}, "no file, no trial"
    file.write_text(json.dumps({"model": "echo", "candidate": "echo.next", "percent": 100}))
    assert set(run(many(file, 20))) == {("echo.next", "7")}

    async def followed() -> list[str]:
        """A change of the file is seen within two seconds; half a file changes nothing."""
        answers = []
        async with Client(server.grpc_url, "echo", split=file) as client:
            for text in (None, '{"model": "ec', ""):
                if text is not None:
                    file.write_text(text)
                    os.utime(file, (time.time() + 9, time.time() + 9))
                    await asyncio.sleep(1.1)
                answers.append((await client.infer({"x": [[1]]})).model)
            file.unlink()
            await asyncio.sleep(1.1)
            answers.append((await client.infer({"x": [[1]]})).model)
        return answers

    assert run(followed()) == ["echo.next", "echo.next", "echo.next", "echo"]


def test_what_is_wrong_is_told_in_the_server_s_or_in_plain_words(server: EmbeddedServer) -> None:
    with pytest.raises(UsageError, match="the model has no such input") as raised:
        run(ask_other(server, {"X": [[1]]}))
    assert raised.value.problems[0].expected == "x"
    with pytest.raises(Refused, match="batch"):
        run(ask(server, "echo", [[1]] * 9))
    with pytest.raises(ExternalError, match="unknown model"):
        run(ask(server, "no such model", [[1]]))

    async def nobody() -> Any:
        async with Client("127.0.0.1:1", "echo") as client:
            return await client.infer({"x": [[1]]}, timeout_s=5)

    with pytest.raises(ExternalError):
        run(nobody())


async def ask_other(server: EmbeddedServer, inputs: dict[str, Any]) -> Any:
    async with Client(server.grpc_url, "echo") as client:
        return await client.infer(inputs)
