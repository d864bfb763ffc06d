"""Low-latency requests beside bulk traffic, three ways: one queue, priority levels, a second model. p99 of both.

    python benchmarks/priorities.py MODEL_DIR [--seconds 15] [--rounds 2] [--bulk 16] [--rate 10] [--tokens 32]

Bulk clients ask without pause; urgent requests leave at random times, whether or not earlier ones are answered. All are
texts of the same length, so that bulk requests batch. The ways take turns, each round in the other order; each round is
judged by itself, and against `one queue` of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
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


def spread(values: list[float], digits: int = 0) -> str:
    """Median, and lowest to highest in brackets."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}–{max(values):.{digits}f}]"


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
    found: dict[str, list[dict[str, list[float]]]] = {way: [] for way in WAYS}
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
                found[way].append(run(given.seconds))
                if way == "second model":
                    server.unload(FAST)
    print(f"{'median [lowest–highest] of rounds':36} {'bulk/s':>18} {'urgent p50 ms':>22} {'urgent p99 ms':>22}")
    for way, rounds in found.items():
        rates = [len(seen["bulk"]) / given.seconds for seen in rounds]
        halves, mosts = ([float(np.percentile(seen["urgent"], q)) for seen in rounds] for q in (50, 99))
        print(f"{way:36} {spread(rates):>18} {spread(halves):>22} {spread(mosts):>22}")
    for way in WAYS[1:]:
        for q in (50, 99):
            pairs = zip(found[way], found[WAYS[0]], strict=True)
            ratios = [np.percentile(a["urgent"], q) / np.percentile(b["urgent"], q) for a, b in pairs]
            print(f"urgent p{q}, {way} over {WAYS[0]} of the same round: {spread(ratios, 2)}")
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    if given.json:
        given.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
