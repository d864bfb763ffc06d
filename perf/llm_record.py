"""The record of a decision on a language model's scheduler. Layer: above the decision."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from perf.decision import markdown
from perf.llm_tune import LlmTuned, Tried
from perf.slo import METRICS
from tooling.repository import write_atomic
from tooling.units import format_duration_us

STUDIES = Path(".tritune") / "studies"


def write_record(result: LlmTuned, hardware: str, owner: str, studies: Path = STUDIES) -> Path:
    """Write it as Markdown and JSON, in place of the last one of this model; returns the path of the Markdown."""
    folder = studies / f"{result.model_dir.absolute().name}-llm"
    record = decided(result, hardware=hardware, owner=owner)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "decision.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    write_atomic(folder / "decision.md", markdown(record))
    return folder / "decision.md"


def decided(result: LlmTuned, *, hardware: str, owner: str) -> dict[str, Any]:
    """What was decided and why, what it rests on, what was left out, who has to look, and the way back."""
    changed = result.chosen is not result.current
    law, now = result.law, result.current.setting
    without = ", and the speculative_config that was there (or none)" if result.chosen.speculative else ""
    fixed = f"{law.fixed_us / 1e3:.2f} ms + {law.per_token_us / 1e3:.3f} ms a token"
    each = f"{law.per_sequence_us / 1e3:.3f} ms a sequence + {law.per_kv_token_us / 1e3:.5f} ms a cached token"
    return {
        "model": result.model_dir.absolute().name,
        "decided": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "owner": owner,
        "what": _what(result),
        "why": list(_why(result)),
        "cost": [],
        "assumptions": [f"traffic: {result.traffic}", f"goal: {result.slo}", f"hardware: {hardware}"],
        "not_explored": ["prefix caching; settings that the simulator ranks behind those measured"],
        "needs_a_person": list(_needs(result)),
        "evidence": [
            f"{result.points} measured points, {len(result.current.measured)} runs of each setting in turn",
            f"law of a step: {fixed} + {each}",
        ],
        "way_back": [f"{now}{without} in the model.json of {result.model_dir}"] if changed else [],
        "result": result.to_dict(),
    }


def _what(result: LlmTuned) -> str:
    if not result.met:
        return "no setting keeps the limits"
    if result.chosen is result.current:
        return "the current setting stays"
    return f"take {result.chosen}"


def _why(result: LlmTuned) -> Iterator[str]:
    yield _shown("current", result.current, result)
    yield from (_shown("tried", one, result) for one in result.tried)
    if result.speculation:
        yield result.speculation
    if result.capacity:
        yield f"capacity: {result.capacity}"


def _shown(name: str, one: Tried, result: LlmTuned) -> str:
    seen = one.figures
    terms = [term.metric for term in result.slo.terms]
    parts = [
        f"{metric} {format_duration_us(round(value)) if METRICS[metric].kind == 'duration' else f'{value:.0f}'}"
        for metric in dict.fromkeys(("tokens_per_s", "ttft_p95", "itl_p95", *terms))
        if (value := seen.get(METRICS[metric].field)) is not None
    ]
    return f"{name} {one}: {', '.join(parts)}"


def _needs(result: LlmTuned) -> Iterator[str]:
    yield "whether this traffic is that of production: compare it with real lengths and arrivals"
    yield "the hardware that will serve: steps cost otherwise on a GPU"
    if not result.met:
        yield "another limit, other hardware, or a smaller model: nothing measured keeps the limits"
