"""Findings as text for people, as JSON values, and as GitHub's annotations. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tooling.check.finding import Finding, Rule, Severity
from tooling.check.runner import Report


def as_dict(report: Report) -> dict[str, Any]:
    """The report as JSON values."""
    return {
        "release": report.target.release.tag,
        "auto_complete": not report.target.strict,
        "models": list(report.models),
        "counts": {severity.value: report.count(severity) for severity in Severity},
        "silenced": report.silenced,
        "findings": [finding.as_dict() for finding in report.findings],
    }


def as_text(report: Report, *, details: bool = False) -> str:
    """One block per finding, worst first inside each file, and a line that sums up; notes only with `details`."""
    shown = [finding for finding in report.findings if details or finding.severity is not Severity.INFO]
    lines = [line for finding in shown for line in _lines(finding)]
    return "\n".join([*lines, summary(report)])


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.place}: {finding.severity.value}[{finding.rule.id}] {finding.message}"
    if finding.first and finding.says:
        yield f"    Triton says: {finding.says}"
    if finding.hint:
        yield f"    fix: {finding.hint}"


def summary(report: Report) -> str:
    """How much was judged and found, in one line."""
    counts = [_plural(report.count(severity), _WORDS[severity]) for severity in Severity if report.count(severity)]
    found = ", ".join(counts) or "nothing to complain about"
    silenced = f", {report.silenced} silenced" if report.silenced else ""
    judged = _plural(len(report.models), "model")
    mode = ", without auto-complete" if report.target.strict else ""
    return f"{judged} judged for Triton {report.target.release.tag}{mode}: {found}{silenced}"


_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def as_annotations(report: Report) -> str:
    """Workflow commands that GitHub turns into annotations of a pull request."""
    return "\n".join([*(_annotation(finding) for finding in report.findings), summary(report)])


_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def _annotation(finding: Finding) -> str:
    place = finding.place
    properties = {"file": place.file, "line": place.line, "col": place.column, "title": finding.rule.id}
    listed = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in properties.items() if value is not None)
    text = finding.message + (f"\nfix: {finding.hint}" if finding.hint else "")
    return f"::{_COMMANDS[finding.severity]} {listed}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in f"%\r\n{more}" else letter for letter in text)


def explanation(rule: Rule) -> str:
    """A rule in full: what, why, where it is known from, an example."""
    releases = [f"since {rule.since}"] if rule.since else []
    releases += [f"until {rule.until}"] if rule.until else []
    lines = [
        f"{rule.id}: {rule.about}",
        f"{rule.severity.value}, {rule.stage.value} stage{', ' + ', '.join(releases) if releases else ''}",
        "",
        rule.why,
        f"Source: {rule.source} ({rule.evidence.value}).",
        "",
        "Example:",
        *(f"    {line}" for line in rule.example.splitlines()),
    ]
    return "\n".join(lines)
