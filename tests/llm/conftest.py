"""A tiny random Llama on the real vLLM behind the embedded server, and a client that streams from it."""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tooling.server import EmbeddedServer, ServerOptions

CONFIG = 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'
LOAD_TIMEOUT_S = 240
ANSWER_TIMEOUT_S = 60


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: two random layers, and a tokenizer with a token for each byte (0 is the end)."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    directory = tmp_path_factory.mktemp("llama")
    bytes_in_order = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"</s>": 0, **{symbol: number for number, symbol in enumerate(bytes_in_order, start=1)}}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.5,  # large, so that tokens differ and greedy choices are clear
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def add_llm(llama_dir: Path) -> Callable[..., Path]:
    """Put the Llama into a repository: `add_llm(repository, "llama", max_num_seqs=4)`; keywords are engine args."""

    def add(repository: Path, name: str, config: str = CONFIG, **arguments: Any) -> Path:
        version = repository / name / "1"
        version.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        small = {"model": str(llama_dir), "dtype": "float32", "max_model_len": 512, "max_num_seqs": 32}
        small["kv_cache_memory_bytes"] = 1 << 27
        (version / "model.json").write_text(json.dumps({**small, "enforce_eager": True, **arguments}))
        return repository / name

    return add


@pytest.fixture
def start(runtime: Any, left: Any) -> Iterator[Callable[..., EmbeddedServer]]:
    """Make servers; the test fails when anything of one is left at its end."""
    made: list[EmbeddedServer] = []

    def server(repository: Path, **options: Any) -> EmbeddedServer:
        made.append(EmbeddedServer(repository, runtime, ServerOptions(load_timeout_s=LOAD_TIMEOUT_S, **options)))
        return made[-1]

    yield server
    for one in made:
        assert left.of(one.run_id) == []


@pytest.fixture(scope="session")
def served(
    tmp_path_factory: pytest.TempPathFactory, add_llm: Callable[..., Path], runtime: Any
) -> Iterator[EmbeddedServer]:
    """One server with the model `llama` for all tests that leave it as it is; four sequences run at once."""
    repository = tmp_path_factory.mktemp("llm") / "repository"
    metrics = 'parameters { key: "REPORT_CUSTOM_METRICS" value { string_value: "true" } }\n'
    add_llm(repository, "llama", CONFIG + metrics, max_num_seqs=4)
    with EmbeddedServer(repository, runtime, ServerOptions(load_timeout_s=LOAD_TIMEOUT_S)) as server:
        server.load("llama")
        yield server


@pytest.fixture(scope="session")
def load_all() -> Callable[..., None]:
    """Load models at once, `load_all((server, "a"), (server, "b"))`: an engine starts on one core."""

    def load(*pairs: tuple[EmbeddedServer, str]) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda pair: pair[0].load(pair[1]), pairs))

    return load


@dataclass
class Stream:
    """What came back for one request: texts and token counts in order of arrival, and when it ended."""

    texts: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    error: str | None = None
    ended_s: float | None = None

    @property
    def tokens(self) -> int:
        return sum(self.counts)


class Client:
    """Requests over one gRPC stream."""

    def __init__(self, url: str, model: str = "llama") -> None:
        import tritonclient.grpc as grpc

        self._grpc, self._model = grpc, model
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._client = grpc.InferenceServerClient(url)
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))
        self.streams: dict[str, Stream] = {}

    def ask(self, prompt: str, *, stream: bool = True, extras: tuple[str, ...] = (), **sampling: Any) -> str:
        """Send a request and return its id."""
        name = str(len(self.streams))
        self.streams[name] = Stream()
        counted = ("return_num_output_tokens", "return_finish_reason", *extras)
        inputs = [self._input("text_input", prompt), self._input("sampling_parameters", json.dumps(sampling))]
        inputs += [self._input(flag, True) for flag in counted] + [self._input("stream", stream)]
        inputs += [self._input("exclude_input_in_output", True)]
        self._client.async_stream_infer(self._model, inputs, request_id=name, enable_empty_final_response=True)
        return name

    def wait(self, *names: str, first: bool = False) -> list[Stream]:
        """The streams of these requests (of all without names) once they have ended, or `first` have begun."""
        wanted = [self.streams[name] for name in names or self.streams]
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not all(one.ended_s is not None or (first and one.counts) for one in wanted):
            self._take(*self._answers.get(timeout=max(0.01, deadline - time.monotonic())))
        return wanted

    def close(self, cancel: bool = False) -> None:
        self._client.stop_stream(cancel_requests=cancel)
        self._client.close()

    def _input(self, name: str, value: str | bool) -> Any:
        import numpy as np

        tensor = self._grpc.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
        tensor.set_data_from_numpy(
            np.array(
                [value if isinstance(value, bool) else value.encode()],
                dtype=None if isinstance(value, bool) else np.object_,
            )
        )
        return tensor

    def _take(self, result: Any, error: Any) -> None:
        if error is not None:
            waiting = [one for one in self.streams.values() if one.ended_s is None]
            name = error.request_id() if hasattr(error, "request_id") else None
            one = self.streams.get(name or "", waiting[0])
            one.error, one.ended_s = str(error), time.monotonic()
            return
        response = result.get_response()
        one = self.streams[response.id]
        if result.as_numpy("text_output") is not None:
            one.texts.append(result.as_numpy("text_output")[0].decode())
            one.counts.append(int(result.as_numpy("num_output_tokens")[0]))
            one.reasons.append(result.as_numpy("finish_reason")[0].decode())
        if response.parameters["triton_final_response"].bool_param:
            one.ended_s = time.monotonic()


@pytest.fixture
def connect() -> Iterator[Callable[..., Client]]:
    """Open clients: `connect(server)`; closed, with their requests given up, at the end of the test."""
    made: list[Client] = []

    def client(server: EmbeddedServer, model: str = "llama") -> Client:
        made.append(Client(server.grpc_url, model))
        return made[-1]

    yield client
    for one in made:
        with contextlib.suppress(Exception):  # some tests end the server before
            one.close(cancel=True)
