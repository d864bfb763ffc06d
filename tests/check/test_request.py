"""Files of requests that are none, and those that are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

X = {"name": "x", "datatype": "FP32", "shape": [1, 8]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a request"),
        ("[" * 200_000, "not a request"),
        ("[]", "holds no request"),
        ('{"data": []}', "holds no request"),
        ('{"data": 3}', "`data` that is no list"),
        ('{"data": [3]}', "step 0 that is no object"),
        ("3", "request 0 that is no object"),
        ("{}", "no `inputs`"),
        ('{"inputs": []}', "no inputs"),
        ('{"inputs": 3}', "`inputs` that is no list"),
        ('{"inputs": [3]}', "input 0 that is no object"),
        ('{"inputs": [{"shape": [1]}]}', "no `name`"),
        ('{"inputs": [{"name": "x"}]}', "no `shape`"),
        ('{"inputs": [{"name": "x", "shape": [1.5]}]}', "not of whole numbers"),
        ('{"inputs": [{"name": "x", "shape": [1], "datatype": 1}]}', "`datatype` that is no text"),
        (json.dumps({"inputs": [X], "parameters": [1]}), "`parameters` that is no object"),
        (json.dumps({"inputs": [X], "outputs": [1]}), "output 0 that is no object"),
    ],
)
def test_what_is_no_request_is_told(
    text: str, says: str, tmp_path: Path, example: Callable[[str], Any], run_cli: Callable[..., Any]
) -> None:
    path = tmp_path / "request.json"
    path.write_text(text, encoding="utf-8")
    result = run_cli("check", example("max_batch_size: 8").path, "--request", path)
    assert (result.code, result.out) == (2, "")
    assert says in result.err


@pytest.mark.parametrize(
    "content",
    [
        {"inputs": [X]},
        [{"inputs": [X]}, {"inputs": [X], "id": "2", "outputs": [{"name": "y"}], "parameters": {"priority": 1}}],
        X,
        {"data": [{"x": [0.0] * 8}, {"x": {"content": [0.0] * 8, "shape": [8]}}]},
        {"data": [[{"x": [0.0] * 8}]]},
    ],
    ids=["body", "bodies", "input", "steps", "sequence"],
)
def test_what_is_a_request_is_judged(
    content: Any, tmp_path: Path, example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert check(example("max_batch_size: 8").path, "--request", str(path))["findings"] == []
