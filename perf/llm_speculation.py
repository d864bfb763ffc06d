"""Speculation in a tuning of vLLM: how it is asked for, and whether greedy answers stay the same with it.
Layer: above quality.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perf.lengths import sentences
from perf.quality import Asker, Reference, compare, judge
from perf.slo import Judgement

_PROMPTS, _TOKENS = 8, 32


def speculative_config(tokens: int, draft: str | None) -> dict[str, Any]:
    """The value of vLLM's argument `speculative_config`: n-grams of the text so far, or the model in a directory."""
    if draft is None:
        return {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return {"method": "draft_model", "model": draft, "num_speculative_tokens": tokens}


def spelled(config: Mapping[str, Any]) -> str:
    """A speculation in words."""
    by = "n-grams" if config["method"] == "ngram" else config["model"]
    return f"{config['num_speculative_tokens']} tokens speculated by {by}"


def same_answers(url: str, plain: str, other: str) -> tuple[Judgement, ...]:
    """What the usual limits of quality say of the greedy answers of one model on a server, beside those of another."""
    prompts = sentences()[:_PROMPTS]
    before, after = (Asker(url, name).answers(prompts, _TOKENS, lambda: None) for name in (plain, other))
    return judge(compare(Reference(plain, _TOKENS, before), after), "")
