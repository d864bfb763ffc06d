"""Low-latency requests beside bulk traffic, three ways: one queue, priority levels, a second model. p99 of both.

    python benchmarks/priorities.py MODEL_DIR [--seconds 15] [--rounds 2] [--bulk 16] [--rate 10] [--tokens 32]

Bulk clients ask without pause; urgent requests leave at random times, whether or not earlier ones are answered. All are
texts of the same length, so that bulk requests batch. The ways take turns, each round in the other order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from perf.client import Client
from tooling.repository import read_config
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer

FAST = "urgent"
WAYS = ("one queue", "priority levels", "second model")


def load(server: EmbeddedServer, model_dir: Path, way: str) -> None:
    """Serve the model as bulk model, with its urgent requests going the given way."""
    config = read_config(model_dir)
    if way == "priority levels":
        config.dynamic_batching.priority_levels, config.dynamic_batching.default_priority_level = 2, 2
    server.load(model_dir.name, config)
    if way == "second model":
        config.ClearField("dynamic_batching")
        config.name = FAST
        del config.instance_group[:]
        config.instance_group.add(count=1)
        server.load(FAST, config)


def inputs(model: dict[str, Any], tokens: int) -> dict[str, Any]:
    """One request of a row of `tokens` token ids."""
    ids = random.Random(0).choices(range(1_000, 20_000), k=tokens)
    values = {"input_ids": ids, "attention_mask": [1] * tokens}
    return {tensor["name"]: [values.get(tensor["name"], [0] * tokens)] for tensor in model["input"]}


async def measure(
    url: str, name: str, request: dict[str, Any], way: str, given: argparse.Namespace
) -> dict[str, list[float]]:
    """Milliseconds of each bulk and each urgent request."""
    seen: dict[str, list[float]] = {"bulk": [], "urgent": []}
    ends = time.perf_counter() + given.seconds

    async def ask(client: Client, kind: str, priority: int) -> None:
        begun = time.perf_counter()
        await client.infer(request, priority=priority)
        seen[kind].append((time.perf_counter() - begun) * 1e3)

    async with Client(url, name) as bulk, Client(url, FAST if way == "second model" else name) as urgent:

        async def crowd() -> None:
            while time.perf_counter() < ends:
                await ask(bulk, "bulk", 0)

        async def now_and_then() -> None:
            rng, asked = random.Random(1), []
            while time.perf_counter() < ends:
                await asyncio.sleep(rng.expovariate(given.rate))
                asked.append(asyncio.create_task(ask(urgent, "urgent", 1 if way == "priority levels" else 0)))
            await asyncio.gather(*asked)

        await asyncio.gather(now_and_then(), *(crowd() for _ in range(given.bulk)))
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="REPO/NAME, such as quickstart/model_repository/minilm")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--bulk", type=int, default=16)
    parser.add_argument("--rate", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    model_dir = given.model.absolute()
    found: dict[str, dict[str, list[float]]] = {way: {"bulk": [], "urgent": []} for way in WAYS}
    with EmbeddedServer(model_dir.parent, find_runtime()) as server:
        server.alias(FAST, model_dir)
        for number in range(given.rounds):
            for way in WAYS[:: 1 if number % 2 == 0 else -1]:
                load(server, model_dir, way)
                request = inputs(server.model_config(model_dir.name), given.tokens)
                run: Callable[[float], Any] = lambda s, r=request, w=way: asyncio.run(  # noqa: E731
                    measure(server.grpc_url, model_dir.name, r, w, argparse.Namespace(**{**vars(given), "seconds": s}))
                )
                run(2)  # warm
                for kind, times in run(given.seconds).items():
                    found[way][kind] += times
                if way == "second model":
                    server.unload(FAST)
    print(f"{'':16} {'bulk/s':>8} {'bulk p99 ms':>12} {'urgent p50 ms':>14} {'urgent p99 ms':>14} {'urgent':>7}")
    for way, seen in found.items():
        rate = len(seen["bulk"]) / (given.rounds * given.seconds)
        (bulk,), (half, most) = np.percentile(seen["bulk"], [99]), np.percentile(seen["urgent"], [50, 99])
        print(f"{way:16} {rate:8.0f} {bulk:12.0f} {half:14.0f} {most:14.0f} {len(seen['urgent']):7}")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    if given.json:
        given.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
