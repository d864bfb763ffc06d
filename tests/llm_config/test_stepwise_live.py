"""The example of continuous batching in Triton's own core, on the real server: who shares a step with whom."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tooling.config.render import parse
from tooling.server import EmbeddedServer

pytestmark = pytest.mark.live
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "stepwise"
STEP_S = 0.03
IDLE_S = 2


class Streams:
    """Sequences over one gRPC stream: `begin` starts one, `end` waits for its letters."""

    def __init__(self, url: str, model: str) -> None:
        import tritonclient.grpc as triton

        self._triton, self._model, self.answers = triton, model, {}
        self._client = triton.InferenceServerClient(url)
        self._arrived = threading.Condition()
        self._client.start_stream(self._receive)

    def _receive(self, result: Any, error: Any) -> None:
        with self._arrived:
            if error is not None:
                self.answers.setdefault("error", []).append(str(error))
            else:
                answer = result.get_response()
                done = answer.parameters["triton_final_response"].bool_param
                names = [] if result.as_numpy("TOKEN") is None else ["TOKEN", "STEP", "SHARED"]
                row = tuple(result.as_numpy(name).item() for name in names)
                self.answers.setdefault(answer.id, []).extend([row] if row else [])
                if done:
                    self.answers.setdefault("done", []).append(answer.id)
            self._arrived.notify_all()

    def begin(self, name: str, letters: int, prompt: bytes = b"a") -> None:
        inputs = []
        for tensor, array, kind in (
            ("PROMPT", np.array([[prompt]], np.object_), "BYTES"),
            ("MAX_TOKENS", np.array([[letters]], np.int32), "INT32"),
        ):
            inputs.append(self._triton.InferInput(tensor, [1, 1], kind))
            inputs[-1].set_data_from_numpy(array)
        self._client.async_stream_infer(self._model, inputs, request_id=name, enable_empty_final_response=True)

    def wait(self, *names: str, letters: int | None = None, seconds: float = 20) -> None:
        """Until these have so many letters, or are done."""

        def reached(name: str) -> bool:
            return (
                name in self.answers.get("done", []) if letters is None else len(self.answers.get(name, [])) >= letters
            )

        with self._arrived:
            assert self._arrived.wait_for(lambda: "error" in self.answers or all(map(reached, names)), seconds)
        assert "error" not in self.answers, self.answers["error"]

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, runtime: Any) -> Iterator[EmbeddedServer]:
    repository = tmp_path_factory.mktemp("stepwise") / "repository"
    shutil.copytree(EXAMPLE, repository / "stepwise")
    slow = parse((EXAMPLE / "config.pbtxt").read_text(), "example")
    slow.parameters["step_ms"].string_value = str(round(1000 * STEP_S))
    spoil(shutil.copytree(EXAMPLE, repository / "ends_itself") / "1" / "model.py")
    with EmbeddedServer(repository, runtime) as running:
        running.load("stepwise", slow)
        slow.sequence_batching.max_sequence_idle_microseconds = IDLE_S * 1_000_000
        running.load("ends_itself", slow)
        yield running


def spoil(model: Path) -> None:
    """End cancelled sequences in the model, which the core does not take for the end of the sequence."""
    put_back = "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)"
    ended = "request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"
    before, found, after = model.read_text().partition(put_back)
    assert found
    model.write_text(before + ended + after)


@pytest.fixture
def streams(server: EmbeddedServer) -> Iterator[Streams]:
    opened = Streams(server.grpc_url, "stepwise")
    yield opened
    opened.close()


def test_sequences_join_and_leave_between_steps(streams: Streams) -> None:
    """A long one runs alone, a short one joins and leaves, and the long one goes on as if nothing had been."""
    streams.begin("long", 60)
    streams.wait("long", letters=5)
    streams.begin("short", 10)
    streams.wait("short")
    assert "long" not in streams.answers["done"], "the short one did not wait for the long one"
    streams.wait("long")
    long, short = streams.answers["long"], streams.answers["short"]
    assert (len(long), len(short)) == (60, 10)
    steps = [step for _, step, _ in short]
    shared = {step for _, step, _ in long} & set(steps)
    assert shared == set(steps), "no step of the short one goes without the long one"
    assert {together for _, step, together in long if step in shared} == {2}
    assert {together for _, step, together in long if step < steps[0] or step > steps[-1]} == {1}
    assert long[0][1] < steps[0] <= steps[-1] < long[-1][1]


def test_a_place_that_is_left_goes_to_who_waits(streams: Streams) -> None:
    """Six at once, four places: never more than four in a step, and all get every letter."""
    wanted = {"a": 40, "b": 40, "c": 40, "d": 8, "e": 6, "f": 6}
    for name, letters in wanted.items():
        streams.begin(name, letters)
    streams.wait(*wanted)
    assert {name: len(streams.answers[name]) for name in wanted} == wanted
    assert max(together for name in wanted for _, _, together in streams.answers[name]) == 4
    first = {name: streams.answers[name][0][1] for name in wanted}
    last = {name: streams.answers[name][-1][1] for name in wanted}
    assert min(first["e"], first["f"]) > last["d"], "the fifth began when the first place was left"
    assert max(last["e"], last["f"]) < min(last["a"], last["b"], last["c"]), "and was done before the long ones"


def test_a_sequence_is_its_own_whoever_shares_its_steps(streams: Streams) -> None:
    streams.begin("alone", 8, prompt=b"the batch s")
    streams.wait("alone")
    for number in range(4):
        streams.begin(f"one of four {number}", 8, prompt=b"the batch s" if number == 2 else b"q")
    streams.wait(*(f"one of four {number}" for number in range(4)))
    letters = {name: b"".join(row[0] for row in rows) for name, rows in streams.answers.items() if name != "done"}
    assert letters["one of four 2"] == letters["alone"] != letters["one of four 1"]


@pytest.mark.parametrize("letters", [1, 2, 3, 8])
def test_cancelled_sequences_leave_their_places(server: EmbeddedServer, streams: Streams, letters: int) -> None:
    """Four that would take minutes are cancelled with their stream: the next four begin at once, together."""
    long, names = Streams(server.grpc_url, "stepwise"), "0123"
    for name in names:
        long.begin(name, 10_000)
    long.wait(*names, letters=letters)
    time.sleep(STEP_S * letters / 8)  # at another moment of the step each time
    long.close()
    began = time.monotonic()
    for name in names:
        streams.begin(name, 12)
    streams.wait(*names)
    assert time.monotonic() - began < 12 * STEP_S + 5
    assert max(together for _, _, together in streams.answers["0"]) == 4, "no place is lost"


def test_a_client_may_hang_up_at_its_last_letter(server: EmbeddedServer, streams: Streams) -> None:
    """A cancellation between the last answer and the end of the step would cost the place."""
    for _ in range(6):
        short = Streams(server.grpc_url, "stepwise")
        for name in "0123":
            short.begin(name, 2)
        short.wait(*"0123", letters=2)
        short.close()
    for name in "0123":
        streams.begin(name, 12)
    streams.wait(*"0123")
    assert max(together for _, _, together in streams.answers["0"]) == 4, "no place is lost"


def test_a_place_that_the_core_holds_is_back_when_it_counts_as_idle(server: EmbeddedServer) -> None:
    """What `max_sequence_idle_microseconds` bounds: places of cancelled sequences that the model ended itself."""
    long, later = Streams(server.grpc_url, "ends_itself"), Streams(server.grpc_url, "ends_itself")
    for name in "0123":
        long.begin(name, 10_000)
    long.wait(*"0123", letters=2)
    long.close()
    time.sleep(IDLE_S + 1)
    for name in "0123":
        later.begin(name, 12)
    later.wait(*"0123")
    later.close()
    assert max(together for _, _, together in later.answers["0"]) == 4


def test_who_waits_long_for_a_place_gets_every_letter(streams: Streams) -> None:
    """Longer than a second, after which the core's own default drops a sequence as it begins."""
    for name in ("a", "b", "c", "d"):
        streams.begin(name, 60)
    streams.wait("a", letters=1)
    for name in ("e", "f", "g", "h"):
        streams.begin(name, 6)
    streams.wait(*"abcdefgh")
    assert [len(streams.answers[name]) for name in "efgh"] == [6] * 4


def test_the_example_passes_the_check(run_cli: Any, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "repository" / "stepwise")
    result = run_cli("check", tmp_path / "repository", "--fail-on", "warning")
    assert result.code == 0, result.out
