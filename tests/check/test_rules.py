"""Each rule finds its own example, is explained, and rests on more than memory when it is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tooling.check.finding import Evidence, Rule, Severity
from tooling.check.registry import rules

RULES = list(rules().values())


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_the_example_breaks_the_rule(
    rule: Rule, example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    made = example(rule.example)
    data = check(made.path, *made.options)
    found = [finding for finding in data["findings"] if finding["rule"] == rule.id]
    assert found, [finding["rule"] for finding in data["findings"]]
    assert data["exit_code"] == int(any(finding["severity"] == "error" for finding in data["findings"]))


def test_ids_are_words_and_unique() -> None:
    modules_list = [rule.id for rule in RULES]
    assert len(set(modules_list)) == len(modules_list)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in modules_list)


def test_what_is_only_recalled_is_no_error() -> None:
    assert not [r.id for r in RULES if r.evidence is Evidence.RECALLED and r.severity is Severity.ERROR]
