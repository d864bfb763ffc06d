"""What the Python step of the embedded `onnxruntime` backend adds to one execution, against plain ONNX Runtime.

Two models: one that computes next to nothing, so that Triton's own compute times are the added time, and MiniLM when a
repository with it is given. Both sides use ONNX Runtime of the runtime environment with the same thread count; short
rounds of both alternate, and the smallest mean of the rounds counts: other work on the machine only adds to it.

    python benchmarks/backend_overhead.py [REPOSITORY]
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client

from tooling.config.proto import pb
from tooling.repository import read_config
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer

ROUNDS, SECONDS = 20, 0.2
WAIT_US = 20_000  # lets single requests meet; a batch that is full does not wait
INPUTS = ("input_ids", "attention_mask", "token_type_ids")

PLAIN = """
import json, sys, time
import numpy as np
import onnxruntime as ort

model, threads = sys.argv[1], int(sys.argv[2])
options = ort.SessionOptions()
options.intra_op_num_threads = threads
session = ort.InferenceSession(model, options)
for line in sys.stdin:
    batch, length, seconds = json.loads(line)
    ones = np.ones((batch, length), np.int64)
    feed = {name: ones for name in ("input_ids", "attention_mask", "token_type_ids")}
    session.run(["embeddings"], feed)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        session.run(["embeddings"], feed)
        count += 1
    print((time.perf_counter() - start) / count * 1e3, flush=True)
"""

EMPTY_CONFIG = """
platform: "onnxruntime_onnx"
max_batch_size: 8
"""


def write_empty_model(directory: Path) -> None:
    """A model with MiniLM's inputs and output that computes next to nothing."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [
        helper.make_node("Cast", ["input_ids"], ["values"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["values"], ["mean"], axes=[1]),
        helper.make_node("Mul", ["mean", "ones"], ["embeddings"]),
    ]
    graph = helper.make_graph(
        nodes,
        "empty",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in INPUTS],
        [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", 384])],
        [numpy_helper.from_array(np.ones(384, np.float32), "ones")],
    )
    (directory / "1").mkdir(parents=True)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), directory / "1/model.onnx"
    )
    (directory / "config.pbtxt").write_text(EMPTY_CONFIG)


def inputs_of(batch: int, length: int) -> list[Any]:
    tensors = [grpc_client.InferInput(name, [batch, length], "INT64") for name in INPUTS]
    for tensor in tensors:
        tensor.set_data_from_numpy(np.ones((batch, length), np.int64))
    return tensors


def drive(client: Any, model: str, requests: int, inputs: list[Any]) -> None:
    """Send `requests` at once, wait for all answers, and again."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for _ in range(requests):
            client.async_infer(model, inputs, lambda result, error: answers.put(error))
        for error in [answers.get(timeout=30) for _ in range(requests)]:
            if error is not None:
                raise error


def spent_ms(server: EmbeddedServer, model: str, batch: int) -> tuple[int, float]:
    """Executions of this batch size so far, and Triton's compute time for them (input, infer and output)."""
    for entry in server.stats(model).get("batch_stats", []):
        if int(entry["batch_size"]) == batch:
            parts = [entry[part] for part in ("compute_input", "compute_infer", "compute_output")]
            return int(parts[0]["count"]), sum(int(part["ns"]) for part in parts) / 1e6
    return 0, 0.0


def configure(server: EmbeddedServer, model: str, directory: Path, threads: int, wait_us: int) -> None:
    config = pb().ModelConfig()
    config.CopyFrom(read_config(directory))
    config.name = model
    config.parameters["intra_op_thread_count"].string_value = str(threads)
    del config.instance_group[:]
    config.instance_group.add(kind="KIND_CPU", count=1)
    config.dynamic_batching.max_queue_delay_microseconds = wait_us
    server.load(model, config)


def compare(server: EmbeddedServer, model: str, path: Path, threads: int, requests: int, size: int, length: int) -> str:
    """One row of the table: `requests` of batch `size` run as one execution."""
    batch = requests * size
    inputs = inputs_of(size, length)
    plain, embedded = [], []
    command = [str(find_runtime().python), "-I", "-c", PLAIN, str(path), str(threads)]
    with (
        grpc_client.InferenceServerClient(server.grpc_url) as client,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reference,
    ):
        assert reference.stdin is not None
        assert reference.stdout is not None
        for _ in range(ROUNDS):
            reference.stdin.write(json.dumps([batch, length, SECONDS]) + "\n")
            reference.stdin.flush()
            plain.append(float(reference.stdout.readline()))
            count, spent = spent_ms(server, model, batch)
            drive(client, model, requests, inputs)
            count_after, spent_after = spent_ms(server, model, batch)
            if count_after > count:
                embedded.append((spent_after - spent) / (count_after - count))
        reference.stdin.close()
    base, own = min(plain), min(embedded)
    figures = [f"{base:.3f}", f"{own:.3f}", f"{own - base:+.3f}", f"{base / own:.2f}"]
    return "| " + " | ".join([model, str(threads), f"{requests} × {size}", str(length), *figures]) + " |"


def main() -> None:
    given = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None
    print("| model | threads | requests × batch | length | plain ms | embedded ms | added ms | plain / embedded |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch)
        write_empty_model(repository / "empty")
        if given is not None:
            (repository / "minilm").symlink_to(given / "minilm")
        with EmbeddedServer(repository, find_runtime()) as server:
            for directory in sorted(repository.iterdir()):
                for threads in (1, 2):
                    for requests, size in ((1, 1), (1, 8), (8, 1)):
                        wait_us = WAIT_US if requests > 1 else 0
                        configure(server, directory.name, directory, threads, wait_us)
                        for length in (32, 128):
                            path = directory / "1" / "model.onnx"
                            print(compare(server, directory.name, path, threads, requests, size, length), flush=True)
                server.unload(directory.name)


if __name__ == "__main__":
    main()
