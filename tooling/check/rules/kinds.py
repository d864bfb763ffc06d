"""Short ways to say what kind of rule one is. Layer: check."""

from __future__ import annotations

from typing import Any

from tooling.check.finding import Evidence, Rule, Severity, Stage


def poll(rule: str, about: str, why: str, example: str, source: str, **facts: Any) -> Rule:
    """Triton refuses the config as soon as it reads it."""
    return Rule(rule, Severity.ERROR, Stage.POLL, about, why, example, source, **facts)


def dependency(rule: str, about: str, why: str, example: str, source: str, **facts: Any) -> Rule:
    """Triton refuses an ensemble because of the models it is made of."""
    return Rule(rule, Severity.ERROR, Stage.DEPENDENCY, about, why, example, source, **facts)


def load(rule: str, about: str, why: str, example: str, source: str, **facts: Any) -> Rule:
    """The model fails to load."""
    return Rule(rule, Severity.ERROR, Stage.LOAD, about, why, example, source, **facts)


def request(rule: str, about: str, why: str, example: str, source: str, **facts: Any) -> Rule:
    """Every such request fails."""
    return Rule(rule, Severity.ERROR, Stage.REQUEST, about, why, example, source, **facts)


def advice(rule: str, about: str, why: str, example: str, source: str, **facts: Any) -> Rule:
    """It loads, and does not do what is written."""
    facts.setdefault("evidence", Evidence.READ)
    return Rule(rule, Severity.WARNING, facts.pop("stage", Stage.LOAD), about, why, example, source, **facts)


def note(rule: str, about: str, why: str, example: str, source: str, **facts: Any) -> Rule:
    """Good to know."""
    facts.setdefault("evidence", Evidence.READ)
    return Rule(rule, Severity.INFO, facts.pop("stage", Stage.LOAD), about, why, example, source, **facts)
