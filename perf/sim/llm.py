"""A simulator of an LLM engine that batches at every step (vLLM's scheduler, paged KV cache). Layer: sim, no I/O."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tooling.errors import UsageError

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What vLLM's scheduler goes by. `kv_blocks` of `block_size` tokens are all the cache there is.

    With `draft_tokens` each sequence proposes so many tokens a step, of which `acceptance` is the share that each
    position keeps once those before it are kept.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int
    block_size: int = 16
    chunked_prefill: bool = True
    draft_tokens: int = 0
    acceptance: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "kv_blocks", "block_size"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"`{name}` is too small", where="engine", got=getattr(self, name), expected="at least 1"
                )
        if self.draft_tokens < 0 or not 0 <= self.acceptance <= 1:
            got = f"{self.draft_tokens} draft tokens, acceptance {self.acceptance:g}"
            raise UsageError("no speculation", where="engine", got=got, expected="0 or more, and a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long one step of the engine takes: affine in the tokens it computes, the sequences it gives a token, and the
    tokens whose keys and values it reads. `overhead_us` is the way from client to engine and back, outside of steps;
    `factors` are equally likely ones by which single steps differ."""

    fixed_us: float
    per_token_us: float
    per_sequence_us: float
    per_kv_token_us: float
    overhead_us: float = 0.0
    factors: tuple[float, ...] = (1.0,)

    def us(self, tokens: int, sequences: int, kv_tokens: int) -> float:
        """A step without its scatter, in microseconds."""
        work = self.per_token_us * tokens + self.per_sequence_us * sequences + self.per_kv_token_us * kv_tokens
        return self.fixed_us + work


class Generation(NamedTuple):
    """A request: when it is due, its prompt and its output in tokens."""

    due_us: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmPrediction:
    """A simulated run. `ttft_…` are the times from a request being due to its first token, `itl_…` the mean times
    between the tokens of one request, in microseconds, under the names of a Measurement."""

    requests: int
    tokens_per_s: float
    throughput_rps: float
    figures: dict[str, float]
    steps: int
    preemptions: int
    mean_running: float
    ttft_us: tuple[float, ...] = field(repr=False)
    latency_us: tuple[float, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, without the single requests."""
        return {name: value for name, value in asdict(self).items() if name not in ("ttft_us", "latency_us")}


@dataclass(slots=True, eq=False)
class _Sequence:
    number: int
    due_us: float
    prompt: int
    output: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    first_us: float = 0.0
    last_us: float = 0.0

    @property
    def length(self) -> int:
        """Tokens that are known: the prompt's and those generated, which a preempted sequence computes again."""
        return self.prompt + self.generated


class _Engine:
    """The scheduler's state: who waits, who runs, and the free blocks."""

    def __init__(self, settings: EngineSettings, rng: random.Random) -> None:
        self.settings, self.rng = settings, rng
        self.waiting: deque[_Sequence] = deque()
        self.running: list[_Sequence] = []
        self.free = settings.kv_blocks
        self.preemptions = 0

    def schedule(self) -> list[tuple[_Sequence, int]]:
        """Which sequences compute how many tokens in the next step: those that run first, then the longest waiting."""
        plan: list[tuple[_Sequence, int]] = []
        budget, before = self.settings.max_num_batched_tokens, self.preemptions
        while budget > 0 and len(plan) < len(self.running):
            sequence = self.running[len(plan)]
            tokens = min(self._wanted(sequence), budget)
            while not self._grow(sequence, tokens) and self._preempt() is not sequence:
                pass
            if len(plan) < len(self.running):
                plan.append((sequence, tokens))
                budget -= tokens
        room = self.settings.max_num_seqs if self.preemptions == before else 0
        while self.waiting and budget > 0 and len(self.running) < room:
            sequence = self.waiting[0]
            wanted = sequence.length - sequence.computed
            if wanted > budget and not self.settings.chunked_prefill:
                break
            tokens = min(wanted, budget)
            if not self._grow(sequence, tokens):
                break
            self.running.append(self.waiting.popleft())
            plan.append((sequence, tokens))
            budget -= tokens
        return plan

    def _wanted(self, sequence: _Sequence) -> int:
        missing = sequence.length - sequence.computed
        return missing + self.settings.draft_tokens if sequence.generated and missing == 1 else missing

    def _grow(self, sequence: _Sequence, tokens: int) -> bool:
        needed = math.ceil((sequence.computed + tokens) / self.settings.block_size) - sequence.blocks
        if needed > self.free:
            return False
        if needed > 0:
            self.free -= needed
            sequence.blocks += needed
        return True

    def _preempt(self) -> _Sequence:
        """The sequence that came last gives its blocks back and starts anew, before all that wait."""
        last = self.running.pop()
        self.release(last)
        last.computed = 0
        self.waiting.appendleft(last)
        self.preemptions += 1
        return last

    def release(self, sequence: _Sequence) -> None:
        self.free += sequence.blocks
        sequence.blocks = 0

    def advance(self, sequence: _Sequence, tokens: int) -> int:
        """Tokens that a sequence gets from a step in which it computed `tokens`."""
        drafted = tokens - (sequence.length - sequence.computed)
        sequence.computed += min(tokens, sequence.length - sequence.computed)
        if sequence.computed < sequence.length:
            return 0
        kept = 0
        while kept < drafted and self.rng.random() < self.settings.acceptance:
            kept += 1
        gained = min(1 + kept, sequence.output - sequence.generated)
        sequence.generated += gained
        sequence.computed += gained - 1
        return gained


def simulate_llm(
    settings: EngineSettings,
    step: StepTime,
    requests: Sequence[Generation],
    *,
    clients: int | None = None,
    seed: int = 0,
) -> LlmPrediction:
    """Play `requests`: each at its time, or, with `clients`, in a closed loop of so many, without regard to times.

    Raises UsageError for a request that the cache can never hold.
    """
    _check(settings, requests)
    rng = random.Random(seed)
    engine = _Engine(settings, rng)
    sequences = [_Sequence(number, *request) for number, request in enumerate(requests)]
    half = step.overhead_us / 2
    coming = deque(sequences if clients is None else sequences[:clients])
    later = deque(() if clients is None else sequences[clients:])
    for sequence in coming if clients is not None else ():
        sequence.due_us = 0.0
    now, steps, running = 0.0, 0, 0
    while coming or engine.waiting or engine.running:
        if not engine.waiting and not engine.running:
            now = max(now, coming[0].due_us + half)
        while coming and coming[0].due_us + half <= now:
            engine.waiting.append(coming.popleft())
        plan = engine.schedule()
        gives = sum(sequence.computed + tokens >= sequence.length for sequence, tokens in plan)
        kv = sum(sequence.computed + tokens for sequence, tokens in plan)
        now += step.us(sum(tokens for _, tokens in plan), gives, kv) * rng.choice(step.factors)
        steps, running = steps + 1, running + len(plan)
        for sequence, tokens in plan:
            if not engine.advance(sequence, tokens):
                continue
            sequence.last_us = now + half
            sequence.first_us = sequence.first_us or sequence.last_us
            if sequence.generated >= sequence.output:
                engine.running.remove(sequence)
                engine.release(sequence)
                if later:
                    follower = later.popleft()
                    follower.due_us = sequence.last_us
                    coming.append(follower)
    return _predicted(sequences, steps, running, engine.preemptions)


def _check(settings: EngineSettings, requests: Sequence[Generation]) -> None:
    if not requests:
        raise UsageError("there are no requests", where="simulation", expected="at least one")
    most = settings.kv_blocks * settings.block_size
    for number, (_, prompt, output) in enumerate(requests):
        if prompt < 1 or output < 1 or prompt + output + settings.draft_tokens > most:
            raise UsageError(
                "a request that cannot be generated",
                where=f"request {number}",
                got=f"{prompt} + {output} tokens",
                expected=f"1 token at least of each, and {most} together at most, which is all the KV cache holds",
            )
        if not settings.chunked_prefill and prompt > settings.max_num_batched_tokens:
            raise UsageError(
                "a prompt never fits into a step without chunked prefill",
                where=f"request {number}",
                got=f"{prompt} tokens",
                expected=f"at most max_num_batched_tokens {settings.max_num_batched_tokens}",
            )


def _predicted(sequences: Sequence[_Sequence], steps: int, running: int, preemptions: int) -> LlmPrediction:
    ttft = [sequence.first_us - sequence.due_us for sequence in sequences]
    latency = [sequence.last_us - sequence.due_us for sequence in sequences]
    between = [(s.last_us - s.first_us) / (s.output - 1) for s in sequences if s.output > 1]
    span_us = max(s.last_us for s in sequences) - min(s.due_us for s in sequences)
    figures = {f"ttft_{name}": value for name, value in percentiles(ttft).items()}
    if between:
        figures |= {f"itl_{name}": value for name, value in percentiles(between).items()}
    figures |= percentiles(latency)
    return LlmPrediction(
        requests=len(sequences),
        tokens_per_s=sum(s.output for s in sequences) / span_us * 1e6,
        throughput_rps=len(sequences) / span_us * 1e6,
        figures=figures,
        steps=steps,
        preemptions=preemptions,
        mean_running=running / steps,
        ttft_us=tuple(ttft),
        latency_us=tuple(latency),
    )


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """`avg_us` and `p50_us` to `p99_us`, read as perf_analyzer reads percentiles."""
    ordered = np.sort(np.asarray(values, dtype=float))
    places = {p: int(p / 100 * (len(ordered) - 1) + 0.5) for p in PERCENTILES}
    return {"avg_us": float(ordered.mean()), **{f"p{p}_us": float(ordered[place]) for p, place in places.items()}}
