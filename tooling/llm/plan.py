"""The settings that engines for language models share, from the model, the GPUs and the traffic. Layer: llm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tooling.errors import UsageError
from tooling.llm.memory import BLOCK, Budget, Layout, budget
from tooling.llm.model_facts import ModelFacts

UTILIZATION: Final = 0.9
"""The share of a GPU's memory that one engine takes when it is alone: the rest is for the driver and for peaks."""
_BATCHED_TOKENS: Final = 2048
_MOST_SEQUENCES: Final = 256
_ASSUMED_CONTEXT: Final = 4096
_ASSUMED_MEAN: Final = 1024
_DRAFTED: Final = 4
_ONE_BYTE: Final = ("fp8", "experts_int8", "int8_sq", "int8_wo")
_URGENT: Final = 8
_URGENT_BUDGET: Final = 512
CacheType = Literal["auto", "fp8"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """Tokens guessed ahead in each step: by n-grams of the text so far, or by the small model in `draft`."""

    tokens: int = _DRAFTED
    draft: Path | None = None


@dataclass(frozen=True, slots=True)
class Wants:
    """What is asked of an engine; None leaves a figure to be chosen.

    `gpu_memory` is that of one GPU in bytes, `context` the longest prompt with its answer and `mean_tokens` a usual
    one, `streams` the answers generated at once, `token_budget` the tokens computed in one step, `share` the part of
    each GPU's memory that this engine may take.
    """

    gpu_memory: int
    gpus: int = 1
    context: int | None = None
    mean_tokens: int | None = None
    streams: int | None = None
    token_budget: int | None = None
    cache_type: CacheType = "auto"
    quantization: str | None = None
    speculation: Speculation | None = None
    prefix_caching: bool = True
    share: float = UTILIZATION


class Choice(NamedTuple):
    """A setting, what it is, and why."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings chosen for a model, and what they leave of the memory of each GPU."""

    facts: ModelFacts
    wants: Wants
    layout: Layout
    context: int
    mean_tokens: int
    sequences: int
    batched_tokens: int
    budget: Budget
    draft_bytes: int = 0
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def mean_streams(self) -> int:
        """Usual sequences that the cache holds at once."""
        return self.budget.tokens // self.mean_tokens


def make_plan(facts: ModelFacts, wants: Wants) -> Plan:
    """The fewest GPUs that hold the model and what is asked of it. Raises UsageError with figures where none do."""
    _refuse(facts, wants)
    draft = _draft(wants)
    tried = [_on(facts, wants, layout, draft) for layout in _layouts(facts, wants)]
    holding = [plan for plan in tried if plan.budget.tokens >= (wants.context or BLOCK) + BLOCK]
    if not holding:
        raise _too_little(tried[-1])
    enough = [plan for plan in holding if plan.budget.tokens >= (wants.streams or 1) * plan.mean_tokens]
    chosen = enough[0] if enough else holding[-1]
    return replace(chosen, notes=tuple(_notes(chosen)))


def _refuse(facts: ModelFacts, wants: Wants) -> None:
    if facts.context and wants.context and wants.context > facts.context:
        raise UsageError(
            "longer than the model can read",
            where="--context",
            got=str(wants.context),
            expected=f"at most {facts.context}, the model's max_position_embeddings",
        )
    if wants.token_budget and wants.streams and wants.token_budget < wants.streams:
        raise UsageError(
            "a step computes at least one token of each stream",
            where="--token-budget",
            got=f"{wants.token_budget} tokens for {wants.streams} streams",
            expected=f"at least {wants.streams}",
        )
    if wants.mean_tokens and wants.context and wants.mean_tokens > wants.context:
        raise UsageError(
            "a usual request is longer than the longest",
            where="--mean-tokens",
            got=str(wants.mean_tokens),
            expected=f"at most --context {wants.context}",
        )
    if wants.quantization and facts.quantization:
        raise UsageError(
            "the weights are quantised already",
            where="--quantization",
            got=f"{wants.quantization} of {facts.quantization} weights",
            hint="leave it out: the engine reads it from config.json",
        )


def _draft(wants: Wants) -> ModelFacts | None:
    """The draft model, which stands whole on each GPU and caches the same tokens."""
    from tooling.llm.model_facts import read_facts

    draft = wants.speculation.draft if wants.speculation else None
    return read_facts(draft) if draft else None


def _layouts(facts: ModelFacts, wants: Wants) -> list[Layout]:
    """Ways to spread the model, fewest GPUs first: as far as heads divide, then over pipeline stages."""
    cache = 1.0 if wants.cache_type == "fp8" else float(facts.dtype_bytes)
    factor = 1.0
    if wants.quantization:
        factor = (1.0 if wants.quantization in _ONE_BYTE else 0.5) / facts.dtype_bytes
    tensor = [count for count in (1, 2, 4, 8) if count <= wants.gpus and facts.heads % count == 0]
    found = [Layout(count, 1, cache, factor) for count in tensor]
    widest = tensor[-1]
    found += [
        Layout(widest, stages, cache, factor) for stages in range(2, wants.gpus // widest + 1) if stages <= facts.layers
    ]
    return found


def _on(facts: ModelFacts, wants: Wants, layout: Layout, draft: ModelFacts | None) -> Plan:
    draft_bytes = draft.weight_bytes if draft else 0
    usable = round(wants.gpu_memory * wants.share) - draft_bytes
    sequences = wants.streams or _MOST_SEQUENCES
    batched = wants.token_budget or max(_BATCHED_TOKENS, sequences)
    division = budget(facts, layout, usable, batched, sequences)
    if draft:
        value = 1.0 if wants.cache_type == "fp8" else float(draft.dtype_bytes)
        division = replace(division, token=division.token + draft.cache_bytes(layout.tensor_parallel, value))
    longest = facts.context or _ASSUMED_CONTEXT
    context = wants.context or max(BLOCK, min(longest, division.tokens - BLOCK))
    mean = wants.mean_tokens or max(1, min(_ASSUMED_MEAN, context // 2))
    if wants.streams is None:
        sequences = max(1, min(_MOST_SEQUENCES, division.tokens // mean, batched))
    return Plan(facts, wants, layout, context, mean, sequences, batched, division, draft_bytes)


def _too_little(plan: Plan) -> UsageError:
    gib, parts = 2**30, plan.budget
    needed = (plan.wants.context or BLOCK) + BLOCK
    what = "the weights do not fit" if parts.weights > parts.usable else "no room is left for one sequence of --context"
    return UsageError(
        what,
        where=plan.facts.path,
        got=f"on each of {plan.layout.gpus} GPUs {parts.usable / gib:.2f} GiB to use; weights "
        f"{parts.weights / gib:.2f}, work of a step {parts.work / gib:.2f}, {needed} tokens of "
        f"cache {needed * parts.token / gib:.2f}",
        expected="that they fit together",
        hint="more GPUs (--llm-gpus), a larger one (--gpu-memory), --quantization fp8, --kv-cache fp8, smaller "
        "--context, --streams or --token-budget",
    )


def _notes(plan: Plan) -> Iterator[str]:
    """What a person should know of a plan that holds."""
    facts, wants = plan.facts, plan.wants
    if facts.counted:
        yield "no weight files stand beside config.json: the size of the weights is counted from its figures"
    if wants.streams and plan.mean_streams < wants.streams:
        yield (
            f"the cache holds {plan.mean_streams} usual sequences of {plan.mean_tokens} tokens, not {wants.streams}: "
            "the others wait, or are computed again after a pause"
        )
    if not wants.context and facts.context and plan.context < facts.context:
        yield f"the model reads {facts.context} tokens, the cache holds {plan.budget.tokens}: longer ones are refused"
    if wants.cache_type == "fp8" or wants.quantization or wants.speculation:
        yield "compare its answers with those of the plain model before it serves: tritune quality"
    if facts.window or facts.latent:
        yield "the cache is counted for every layer that keeps all tokens; the engine may need less"


def explained(plan: Plan) -> list[Choice]:
    """Every choice that does not depend on the engine, with its reason."""
    gib, wants, parts = 2**30, plan.wants, plan.budget
    kept = "streams asked for" if wants.streams else f"as many as the cache holds, at most {_MOST_SEQUENCES}"
    wide = plan.layout.tensor_parallel > 1 or plan.layout.pipeline_parallel > 1
    return [
        Choice("memory", f"{wants.share:g} of {wants.gpu_memory / gib:.1f} GiB", _share_reason(wants)),
        Choice(
            "GPUs",
            f"{plan.layout.tensor_parallel} tensor parallel × {plan.layout.pipeline_parallel} pipeline stages",
            "the fewest that hold weights, work and cache; heads are divided before layers, which keeps every GPU at "
            "work in every step"
            if wide
            else "one GPU holds weights, work and cache",
        ),
        Choice(
            "cache",
            f"{parts.tokens} tokens",
            f"{parts.usable / gib:.2f} GiB less weights {parts.weights / gib:.2f} and work {parts.work / gib:.2f}, at "
            f"{parts.token} bytes a token on each GPU{', of the model and its draft' if plan.draft_bytes else ''}",
        ),
        Choice("weights", *_weights_reason(plan)),
        Choice("cache type", wants.cache_type, _cache_reason(plan)),
        Choice("context", f"{plan.context} tokens", "the longest prompt with its answer; longer ones are refused"),
        Choice(
            "sequences",
            str(plan.sequences),
            f"the running batch: {kept}; a usual one has {plan.mean_tokens} tokens",
        ),
        Choice(
            "token budget",
            f"{plan.batched_tokens} tokens a step",
            f"each running sequence takes one, the rest goes to prompts: {plan.batched_tokens - plan.sequences} tokens "
            "of them a step while all run. More starts prompts sooner, less keeps the time between tokens even",
        ),
        Choice("speculation", *_speculation_reason(wants)),
    ]


def _share_reason(wants: Wants) -> str:
    alone = "a share of the whole GPU, whoever else is on it"
    return alone if wants.share == UTILIZATION else f"{alone}; the rest is another engine's"


def _weights_reason(plan: Plan) -> tuple[str, str]:
    facts, wants = plan.facts, plan.wants
    if facts.quantization:
        return facts.quantization, "quantised already, as their config.json says: the engine reads it there"
    if wants.quantization:
        return wants.quantization, "smaller weights leave more to the cache and are read faster; answers may change"
    return facts.dtype, "as they are, which changes no answer; fp8 (--quantization fp8) would halve 16-bit weights"


def _cache_reason(plan: Plan) -> str:
    if plan.wants.cache_type == "fp8":
        return "half the bytes of 16-bit values, twice the tokens; answers may change"
    return "the type of the model, which changes no answer; fp8 (--kv-cache fp8) would hold twice the tokens"


def _speculation_reason(wants: Wants) -> tuple[str, str]:
    if wants.speculation is None:
        return "off", "it pays while the GPU is not full: at few streams and a tight time between tokens"
    by = str(wants.speculation.draft or "n-grams of the prompt")
    return f"{wants.speculation.tokens} tokens by {by}", "fewer steps for one stream, more work in each: measure it"


def set_apart(facts: ModelFacts, wants: Wants) -> tuple[Wants, Wants, int | None]:
    """What is left for the main engine, what a second one for urgent requests gets, and the GPU that it has to itself.

    With several GPUs the second has the last one; on a single one both share the memory, each with its own weights.
    """
    quick = replace(
        wants,
        gpus=1,
        streams=_URGENT,
        token_budget=_URGENT_BUDGET,
        mean_tokens=min(wants.mean_tokens or _ASSUMED_MEAN, wants.context or _ASSUMED_CONTEXT),
        context=wants.context or min(facts.context or _ASSUMED_CONTEXT, _ASSUMED_CONTEXT),
    )
    if wants.gpus > 1:
        return replace(wants, gpus=wants.gpus - 1), quick, wants.gpus - 1
    alone = _on(facts, quick, _layouts(facts, quick)[0], _draft(quick))
    tokens = max(_URGENT * alone.mean_tokens, alone.context + BLOCK)
    needed = alone.draft_bytes + alone.budget.weights + alone.budget.work + tokens * alone.budget.token
    share = math.ceil(100 * needed / wants.gpu_memory + 1) / 100
    left = round(UTILIZATION - share, 2)
    if left <= 0:
        raise UsageError(
            "a second engine needs the weights a second time",
            where="--low-latency",
            got=f"{needed / 2**30:.1f} GiB of a GPU with {wants.gpu_memory / 2**30:.1f}",
            expected="room for both engines",
            hint="give it a GPU of its own with --llm-gpus 2",
        )
    return replace(wants, share=left), replace(quick, share=share), None
