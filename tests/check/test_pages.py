"""The rules on their page of the documentation, and one by one on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tooling.check.finding import Rule, Severity, Stage
from tooling.check.registry import rules

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
INTRODUCTION = """# Rules of `tritune check`

Generated from the rules themselves (`pytest tests/check/test_pages.py --update-golden`); `tritune check --explain RULE`
says the same. An example is the config of a model `example`; other files follow it under lines `--- PATH`, ONNX models
as `inputs -> outputs`, TorchScript as the declaration of its `forward`, what a running server has as JSON under
`--- server`. A rule of the load stage that looks at inputs and outputs is met at the poll stage already when the server
runs with `--disable-auto-complete-config`.
"""


def rules_page(rules: Iterable[Rule]) -> str:
    """Every rule: a table by stage first, then each in full."""
    listed = list(rules)
    lines = [INTRODUCTION]
    for stage in Stage:
        lines += [f"## {stage.value.capitalize()} stage", "", "| rule | severity | what is wrong |", "|---|---|---|"]
        own = [rule for rule in listed if rule.stage is stage]
        order = list(Severity)
        for rule in sorted(own, key=lambda rule: order.index(rule.severity)):
            lines.append(f"| [`{rule.id}`](#{rule.id}) | {rule.severity.value} | {cell(rule.about)} |")
        lines.append("")
    lines += ["## In full", ""]
    for rule in sorted(listed, key=lambda rule: rule.id):
        lines += section(rule)
    return "\n".join(lines).rstrip() + "\n"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def section(rule: Rule) -> Iterator[str]:
    yield from (f"### {rule.id}", "", f"{rule.about} {rule.why}", "")
    releases = f", since {rule.since}" if rule.since else ""
    releases += f", until {rule.until}" if rule.until else ""
    yield from (f"{rule.severity.value}, {rule.stage.value} stage{releases}; {rule.source}, {rule.evidence.value}.", "")
    yield from ("```", rule.example.strip("\n"), "```", "")


def test_the_page_is_current(update_golden: bool) -> None:
    page = rules_page(rules().values())
    if update_golden:
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page


def test_explain_says_what_why_and_shows_an_example(run_cli: Callable[..., Any]) -> None:
    result = run_cli("check", "--explain", "preferred-size-above-max")
    assert result.code == 0
    assert "error, poll stage" in result.out
    assert "preferred_batch_size: [ 4, 16 ]" in result.out


def test_explain_all_lists_every_rule(run_cli: Callable[..., Any]) -> None:
    listed = run_cli("check", "--explain", "all").out.splitlines()
    assert [line.split()[0] for line in listed] == list(rules())


def test_explain_suggests_the_rule_that_was_meant(run_cli: Callable[..., Any]) -> None:
    result = run_cli("check", "--explain", "prefered-size-above-max")
    assert result.code == 2
    assert "preferred-size-above-max" in result.err
