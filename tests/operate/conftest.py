"""Tiny models in versions of their own kind, a server that serves them, and clients that never stop asking."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from perf.rollout.ledger import LOG, beside, read
from tooling.server import EmbeddedServer, ServerOptions

FAST = ("--skip", "slo", "--skip", "ab", "--hold", "0s")
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
    """`connections` tasks that ask the model, each again after `pause_s`, on a thread of their own. `seen` counts the
    answers by the model and version that they name; `factors` are how many times the input those answers were."""

    def __init__(self, url: str, model: str, connections: int = 32, pause_s: float = 0, **options: Any) -> None:
        self.seen: Counter[tuple[str, str]] = Counter()
        self.factors: defaultdict[tuple[str, str], set[float]] = defaultdict(set)
        self.wrong: list[str] = []
        self.failed: list[str] = []
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(url, model, connections, options)))

    def __enter__(self) -> Traffic:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self.seen and not self.failed and time.monotonic() < deadline:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
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
            try:
                answer = await client.infer({"x": x}, timeout_s=30)
            except Exception as error:
                self.failed.append(repr(error))
                await asyncio.sleep(0.01)
                continue
            named, y = (answer.model, answer.version), answer["y"]
            self.seen[named] += 1
            if y.shape != (1, 4) or not np.allclose(y / x, 2, rtol=0.01):
                self.wrong.append(f"{y} for {number + 1}")
            self.factors[named].add(round(float(y.flat[0]) / (number + 1), 3))
            if self._pause_s:
                await asyncio.sleep(self._pause_s)


@pytest.fixture
def traffic() -> type[Traffic]:
    return Traffic


class Stage:
    """A served model whose answers are twice its input, a candidate beside it, and clients that ask all the while."""

    def __init__(self, model: Path, candidate: Path, server: EmbeddedServer, clients: Any, run_cli: Any) -> None:
        self.model, self.candidate, self.server = model, candidate, server
        self.clients: Traffic = clients
        self.split = beside(model, "split.json")
        self._run_cli, self._url = run_cli, ("--url", server.http_url)
        self._begun: list[subprocess.Popen[str]] = []

    def end(self) -> None:
        """End what a test that failed has left running."""
        for process in self._begun:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, command: str, *argv: object, model: Path | None = None) -> Any:
        return self._run_cli(command, model or self.model, *self._url, *argv, "--json")

    def promote(self, *argv: object) -> Any:
        """`tritune promote` without the gates that measure; the version before is let go at once."""
        return self.run("promote", *FAST, *argv)

    def rollback(self) -> Any:
        return self.run("rollback")

    def watched(self, *argv: object) -> subprocess.Popen[str]:
        """A promotion in a process of its own, which has switched and watches."""
        return self.started(lambda: "promoted" in self.steps, *argv)

    def on_trial(self, percent: int, *argv: object) -> subprocess.Popen[str]:
        """A promotion in a process of its own, whose candidate has got this share."""
        return self.started(lambda: self.share == percent, *argv, "--percent", percent)

    def started(
        self, until: Callable[[], bool], *argv: object, skip: Iterable[str] = ("slo", "ab")
    ) -> subprocess.Popen[str]:
        """A promotion in a process of its own, which has come so far."""
        code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        code += "from tooling.cli import entry; entry()"
        gates = [word for name in skip for word in ("--skip", name)]
        words = ["promote", self.model, *self._url, *gates, "--hold", "60s", *argv]
        command = [sys.executable, "-c", code, *map(str, words)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._begun.append(process)
        deadline = time.monotonic() + 60
        while not until():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)
        return process

    @property
    def share(self) -> float:
        """The candidate's share by the split file."""
        with suppress(FileNotFoundError):
            return float(json.loads(self.split.read_text())["percent"])
        return 0

    @property
    def log(self) -> list[dict[str, Any]]:
        return read(beside(self.model, LOG))

    @property
    def steps(self) -> list[str]:
        return [entry["step"] for entry in self.log]

    @property
    def config(self) -> str:
        return (self.model / "config.pbtxt").read_text()

    @property
    def versions(self) -> list[str]:
        """The version directories of the model."""
        return sorted(entry.name for entry in self.model.iterdir() if entry.name.isdecimal())

    @property
    def files(self) -> list[str]:
        """What stands in the repository beside the model."""
        return sorted(entry.name for entry in self.model.parent.iterdir() if entry != self.model)


@pytest.fixture
def stage(tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any) -> Callable[..., Any]:
    """`with stage(clients=8) as it`: no request of theirs may fail or be answered wrong, unless they `may_fail`."""

    @contextmanager
    def start(
        clients: int = 0,
        pause_s: float = 0,
        model: Path | None = None,
        candidate: Path | None = None,
        may_fail: bool = False,
        **options: Any,
    ) -> Iterator[Stage]:
        model = model or scaled(tmp_path / "models")
        candidate = candidate or scaled(tmp_path / "new", factor=2.01)
        with serving(model.parent, "scale", **options) as server, ExitStack() as asking:
            traffic = None
            if clients:
                split = beside(model, "split.json")
                traffic = asking.enter_context(Traffic(server.grpc_url, "scale", clients, pause_s, split=split))
            made = Stage(model, candidate, server, traffic, run_cli)
            asking.callback(made.end)
            yield made
        if traffic and not may_fail:
            assert traffic.failed == traffic.wrong == []

    return start


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
