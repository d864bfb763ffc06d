"""Broken and hostile files: findings or a plain error, never a traceback, and never for long."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tooling.check.registry import rules
from tooling.check.runner import check as judge
from tooling.check.target import Target
from tooling.errors import UsageError
from tooling.releases import current_release

COUNT = 10 * int(os.environ.get("TRITUNE_FUZZ", "15"))
EXAMPLES = [rule.example for rule in rules().values() if "--- request\n" not in rule.example]
PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"'",
    b":",
    b"\x00",
    b"\xff",
    b"-1",
    b"99999999999999999999",
    b"#",
    b"\n",
    b"inf",
]


def _mutate(data: bytes, source: random.Random) -> bytes:
    """Take out, double, replace or insert a few pieces."""
    for _ in range(source.randint(1, 4)):
        start = source.randint(0, len(data))
        end = min(len(data), start + source.randint(0, 12))
        kind = source.randrange(4)
        if kind == 0:
            data = data[:start] + data[end:]
        elif kind == 1:
            data = data[:start] + source.choice(PIECES) + data[end:]
        elif kind == 2:
            data = data[:end] + data[start:end] + data[end:]
        else:
            data = data[:start] + source.randbytes(source.randint(1, 4)) + data[end:]
    return data


@pytest.mark.parametrize("strict", [False, True])
def test_mutated_files_end_in_findings(strict: bool, write: ModuleType, tmp_path: Path) -> None:
    source = random.Random(7)
    target = Target(current_release(), strict=strict, gpus=0)
    for number in range(COUNT):
        made = write.write_example(tmp_path / str(number), source.choice(EXAMPLES))
        files = sorted(path for path in made.path.rglob("*") if path.is_file()) if made.path.is_dir() else [made.path]
        for path in source.sample(files, min(2, len(files))):
            path.write_bytes(_mutate(path.read_bytes(), source))
        try:
            judge(made.path, target)
        except UsageError:
            continue  # a path that is nothing to judge


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.pbtxt", b"\x00" * (50 << 20)),
        ("config.pbtxt", b"input { } " * 26_000),
        ("config.pbtxt", b"dynamic_batching { " * 13_000),
        ("config.pbtxt", b"parameters { key: 'a' value { string_value: '${b}' } } " * 4_700),
        ("1/model.onnx", b"\x08\x01" * (25 << 20)),
        ("1/model.onnx", b"\x0a" * (50 << 20)),
        ("1/model.onnx", b""),
        ("1/model.py", b"(" * 100_000),
        (
            "1/model.py",
            b"class TritonPythonModel:\n    def execute(self, r):\n"
            + b"        a.get_response_sender().send(b)\n" * 9_000,
        ),
    ],
    ids=["zeros", "inputs", "nesting", "placeholders", "fields", "lengths", "empty", "brackets", "calls"],
)
def test_junk_is_told_and_passed(
    name: str, content: bytes, tmp_path: Path, check: Callable[..., dict[str, Any]]
) -> None:
    path = tmp_path / "repository" / "model" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (path.parents[len(Path(name).parts) - 1] / "1").mkdir(exist_ok=True)
    assert check(tmp_path / "repository")["findings"]


def test_loops_of_links_and_odd_names(tmp_path: Path, check: Callable[..., dict[str, Any]]) -> None:
    root = tmp_path / "repository"
    for name in ("loop", "a b", "é", "..odd", "it's"):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text('backend: "python"\nlabels: 1', encoding="utf-8")
    (root / "loop" / "1" / "model.onnx").symlink_to("model.onnx")
    (root / "loop" / "config.pbtxt").unlink()
    (root / "loop" / "config.pbtxt").symlink_to("config.pbtxt")
    (root / "self").symlink_to(".")
    (root / "gone").symlink_to("nowhere")
    data = check(root)
    assert {"loop", "a b", "é", "..odd", "it's", "self"} == set(data["models"])
    assert next(finding["rule"] for finding in data["findings"] if finding["model"] == "loop") == "config-unreadable"


def test_nothing_is_executed_or_unpickled(tmp_path: Path, check: Callable[..., dict[str, Any]]) -> None:
    """Code and pickles that would leave a mark."""
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w').close()\nclass TritonPythonModel: pass\n"
    pickle = f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode()
    for name, file, content in (("python", "model.py", code.encode()), ("torch", "model.pt", pickle)):
        path = tmp_path / "repository" / name / "1" / file
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    check(tmp_path / "repository")
    assert not mark.exists()


def test_a_model_with_its_weights_outside_is_read_without_them(
    write: ModuleType, tmp_path: Path, check: Callable[..., dict[str, Any]]
) -> None:
    """A sparse file of three gigabytes stands for the weights; nobody reads it."""
    path = write.write_model(
        tmp_path / "repository" / "big" / "1" / "model.onnx", f"{write.MODEL} external weights.data"
    )
    with path.with_name("weights.data").open("wb") as weights:
        weights.truncate(3 << 30)
    assert check(tmp_path / "repository")["counts"]["error"] == 0


def test_a_model_that_no_session_takes_prints_nothing(
    write: ModuleType, tmp_path: Path, run_cli: Callable[..., Any]
) -> None:
    """ONNX Runtime names the operator it does not know, in bytes that are no text; its Python side prints on that."""
    path = write.write_model(tmp_path / "repository" / "odd" / "1" / "model.onnx", write.MODEL)
    path.write_bytes(path.read_bytes().replace(b"Unique", b"Uniqu\xff"))
    result = run_cli("check", tmp_path / "repository", "--json")
    assert json.loads(result.out)["error"] is None
    assert result.err == ""
