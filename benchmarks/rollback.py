"""Promotions and rollbacks under traffic: whether an answer is lost or wrong, how many come, how long a rollback takes
with the old version still loaded and without, and what keeping it costs.

    python benchmarks/rollback.py [MODEL_DIR] [--rounds 5] [--connections 32] [--tokens 32] [--cores-taken 0]
        [--settings instances=2]

Clients ask without pause while `tritune promote` runs as a command of its own and its promotion is then taken back, on
a copy of the repository. The two ways take turns: five rounds are ten promotions and ten rollbacks. Without MODEL_DIR
it is a small model whose versions differ in their numbers, and each answer must have those of the version that it
names; with one, the candidate is the same model under another version number. With `--settings` the candidate has
another config: with another number of instances the old version can stay loaded, with anything else it cannot.

`rollback`: what `tritune rollback` does, without Python's start. `switch`: from its start to the first answer of the
old version after which the new one answers nothing more. `lowest_rps`: answers in the second in which fewest came.
Exit 1 when a request failed or an answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from perf.client import Client
from perf.rollout.back import rollback
from tooling.console import Console
from tooling.repository import read_config
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer
from tooling.server.options import loading_only

WAYS = ("kept", "let go")
GATES = ("--skip", "slo", "--skip", "ab")
CONFIG = """backend: "onnxruntime"
max_batch_size: 32
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching {}
"""
Judge = Callable[[Any], bool]


class Clients:
    """Tasks that ask on a thread of their own; every answer's time, version and duration."""

    def __init__(self, url: str, name: str, request: dict[str, Any], connections: int, right: Judge) -> None:
        self.answers: list[tuple[float, str, float]] = []
        self.failed: list[str] = []
        self.wrong: list[str] = []
        self._right = right
        self._end = threading.Event()
        work = lambda: asyncio.run(self._run(url, name, request, connections))  # noqa: E731
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def lowest_rps(self) -> int:
        """Answers in the whole second in which fewest came."""
        first = self.answers[0][0]
        counts = Counter(int(at - first) for at, _, _ in self.answers)
        return min(counts[second] for second in range(max(counts)))

    async def _run(self, url: str, name: str, request: dict[str, Any], connections: int) -> None:
        async def ask(client: Client) -> None:
            while not self._end.is_set():
                begun = time.monotonic()
                try:
                    answer = await client.infer(request, timeout_s=60)
                except Exception as error:
                    self.failed.append(repr(error))
                    continue
                self.answers.append((time.monotonic(), answer.version, time.monotonic() - begun))
                if not self._right(answer):
                    self.wrong.append(f"version {answer.version}: {answer.outputs}")

        async with Client(url, name) as client:
            await asyncio.gather(*(ask(client) for _ in range(connections)))


def small_model(repository: Path, factor: float) -> Path:
    """A model `small` in a repository: y = factor · x, FP32 [-1, 4]."""
    from onnx import TensorProto, helper, save

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "y")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [factor])
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "small", tensors[:1], tensors[1:], [weight])
    version = repository / "small" / "1"
    version.mkdir(parents=True)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), version / "model.onnx")
    (version.parent / "config.pbtxt").write_text(CONFIG)
    return version.parent


def small_is_right(answer: Any) -> bool:
    """Whether the answer to ones has the numbers of the version that it names."""
    return bool(np.allclose(answer["y"], 2.0 if answer.version == "1" else 2.01, rtol=1e-5))


def request_of(config: dict[str, Any], tokens: int) -> dict[str, Any]:
    """A row of ones, `tokens` long where an input has a free axis."""
    found = {}
    for tensor in config["input"]:
        dims = [tokens if int(dim) == -1 else int(dim) for dim in tensor["dims"]]
        found[tensor["name"]] = np.ones((1, *dims), np.float32 if "FP" in tensor["data_type"] else np.int64)
    return found


def memory_mib(pid: int) -> float:
    """Proportional memory of a process and all below it."""

    def pids(parent: int) -> Iterator[int]:
        yield parent
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{parent}/task").glob("*/children"):
                for child in task.read_text().split():
                    yield from pids(int(child))

    kib = 0
    for one in pids(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
            kib += int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])
    return kib / 1024


def spin() -> None:
    while True:
        pass


def run(
    server: EmbeddedServer, model_dir: Path, candidate: Path | str, way: str, given: argparse.Namespace
) -> dict[str, Any]:
    """One promotion and the way back."""
    name, url = model_dir.name, ("--url", server.http_url)
    request = request_of(server.model_config(name), given.tokens)
    before_mib = memory_mib(server.pid)
    right = (lambda _: True) if given.model else small_is_right
    clients = Clients(server.grpc_url, name, request, given.connections, right)
    begun = time.monotonic()
    promotion = ["promote", model_dir, candidate, *url, *GATES, "--hold", "0s" if way == "let go" else "600s"]
    command = [sys.executable, "-c", "from tooling.cli import entry; entry()", *map(str, promotion)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log = model_dir.with_name(f"{name}.rollout.jsonl")
    while not log.exists() or '"step": "promoted"' not in "".join(log.read_text().splitlines()[-1:]):
        if process.poll():
            raise SystemExit(process.communicate()[1])
        time.sleep(0.05)
    time.sleep(2)
    with_both_mib = memory_mib(server.pid)
    asked = time.monotonic()
    back = rollback(model_dir, server.http_url, Console())
    took = time.monotonic() - asked
    asked_again = len(clients.answers) + 2 * given.connections  # so that each client has had the old version's answer
    while len(clients.answers) < asked_again:
        time.sleep(0.1)
    clients.stop()
    process.communicate()
    old = str(back.serves[0])
    last_new = max(at for at, version, _ in clients.answers if version != old)
    switched = min(at for at, version, _ in clients.answers if version == old and at > last_new)
    return {
        "rollback_s": took,
        "switch_s": switched - asked,
        "failed": len(clients.failed),
        "wrong": len(clients.wrong),
        "requests": len(clients.answers),
        "rps": len(clients.answers) / (time.monotonic() - begun),
        "lowest_rps": clients.lowest_rps(),
        "slowest_s": max(took for _, _, took in clients.answers),
        "extra_mib": with_both_mib - before_mib,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="REPO/NAME, such as quickstart/model_repository/minilm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--cores-taken", type=int, default=0, help="processes that compute without end beside it")
    parser.add_argument("--settings", help="of the candidate, such as instances=2 [the same model again]")
    given = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(given.cores_taken)]
    with tempfile.TemporaryDirectory() as scratch:
        if given.model:
            candidate = Path(shutil.copytree(given.model, Path(scratch) / "new" / given.model.name))
            model_dir = Path(shutil.copytree(given.model, Path(scratch) / "models" / given.model.name))
        else:
            candidate = small_model(Path(scratch) / "new", 2.01)
            model_dir = small_model(Path(scratch) / "models", 2.0)
        with EmbeddedServer(model_dir.parent, find_runtime(), loading_only(read_config(model_dir))) as server:
            server.load(model_dir.name)
            for other in others:
                other.start()
            for number in range(given.rounds):
                for way in WAYS[:: 1 if number % 2 == 0 else -1]:
                    found[way].append(run(server, model_dir, given.settings or candidate, way, given))
                    print(way, found[way][-1], f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    for way, runs in found.items():
        total = {key: sum(one[key] for one in runs) for key in ("requests", "failed", "wrong")}
        print(f"{way}: of {total['requests']} requests {total['failed']} failed, {total['wrong']} were answered wrong")
        for key in ("rollback_s", "switch_s", "slowest_s", "rps", "lowest_rps", "extra_mib"):
            values = [one[key] for one in runs]
            print(f"  {key:10} {statistics.median(values):8.2f} [{min(values):.2f}–{max(values):.2f}]")
    for other in others:
        other.terminate()
    if any(one["failed"] or one["wrong"] for runs in found.values() for one in runs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
