"""A model is unloaded when its answers have left and their streams are closed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tooling.errors import ExternalError
from tooling.server import EmbeddedServer

pytestmark = pytest.mark.live

CONFIG = """
backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for i in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([i], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def repository(tmp_path: Path, add_model: Callable[..., Path]) -> Path:
    add_model(tmp_path, "counts", CONFIG, {"1/model.py": MODEL})
    return tmp_path


@pytest.fixture
def answered() -> Iterator[Callable[[EmbeddedServer], Any]]:
    """A client whose stream is still open after all answers to four requests have come; closed at the end."""
    import numpy as np
    import tritonclient.grpc as grpc

    made: list[Any] = []

    def ask(server: EmbeddedServer) -> Any:
        heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        made.append(grpc.InferenceServerClient(server.grpc_url))
        made[-1].start_stream(lambda result, error: heard.put((result, error)))
        x = grpc.InferInput("x", [1], "FP32")
        x.set_data_from_numpy(np.zeros(1, np.float32))
        for _ in range(4):
            made[-1].async_stream_infer("counts", [x], enable_empty_final_response=True)
        last = 0
        while last < 4:
            result, error = heard.get(timeout=30)
            assert error is None, error
            last += result.get_response().parameters["triton_final_response"].bool_param
        return made[-1]

    yield ask
    for client in made:
        client.close()


@pytest.mark.long
def test_it_goes_at_once_where_streams_are_closed(
    start: Callable[..., EmbeddedServer], repository: Path, answered: Callable[[EmbeddedServer], Any]
) -> None:
    with start(repository, load_timeout_s=20) as server:
        for _ in range(5):
            server.load("counts")
            answered(server).stop_stream()
            server.unload("counts")


@pytest.mark.long
def test_an_open_stream_keeps_it(
    start: Callable[..., EmbeddedServer], repository: Path, answered: Callable[[EmbeddedServer], Any]
) -> None:
    with start(repository, load_timeout_s=20) as server:
        server.load("counts")
        client = answered(server)
        unloading = threading.Thread(target=server.unload, args=("counts",))
        unloading.start()
        unloading.join(2)
        assert unloading.is_alive(), "Triton lets go of it by itself now: docs/llm.md says otherwise"
        client.stop_stream()
        unloading.join(20)
        assert not unloading.is_alive()
        assert server.alive()


@pytest.mark.long
def test_what_keeps_it_is_said(
    start: Callable[..., EmbeddedServer], repository: Path, answered: Callable[[EmbeddedServer], Any]
) -> None:
    with start(repository, load_timeout_s=5) as server:
        server.load("counts")
        answered(server)
        with pytest.raises(ExternalError, match="did not answer within 5 s") as raised:
            server.unload("counts")
    assert "close the gRPC streams of its clients" in str(raised.value.problems[0].hint)
