"""The rules on their page of the documentation, and one by one on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tooling.check.pages import rules_page
from tooling.check.registry import rules

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


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
