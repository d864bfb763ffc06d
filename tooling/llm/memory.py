"""How the memory of GPUs is divided between a language model's weights, its work and the cache. Layer: llm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tooling.llm.model_facts import ModelFacts

_FIXED: Final = 2**30
"""What CUDA, its graphs and the communication between GPUs keep, outside the arithmetic: about 1 GiB."""
BLOCK: Final = 16
"""Tokens in a block of the paged cache, the engines' usual size."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is spread, and in what numbers it computes: GPUs, bytes of a cached value, weights' factor."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    cache_value_bytes: float = 2
    weight_factor: float = 1.0

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes on each GPU: what the engine may use, and what of it goes where; and the tokens that the rest holds."""

    usable: int
    weights: int
    work: int
    token: int

    @property
    def cache(self) -> int:
        """What is left for the cache; negative where the rest does not fit."""
        return self.usable - self.weights - self.work

    @property
    def tokens(self) -> int:
        """Tokens that the cache holds, in whole blocks."""
        return max(0, self.cache // (self.token * BLOCK)) * BLOCK


def budget(facts: ModelFacts, layout: Layout, usable: int, batched_tokens: int, sequences: int) -> Budget:
    """The division of `usable` bytes on each GPU.

    Weights are split evenly. The work of a step is counted for `batched_tokens`: residual, attention and the two halves
    of a gated feed-forward in 16 bits, and the logits of `sequences` in 32 bits, twice for sampling. That is an
    estimate: the engine measures its own peak when it starts.
    """
    weights = round(facts.weight_bytes * layout.weight_factor / layout.gpus)
    attention = facts.head_size * (facts.heads + 2 * facts.kv_heads)
    values = batched_tokens * (4 * facts.hidden + (attention + 2 * facts.inner) // layout.tensor_parallel)
    logits = sequences * facts.vocabulary * 4 * 2 // layout.tensor_parallel
    token = facts.cache_bytes(layout.tensor_parallel, layout.cache_value_bytes)
    token = -(-token // layout.pipeline_parallel)
    return Budget(usable, weights, 2 * values + logits + _FIXED, token)
