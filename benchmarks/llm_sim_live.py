"""Predictions of the simulated engine beside the real vLLM on the embedded server.

    python benchmarks/llm_sim_live.py [--rounds N] [--requests N]

The law of a step is measured first, on the same load of the model; then every point is predicted and measured. Needs
`make setup-llm`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from llm_batching import PLACES, SMALL, add_model, make_llama, serving

from perf.generation import Ask, generate
from perf.llm_curve import measure_steps, text
from perf.llm_traffic import figures
from perf.sim.llm import EngineSettings, Generation, LlmPrediction, simulate_llm
from tooling.server import EmbeddedServer

BUDGET = 512


class Point(NamedTuple):
    name: str
    clients: int | None
    rate: float | None = None
    burst: int = 1
    prompts: tuple[int, int] = (8, 64)


POINTS = (
    Point("1 client", 1),
    Point("4 clients", 4),
    Point("8 clients", 8),
    Point("16 clients", 16),
    Point("24 clients", 24),
    Point("8 clients, prompts of 200–600", 8, prompts=(200, 600)),
    Point("at random, 40 % of the capacity", None, 0.4),
    Point("at random, 70 % of the capacity", None, 0.7),
    Point("bursts of 16, 50 % of the capacity", None, 0.5, 16),
)


def blocks(server: EmbeddedServer) -> int:
    """KV blocks of 128 tokens, from what the engine says at its start."""
    found = re.search(r"KV cache size: ([\d,]+) tokens", server.log_path.read_text(errors="replace"))
    assert found
    return int(found[1].replace(",", "")) // 128


def asked(point: Point, count: int, rng: random.Random) -> list[Ask]:
    return [
        Ask(text(rng.randint(*point.prompts), rng), min(200, max(4, round(rng.expovariate(1 / 50)))))
        for _ in range(count)
    ]


def due(point: Point, count: int, capacity_rps: float, rng: random.Random) -> list[float]:
    assert point.rate is not None
    rate, at, times = point.rate * capacity_rps, 0.0, []
    for number in range(count):
        if number % point.burst == 0 and number:
            at += rng.expovariate(rate) if point.burst == 1 else point.burst / rate
        times.append(at)
    return times


def compare(server: EmbeddedServer, count: int, rounds: int) -> None:
    fit = measure_steps(server.grpc_url, "llm")
    law = fit.law
    print(f"load average {os.getloadavg()[0]:.1f}; law of {fit.steps} steps: {law.fixed_us / 1e3:.2f} ms")
    print(
        f"  + {law.per_token_us:.1f} us a token + {law.per_sequence_us:.0f} us a sequence + "
        f"{law.per_kv_token_us * 1e3:.1f} ns a cached token; {law.overhead_us / 1e3:.1f} ms outside;"
        f" half of the steps within {fit.median_error:.0%}"
    )
    settings = EngineSettings(PLACES, BUDGET, blocks(server), block_size=128)
    rng = random.Random(3)
    full = simulate_llm(settings, law, played(asked(POINTS[3], 200, rng)), clients=PLACES)
    kept = 0
    for point in POINTS:
        asks = asked(point, count, rng)
        times = None if point.rate is None else due(point, count, full.throughput_rps, rng)
        predicted = simulate_llm(settings, law, played(asks, times), clients=point.clients)
        seen = [live(server, asks, times, point.clients) for _ in range(rounds)]
        kept += report(point, predicted, seen)
    print(f"{kept} of {len(POINTS)} points within 15 % in tokens/s and 25 % in TTFT p95")


def played(asks: Sequence[Ask], times: Sequence[float] | None = None) -> list[Generation]:
    starts = times or [0.0] * len(asks)
    return [Generation(at * 1e6, len(ask.prompt), ask.tokens) for at, ask in zip(starts, asks, strict=True)]


def live(
    server: EmbeddedServer, asks: list[Ask], times: list[float] | None, clients: int | None
) -> tuple[float, float]:
    seen = figures(generate(server.grpc_url, "llm", asks, due_s=times, clients=clients))
    return seen["tokens_per_s"], seen["ttft_p95_us"] / 1e3


def report(point: Point, predicted: LlmPrediction, seen: Sequence[tuple[float, float]]) -> bool:
    tokens, ttft = (statistics.median(values) for values in zip(*seen, strict=True))
    off = predicted.tokens_per_s / tokens - 1, predicted.figures["ttft_p95_us"] / 1e3 / ttft - 1
    print(
        f"| {point.name} | {tokens:.0f} tokens/s: {off[0]:+.0%} | TTFT p95 {ttft:.0f} ms: {off[1]:+.0%} | "
        f"{', '.join(f'{t:.0f}/{f:.0f}' for t, f in seen)} |",
        flush=True,
    )
    return abs(off[0]) <= 0.15 and abs(off[1]) <= 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=48)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_llama(Path(folder) / "llama", **SMALL)
        add_model(Path(folder) / "repository", "llm", model, max_num_batched_tokens=BUDGET)
        with serving(Path(folder) / "repository", "llm") as server:
            compare(server, options.requests, options.rounds)


if __name__ == "__main__":
    main()
