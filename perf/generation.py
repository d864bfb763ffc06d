"""Generated text as it streams from a decoupled model: who waited how long, token by token. Layer: perf, over gRPC."""

from __future__ import annotations

import json
import queue
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tooling.errors import ExternalError, MissingError, Refused

_FLAGS = dict.fromkeys(
    ("stream", "exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens"), True
)
_SILENCE_S = 120.0


class Ask(NamedTuple):
    """A prompt, and how many tokens shall follow it whatever they are."""

    prompt: str
    tokens: int


@dataclass(slots=True)
class Answer:
    """When a request came up, when it was sent, and the time and number of the tokens of each response; in seconds from
    the start of the run. `prompt` is its length in tokens."""

    due_s: float
    prompt: int = 0
    sent_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(self.counts)

    @property
    def ttft_s(self) -> float:
        """From the time the request came up to its first token, waiting before it was sent included."""
        return self.times_s[0] - self.due_s

    @property
    def latency_s(self) -> float:
        """From the time the request came up to its last token."""
        return self.times_s[-1] - self.due_s

    @property
    def itl_s(self) -> float | None:
        """Mean time between tokens; None of a single response."""
        later = self.tokens - self.counts[0]
        return (self.times_s[-1] - self.times_s[0]) / later if later else None


class Heard(NamedTuple):
    """One response: when it came, to which request, its prompt's tokens and its own, and whether it was the last."""

    at_s: float
    number: int
    prompt: int
    tokens: int
    last: bool


class Stream:
    """One gRPC stream to a model with the tensors of Triton's vLLM backend; many requests share it."""

    def __init__(self, url: str, model: str) -> None:
        import tritonclient.grpc as grpc

        self._grpc, self._url, self._model = grpc, url, model
        self._heard: queue.SimpleQueue[tuple[float, Any, Any]] = queue.SimpleQueue()
        self._client = grpc.InferenceServerClient(url)
        try:
            ready = self._client.is_model_ready(model)
        except grpc.InferenceServerException as error:
            raise MissingError("no Triton server answers here", where=url, got=error) from None
        if not ready:
            raise MissingError("the server does not serve the model", where=url, got=f"`{model}`")
        self._client.start_stream(self._hear)

    def _hear(self, result: Any, error: Any) -> None:
        self._heard.put((time.perf_counter(), result, error))

    def send(self, number: int, ask: Ask, sampling: dict[str, Any]) -> None:
        wanted = json.dumps(_sampling(ask, sampling))
        inputs = [self._input("text_input", ask.prompt), self._input("sampling_parameters", wanted)]
        inputs += [self._input(name, flag) for name, flag in _FLAGS.items()]
        self._client.async_stream_infer(self._model, inputs, request_id=str(number), enable_empty_final_response=True)

    def next(self, timeout_s: float) -> Heard | None:
        """The next response; None when none came in time.

        Raises Refused with the server's words, ExternalError when it is gone.
        """
        try:
            at, result, error = self._heard.get(timeout=max(timeout_s, 1e-4))
        except queue.Empty:
            return None
        if error is not None:
            kind = ExternalError if "UNAVAILABLE" in str(error.status()) else Refused
            raise kind(error.message(), where=f"`{self._model}` at {self._url}")
        response = result.get_response()
        sizes = [result.as_numpy(f"num_{kind}_tokens") for kind in ("input", "output")]
        prompt, tokens = (0 if size is None else int(size.sum()) for size in sizes)
        return Heard(at, int(response.id), prompt, tokens, response.parameters["triton_final_response"].bool_param)

    def close(self) -> None:
        """Requests in flight are given up."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def _input(self, name: str, value: str | bool) -> Any:
        import numpy as np

        tensor = self._grpc.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
        flat = np.array([value]) if isinstance(value, bool) else np.array([value.encode()], dtype=np.object_)
        tensor.set_data_from_numpy(flat)
        return tensor


def _sampling(ask: Ask, more: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": ask.tokens, "ignore_eos": True, "temperature": 0, **more}


@contextmanager
def stream(url: str, model: str) -> Iterator[Stream]:
    one = Stream(url, model)
    try:
        yield one
    finally:
        one.close()


def generate(
    url: str,
    model: str,
    asks: Sequence[Ask],
    *,
    due_s: Sequence[float] | None = None,
    clients: int | None = None,
    whole_batches: bool = False,
    sampling: dict[str, Any] | None = None,
) -> list[Answer]:
    """Ask for all of `asks`, each once it is due and fewer than `clients` are in flight. Without times a request is due
    when the client that sends it is idle: a closed loop.

    With `whole_batches` none is sent before all of the batch before are answered: static batching of generations.
    Raises what Stream does.
    """
    answers = [Answer(due) for due in due_s or [0.0] * len(asks)]
    idle_s: deque[float] = deque()
    with stream(url, model) as line:
        begin, sent, in_flight = time.perf_counter(), 0, 0
        while sent < len(asks) or in_flight:
            now = time.perf_counter() - begin
            open_ = not whole_batches or in_flight == 0
            while open_ and sent < len(asks) and answers[sent].due_s <= now and in_flight < (clients or len(asks)):
                answers[sent].sent_s = time.perf_counter() - begin
                if due_s is None:
                    answers[sent].due_s = idle_s.popleft() if idle_s else answers[sent].sent_s
                line.send(sent, asks[sent], sampling or {})
                sent, in_flight = sent + 1, in_flight + 1
            free = sent < len(asks) and in_flight < (clients or len(asks)) and (not whole_batches or not in_flight)
            heard = line.next(answers[sent].due_s - now if free else _SILENCE_S)
            if heard is None:
                if not free:
                    raise ExternalError("the server stopped answering", where=url, got=f"nothing for {_SILENCE_S:g} s")
                continue
            if heard.tokens:
                answers[heard.number].prompt = heard.prompt
                answers[heard.number].times_s.append(heard.at_s - begin)
                answers[heard.number].counts.append(heard.tokens)
            if heard.last:
                in_flight -= 1
                idle_s.append(heard.at_s - begin)
    return answers
