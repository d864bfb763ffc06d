"""The page beside an engine's settings: what was chosen, which setting stands for it, and why. Layer: llm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tooling.llm.plan import Choice, Plan

FILE: Final = "engine.md"


def page(plan: Plan, model: str, served_by: str, choices: Sequence[Choice], settings: Mapping[str, str]) -> str:
    """Markdown with a row for each choice; `settings` names what stands for it in the engine's own words."""
    facts = plan.facts
    about = (
        f"{facts.architecture}, {facts.layers} layers, {facts.heads} heads over {facts.kv_heads} stored, "
        f"{facts.weight_bytes / 1e9:.2f} GB of weights{' (counted)' if facts.counted else ''}; for {served_by}."
    )
    lines = [
        f"# Why the engine is set so: {model}",
        "",
        about,
        "",
        "| choice | value | setting | why |",
        "|---|---|---|---|",
        *(f"| {name} | {value} | {settings.get(name, '')} | {why} |" for name, value, why in choices),
        "",
        "The memory is an estimate: the engine measures its own when it starts, and says so in its log.",
        *(f"\nNote: {note}." for note in plan.notes),
    ]
    return "\n".join(lines) + "\n"
