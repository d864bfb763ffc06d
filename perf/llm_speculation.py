"""Speculation in a tuning of vLLM: how it is asked for, and whether greedy answers stay the same with it.
Layer: above quality.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from perf.lengths import sentences
from perf.quality import Asker, Reference, compare, judge
from perf.slo import Judgement

_PROMPTS, _TOKENS = 8, 32
_COUNTER = r'^vllm:spec_decode_num_{}_tokens_total{{[^}}]*model="{}"[^}}]*}} (\S+)$'


class Drafts(NamedTuple):
    """Tokens that a speculation has proposed, and how many of them were accepted."""

    drafted: int
    accepted: int

    def __str__(self) -> str:
        return f"{self.accepted} of {self.drafted} drafted tokens accepted" if self.drafted else "no token was drafted"


def drafts_of(metrics: str, model: str) -> Drafts:
    """Those of a model that reports its engine's metrics, from the text of a server's; none where nothing is told."""
    kinds = ("draft", "accepted")
    found = (re.search(_COUNTER.format(kind, re.escape(model)), metrics, re.MULTILINE) for kind in kinds)
    return Drafts(*(round(float(one[1])) if one else 0 for one in found))


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
