"""The traffic that a language model is tuned under, and the figures of its answers. Layer: above generation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perf.generation import Answer, Ask
from perf.llm_curve import text
from perf.sim.llm import percentiles

_EACH = 3
"""Requests of each client, at least: with fewer than clients not all would be in flight."""


@dataclass(frozen=True, slots=True)
class LlmTraffic:
    """`requests` requests (or more, of many `clients`) in a closed loop, or at `rate_rps` at random times; prompts (in
    letters) and outputs (in tokens) are drawn from the given lengths."""

    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    clients: int | None = None
    rate_rps: float | None = None
    requests: int = 48
    seed: int = 0

    @property
    def count(self) -> int:
        """Requests in all."""
        return max(self.requests, _EACH * (self.clients or 0))

    def asks(self) -> list[Ask]:
        rng = random.Random(self.seed)
        return [Ask(text(rng.choice(self.prompts), rng), rng.choice(self.outputs)) for _ in range(self.count)]

    def due_s(self) -> list[float] | None:
        if self.rate_rps is None:
            return None
        rng, at, times = random.Random(self.seed), 0.0, []
        for _ in range(self.count):
            at += rng.expovariate(self.rate_rps)
            times.append(at)
        return times

    def of_streams(self, streams: int) -> LlmTraffic:
        """The same requests of so many clients, each of whom sends its next when its last is answered."""
        return replace(self, clients=streams, rate_rps=None)

    def __str__(self) -> str:
        load = f"{self.clients} clients" if self.rate_rps is None else f"{self.rate_rps:g} requests/s at random"
        return f"{load}, {self.count} requests of {_range(self.prompts)} + {_range(self.outputs)} tokens"


def figures(answers: Sequence[Answer]) -> dict[str, float]:
    """What `figures_of` says of the answers of a run."""
    span_s = max(a.times_s[-1] for a in answers) - min(a.due_s for a in answers)
    between = [a.itl_s * 1e6 for a in answers if a.itl_s is not None]
    ttft, latency = [a.ttft_s * 1e6 for a in answers], [a.latency_s * 1e6 for a in answers]
    return figures_of(span_s, sum(a.tokens for a in answers), ttft, between, latency)


def figures_of(
    span_s: float, tokens: float, ttft_us: Sequence[float], itl_us: Sequence[float], latency_us: Sequence[float]
) -> dict[str, float]:
    """Tokens a second, requests a second, and percentiles of TTFT, ITL and latency, under a Measurement's names."""
    named = {"ttft_": ttft_us, "itl_": itl_us, "": latency_us}
    found = {"tokens_per_s": tokens / span_s, "throughput_rps": len(latency_us) / span_s}
    return found | {
        f"{prefix}{name}": value
        for prefix, values in named.items()
        if values
        for name, value in percentiles(values).items()
    }


def _range(lengths: Sequence[int]) -> str:
    low, high = min(lengths), max(lengths)
    return str(low) if low == high else f"{low}–{high}"
