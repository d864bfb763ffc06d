"""The models around a TensorRT-LLM engine on the real server, with one that answers known tokens in its place."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tooling.server import EmbeddedServer

pytestmark = pytest.mark.live

ENGINE = '''
"""Says the prompt's tokens again, from the last to the first: what an engine answers is known then."""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            given = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
            prompt = given["input_ids"][: int(given["input_lengths"][0])]
            answer = prompt[::-1][: int(given["request_output_len"][0])]
            parts = [[token] for token in answer] if given["streaming"][0] else [answer]
            sender = request.get_response_sender()
            for part in parts:
                ids = pb_utils.Tensor("output_ids", np.array([[part]], np.int32))
                length = pb_utils.Tensor("sequence_length", np.array([[len(part)]], np.int32))
                sender.send(pb_utils.InferenceResponse([ids, length]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
TEXT = "batches of tokens, größer 漢字"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, minilm_dir: Path, runtime: Any) -> Iterator[EmbeddedServer]:
    """The set as gen-config writes it, the engine's model replaced."""
    from tooling.cli import main

    root = tmp_path_factory.mktemp("trtllm")
    llm = root / "llm"
    llm.mkdir()
    figures = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 30522}
    (llm / "config.json").write_text(json.dumps({**figures, "eos_token_id": 102, "max_position_embeddings": 512}))
    (llm / "tokenizer.json").write_bytes((minilm_dir / "tokenizer.json").read_bytes())
    asked = ["--llm", str(llm), "--backend", "tensorrtllm", "--gpu-memory", "8GiB", "--streams", "4", "--form", "bls"]
    assert main(["gen-config", str(root / "repository" / "text"), *asked, "--release", "24.10", "-q"]) == 0
    engine = root / "repository" / "text_engine"
    config = (engine / "config.pbtxt").read_text().replace('backend: "tensorrtllm"', 'backend: "python"')
    (engine / "config.pbtxt").write_text(config)
    (engine / "1" / "model.py").write_text(ENGINE)
    with EmbeddedServer(root / "repository", runtime) as server:
        for name in ("text_preprocessing", "text_postprocessing", "text_engine", "text"):
            server.load(name)
        yield server


@pytest.fixture
def ask(served: EmbeddedServer) -> Callable[..., list[str]]:
    """The pieces of text that the model answers."""
    import tritonclient.grpc as triton

    def run(text: bytes, max_tokens: int, *, stream: bool = False) -> list[str]:
        pieces: list[str] = []
        errors: list[str] = []
        done = threading.Event()

        def receive(result: Any, error: Any) -> None:
            if error is not None:
                errors.append(str(error))
                done.set()
                return
            found = result.as_numpy("text_output")
            pieces.extend([] if found is None else [piece.decode() for piece in found.reshape(-1)])
            if result.get_response().parameters["triton_final_response"].bool_param:
                done.set()

        inputs = []
        for name, array, kind in (
            ("text_input", np.array([[text]], np.object_), "BYTES"),
            ("max_tokens", np.array([[max_tokens]], np.int32), "INT32"),
            ("stream", np.array([[stream]]), "BOOL"),
        ):
            inputs.append(triton.InferInput(name, [1, 1], kind))
            inputs[-1].set_data_from_numpy(array)
        with triton.InferenceServerClient(served.grpc_url) as client:
            client.start_stream(receive)
            client.async_stream_infer("text", inputs, enable_empty_final_response=True)
            assert done.wait(20)
            client.stop_stream()
        if errors:
            raise RuntimeError(errors[0])
        return pieces

    return run


@pytest.fixture(scope="module")
def backwards(minilm_dir: Path) -> Callable[[str], str]:
    """What the tokens of a text say from the last to the first."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_dir / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda text: tokenizer.decode(tokenizer.encode(text).ids[::-1], skip_special_tokens=True)


def test_text_goes_in_and_comes_out(ask: Callable[..., list[str]], backwards: Callable[[str], str]) -> None:
    assert ask(TEXT.encode(), 100) == [backwards(TEXT)]


def test_a_stream_says_the_same_in_pieces(ask: Callable[..., list[str]], backwards: Callable[[str], str]) -> None:
    pieces = ask(TEXT.encode(), 100, stream=True)
    assert len(pieces) > 5
    assert "".join(pieces) == backwards(TEXT)


def test_the_length_is_kept(ask: Callable[..., list[str]]) -> None:
    """Of [CLS] a b c [SEP] from behind: the special token says nothing, then come the others."""
    assert ask(b"one two three", 2) == ["three"]
    assert ask(b"one two three", 3) == ["three two"]


def test_what_is_no_text_is_refused(ask: Callable[..., list[str]]) -> None:
    with pytest.raises(RuntimeError, match="no UTF-8"):
        ask(b"\xff\xfe", 4)
    assert ask(b"still here", 2) == ["here"]
