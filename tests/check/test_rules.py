"""Each rule finds its own example, is explained, and rests on more than memory when it is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tooling.check.finding import Evidence, Rule, Severity
from tooling.check.registry import MODULES, rules

RULES = list(rules().values())


@pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
def test_the_example_breaks_the_rule(
    rule: Rule,
    example: Callable[[str], Any],
    check: Callable[..., dict[str, Any]],
    serve: Callable[[dict[str, Any]], str],
) -> None:
    made = example(rule.example)
    options = [*made.options, *(["--url", serve(made.served)] if made.served else [])]
    data = check(made.path, *options)
    found = [finding for finding in data["findings"] if finding["rule"] == rule.id]
    assert found, [finding["rule"] for finding in data["findings"]]
    assert data["exit_code"] == int(any(finding["severity"] == "error" for finding in data["findings"]))


FIXABLE = [
    rule
    for rule in RULES
    if rule.id
    in {
        "agents-empty",
        "ensemble-with-backend",
        "name-differs",
        "version-policy-empty",
        "kind-cpu-with-gpus",
        "kind-model-with-gpus",
        "profile-outside-tensorrt",
        "cache-with-sequences",
        "cache-with-decoupled",
        "ensemble-platform",
        "ensemble-instances",
        "ensemble-optimization",
        "ensemble-warmup",
        "step-version",
        "queue-delay-without-batches",
        "priority-policies-without-levels",
        "direct-delay-without-utilization",
        "tensor-without-type",
        "reshape-empty-without-batching",
        "shape-tensor-outside-tensorrt",
        "non-linear-format-outside-tensorrt",
        "tensor-type",
        "type-not-served",
        "tensor-dims",
        "tensor-rank",
        "ragged-rank",
        "parameter-unknown",
        "plan-tensor-type",
        "plan-ragged-rank",
        "vllm-with-batching",
    }
]


@pytest.mark.parametrize("rule", FIXABLE, ids=[rule.id for rule in FIXABLE])
def test_a_safe_fix_takes_its_findings_away(
    rule: Rule, example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    made = example(f"# kept\n{rule.example}")
    config = made.model / "config.pbtxt"
    before = config.read_text(encoding="utf-8")
    after = check(made.path, *made.options, "--fix")
    assert not [finding for finding in after["findings"] if finding["fixable"]]
    assert config.read_text(encoding="utf-8").startswith("# kept\n")
    assert config.read_text(encoding="utf-8") != before


def test_ids_are_words_and_unique() -> None:
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id) for rule in RULES)
    assert len(RULES) == sum(len(module.RULES) for module in MODULES)


def test_what_is_only_recalled_is_no_error() -> None:
    assert not [r.id for r in RULES if r.evidence is Evidence.RECALLED and r.severity is Severity.ERROR]
