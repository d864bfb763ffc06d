"""Findings as SARIF 2.1.0, the format code-scanning services read. Layer: check."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any

from tooling.check.finding import Finding, Rule, Severity
from tooling.check.registry import rules
from tooling.check.runner import Report

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(report: Report) -> str:
    """One run with every rule, and a result for each finding."""
    listed = list(rules().values())
    order = {rule.id: index for index, rule in enumerate(listed)}
    driver = {
        "name": "tritune",
        "version": version("tritune"),
        "informationUri": "https://github.com/tritune/tritune",
        "rules": [_rule(rule) for rule in listed],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "utf16CodeUnits",
        "results": [_result(finding, order[finding.rule.id]) for finding in report.findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=2)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.about},
        "fullDescription": {"text": rule.why},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"stage": rule.stage.value, "source": rule.source, "evidence": rule.evidence.value},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    place = finding.place
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(place.file)}}
    if place.line is not None:
        location["region"] = {"startLine": place.line, "startColumn": place.column or 1}
    text = finding.message + (f" Fix: {finding.hint}" if finding.hint else "")
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
    }


def _uri(file: str) -> str:
    """A path as a URI reference: relative ones stay relative."""
    from urllib.parse import quote

    return Path(file).as_uri() if PurePath(file).is_absolute() else quote(PurePath(file).as_posix())
