"""Repositories that go wrong as real ones did: the verdict, and that the message names tensor, field and values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

KNOWN = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
CASES = KNOWN["cases"]
ORDER = ("error", "warning", "info")


def _text(content: Any) -> str:
    """The text of a config: as it stands, or one of the known texts with single lines changed and more behind it."""
    if isinstance(content, str):
        return content
    text = KNOWN["texts"][content["use"]]
    for line, other in content.get("change", {}).items():
        assert line in text
        text = text.replace(line, other)
    return text + content.get("more", "")


@pytest.fixture
def write_case(tmp_path: Path, write: ModuleType) -> Callable[[dict[str, Any]], Path]:
    def make(case: dict[str, Any]) -> Path:
        root = tmp_path / case["name"]
        root.mkdir()
        for name, content in case["files"].items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".onnx":
                write.write_model(path, KNOWN["models"].get(content, content))
            elif path.suffix == ".plan":
                path.write_bytes(write.plan(content.split()[1]))
            else:
                path.write_text(_text(content), encoding="utf-8")
        return root

    return make


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(
    case: dict[str, Any], write_case: Callable[..., Path], check: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    root = write_case(case)
    options = list(case.get("options", []))
    if "request" in case:
        (tmp_path / "request.json").write_text(case["request"], encoding="utf-8")
        options += ["--request", str(tmp_path / "request.json")]
    data = check(root / case.get("path", "."), *options)
    findings = data["findings"]
    severities = {finding["severity"] for finding in findings}
    worst = next((severity for severity in ORDER if severity in severities), "ok")
    assert worst == case["verdict"] or (case["verdict"] == "ok" and worst == "info")
    if "rule" in case:
        assert case["rule"] in [finding["rule"] for finding in findings]
    said = "\n".join(f"{finding['file']} {finding['message']} {finding['hint']}" for finding in findings)
    assert [name for name in case.get("names", []) if name not in said] == []
    if "server" in case:
        assert case["server"] in next(finding["server"] for finding in findings if finding["first"])
    if case.get("loads"):
        assert not [finding for finding in findings if finding["severity"] == "error" and finding["stage"] != "request"]


def test_a_finding_stands_at_its_field(write_case: Callable[..., Path], check: Callable[..., dict[str, Any]]) -> None:
    """The second of two preferred sizes, in the line of dynamic_batching."""
    case = next(case for case in CASES if case["name"] == "preferred_above_max")
    root = write_case(case)
    (finding,) = [f for f in check(root)["findings"] if f["severity"] == "error"]
    line = (root / "enc" / "config.pbtxt").read_text(encoding="utf-8").splitlines()[finding["line"] - 1]
    assert line[finding["column"] - 1 :].startswith("16")
