"""How fast `perf.client.Client` is beside a bare grpc.aio loop: same process, same channel options, same requests.

    python benchmarks/client_speed.py [--seconds 3] [--rounds 5] [--in-flight 32] [--json FILE]

Both ask an identity model on the embedded server, in turns, so that a drift of the machine hits both. The bare loop
sends one request that was built before, and reads nothing but the answer's bytes into a message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from perf.client import Client
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer, ServerOptions

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor(
            "y", pb_utils.get_input_tensor_by_name(r, "x").as_numpy())]) for r in requests]
"""
CONFIG = """backend: "python"
max_batch_size: 64
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching {}
"""
TENSOR = np.ones((1, 32), np.float32)


async def rate(ask: Callable[[], Awaitable[Any]], in_flight: int, seconds: float) -> float:
    """Requests a second of tasks that each ask again as soon as they are answered."""
    count, ends = 0, time.perf_counter() + seconds

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < ends:
            await ask()
            count += 1

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(in_flight)))
    return count / (time.perf_counter() - begun)


async def compare(url: str, in_flight: int, seconds: float, rounds: int) -> dict[str, list[float]]:
    from grpc import aio
    from tritonclient.grpc import service_pb2 as pb

    request = pb.ModelInferRequest(model_name="echo")
    request.inputs.add(name="x", datatype="FP32", shape=TENSOR.shape)
    request.raw_input_contents.append(TENSOR.tobytes())
    found: dict[str, list[float]] = {"bare": [], "client": [], "client, padding": []}
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with aio.insecure_channel(url, options=options) as channel, Client(url, "echo") as client:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        async with Client(url, "echo", edges=(32,)) as padding:
            short = TENSOR[:, :20]
            ways: dict[str, Callable[[], Awaitable[Any]]] = {
                "bare": lambda: call(request, timeout=10),
                "client": lambda: client.infer({"x": TENSOR}, timeout_s=10),
                "client, padding": lambda: padding.infer({"x": short}, timeout_s=10),
            }
            for ask in ways.values():
                await rate(ask, in_flight, 0.5)
            for number in range(rounds):
                for name in list(ways)[:: 1 if number % 2 else -1]:
                    found[name].append(await rate(ways[name], in_flight, seconds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        version = Path(place, "echo", "1")
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        with EmbeddedServer(Path(place), find_runtime(), ServerOptions(strict_config=True)) as server:
            server.load("echo")
            found = asyncio.run(compare(server.grpc_url, arguments.in_flight, arguments.seconds, arguments.rounds))
    bare = found["bare"]
    for name, rates in found.items():
        ratio = statistics.median(r / b for r, b in zip(rates, bare, strict=True))
        print(f"{name:16} {statistics.median(rates):8.0f} requests/s  {ratio:.2f} of the bare loop")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
