"""Tiny models in versions of their own kind, a server that serves them, and clients that never stop asking."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tooling.server import EmbeddedServer, ServerOptions

CONFIG = """# what the users of this model agreed on
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching {}
"""
PYTHON = """
import json, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        {start}

    def execute(self, requests):
        {work}
        values = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", {result})]) for x in values]
"""


def onnx_model(path: Path, factor: float) -> None:
    """y = factor · x, FP32 [-1, 4]."""
    from onnx import TensorProto, helper, save

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [factor])
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "scale", tensors[:1], tensors[1:], [weight])
    path.parent.mkdir(parents=True, exist_ok=True)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.fixture
def scaled() -> Callable[..., Path]:
    """`scaled(repository, "scale", factor=2.0)`: a model directory whose answers are `factor` times the input."""

    def make(repository: Path, name: str = "scale", factor: float = 2.0, config: str = CONFIG) -> Path:
        directory = repository / name
        onnx_model(directory / "1" / "model.onnx", factor)
        (directory / "config.pbtxt").write_text(config)
        return directory

    return make


@pytest.fixture
def scripted() -> Callable[..., Path]:
    """The same by a Python model that may be slow, or refuse to start."""

    def make(
        repository: Path, name: str = "scale", start: str = "pass", work: str = "pass", result: str = "2 * x"
    ) -> Path:
        directory = repository / name
        (directory / "1").mkdir(parents=True)
        (directory / "1" / "model.py").write_text(PYTHON.format(start=start, work=work, result=result))
        (directory / "config.pbtxt").write_text(CONFIG.replace('"onnxruntime"', '"python"'))
        return directory

    return make


@pytest.fixture
def serving(runtime: Any) -> Callable[..., Any]:
    """`with serving(repository, "scale") as server`."""

    @contextmanager
    def start(repository: Path, *names: str, **options: Any) -> Iterator[EmbeddedServer]:
        with EmbeddedServer(repository, runtime, ServerOptions(**{"strict_config": True, **options})) as server:
            for name in names:
                server.load(name)
            yield server

    return start


class Traffic:
    """`connections` tasks that ask the model without pause, on a thread of their own."""

    def __init__(self, url: str, model: str, connections: int = 32, **options: Any) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.failed: list[str] = []
        self.slowest_s = 0.0
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(url, model, connections, options)))

    def __enter__(self) -> Traffic:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self.seen and not self.failed and time.monotonic() < deadline:
            time.sleep(0.01)
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._started
        self._stop.set()
        self._thread.join()

    def wait_for(self, model: str, version: str) -> None:
        """Until one more answer of this version has come."""
        before, deadline = self.seen[model, version], time.monotonic() + 30
        while self.seen[model, version] == before:
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.01)

    @property
    def answered(self) -> int:
        return sum(self.seen.values())

    async def _run(self, url: str, model: str, connections: int, options: dict[str, Any]) -> None:
        from perf.client import Client

        async with Client(url, model, **options) as client:
            await asyncio.gather(*(self._ask(client, number) for number in range(connections)))

    async def _ask(self, client: Any, number: int) -> None:
        import numpy as np

        x = np.full((1, 4), number + 1, np.float32)
        while not self._stop.is_set():
            begun = time.perf_counter()
            try:
                answer = await client.infer({"x": x}, timeout_s=30)
            except Exception as error:
                self.failed.append(repr(error))
                await asyncio.sleep(0.01)
                continue
            self.slowest_s = max(self.slowest_s, time.perf_counter() - begun)
            self.seen[answer.model, answer.version] += 1
            if answer["y"].shape != (1, 4) or not np.allclose(answer["y"] / x, 2, rtol=0.01):
                self.wrong.append(f"{answer['y']} for {number + 1}")


@pytest.fixture
def traffic() -> type[Traffic]:
    return Traffic


@pytest.fixture
def curve_file(tmp_path: Path) -> Path:
    """A service curve on disk: an execution takes 2 ms and 20 µs for each token of its rows."""
    from perf.curve import Batch, CurveRun, ServiceCurve, write_curve

    def run(rows: int, length: int) -> CurveRun:
        us = 2_000.0 + 20 * rows * length
        return CurveRun(
            threads=2,
            instances=1,
            clients=1,
            rows=rows,
            lengths=(length,),
            sent_us=tuple(n * us for n in range(8)),
            latency_us=(us,) * 8,
            batches=(Batch(rows=rows, executions=8, compute_us=us),),
        )

    runs = tuple(run(rows, length) for rows in (1, 8) for length in (16, 128))
    facts: dict[str, Any] = {"tool": {}, "server": {}, "host": {"cores": 2, "cpu": "a"}, "model": {"name": "enc"}}
    path = tmp_path / "measured.json"
    curve = ServiceCurve(**facts, started="2026-01-01", wall_s=1.0, lengths=(16, 128), runs=runs)
    write_curve(curve, path)
    return path
