"""The rules as a page of documentation, in Markdown. Layer: check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tooling.check.finding import Rule, Severity, Stage

_INTRODUCTION = """# Rules of `tritune check`

Generated from the rules themselves (`pytest tests/check/test_pages.py --update-golden`); `tritune check --explain RULE`
says the same. An example is the config of a model `example`; other files follow it under lines `--- PATH`, ONNX models
as `inputs -> outputs`, TorchScript as the declaration of its `forward`, what a running server has as JSON under
`--- server`. A rule of the load stage that looks at inputs and outputs is met at the poll stage already when the server
runs with `--disable-auto-complete-config`.
"""


def rules_page(rules: Iterable[Rule]) -> str:
    """Every rule: a table by stage first, then each in full."""
    listed = list(rules)
    lines = [_INTRODUCTION]
    for stage in Stage:
        lines += [f"## {stage.value.capitalize()} stage", "", "| rule | severity | what is wrong |", "|---|---|---|"]
        own = [rule for rule in listed if rule.stage is stage]
        order = list(Severity)
        for rule in sorted(own, key=lambda rule: order.index(rule.severity)):
            lines.append(f"| [`{rule.id}`](#{rule.id}) | {rule.severity.value} | {_cell(rule.about)} |")
        lines.append("")
    lines += ["## In full", ""]
    for rule in sorted(listed, key=lambda rule: rule.id):
        lines += _section(rule)
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _section(rule: Rule) -> Iterator[str]:
    yield from (f"### {rule.id}", "", f"{rule.about} {rule.why}", "")
    releases = f", since {rule.since}" if rule.since else ""
    releases += f", until {rule.until}" if rule.until else ""
    yield from (f"{rule.severity.value}, {rule.stage.value} stage{releases}; {rule.source}, {rule.evidence.value}.", "")
    yield from ("```", rule.example.strip("\n"), "```", "")
