"""`tritune export`: result text, JSON, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def test_result_on_stdout_progress_on_stderr(run_cli: Run, bert_dir: Path, tmp_path: Path) -> None:
    done = run_cli("export", bert_dir, "--repository", tmp_path, "--name", "m")
    assert done.code == 0
    first, *rest = done.out.splitlines()
    assert first.startswith(f"{tmp_path}/m/1/model.onnx  (exported in ")
    assert "feature-extraction, fp32, torchscript, 0.1 MB, opset 18, IR 8" in first
    assert rest[:4] == [
        "  input   input_ids INT64 [-1, -1]",
        "  input   attention_mask INT64 [-1, -1]",
        "  input   token_type_ids INT64 [-1, -1]",
        "  output  last_hidden_state FP32 [-1, -1, 32]",
    ]
    assert rest[4].startswith("  verified against torch: max abs error ")
    assert [line.partition("]")[0] for line in done.err.splitlines()] == [f"export m [{n}/4" for n in (1, 2, 3, 4)]
    again = run_cli("export", bert_dir, "--repository", tmp_path, "--name", "m")
    assert (again.code, again.err) == (0, "")
    assert "reused, exported before" in again.out


def test_json_holds_the_manifest(run_cli: Run, bert_dir: Path, tmp_path: Path) -> None:
    done = run_cli("export", bert_dir, "-r", tmp_path, "--opset", "17", "--json", "-q")
    data = done.json["data"]
    assert (done.code, done.err, data["reused"]) == (0, "", False)
    assert data["path"] == str(tmp_path / "tiny-bert" / "1" / "model.onnx")
    assert data["manifest"]["opset"] == 17


def test_what_libraries_print_shows_only_with_v(run_cli: Run, bert_dir: Path, tmp_path: Path) -> None:
    done = run_cli("-v", "export", bert_dir, "--repository", tmp_path)
    assert done.code == 0
    assert "DeprecationWarning: You are using the legacy TorchScript-based ONNX export" in done.err
    assert "Loading weights" in done.err
    assert len(done.out.splitlines()) == 6


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["SOURCE", "--repository", "REPO", "--opset", "9"], 2, "--opset: out of range (got `9`; expected 14 to 23)"),
        (["SOURCE", "--repository", "REPO", "--opset", "22", "--release", "24.10"], 2, "expected 14 to 21 for the"),
        (["SOURCE", "--repository", "REPO", "--release", "24.13"], 2, "--release: no known release of Triton"),
        (["SOURCE", "--repository", "REPO", "--task", "summarization"], 2, "--task: unsupported task (got `summar"),
        (["SOURCE", "--repository", "REPO", "--external-data", "3GB"], 2, "--external-data: no file holds so much"),
        (["SOURCE", "--repository", "REPO", "--precision", "bf16"], 2, "--precision: no such choice (got `bf16`; exp"),
        (["SOURCE", "--repository", "REPO", "--name", "a b"], 2, "not a usable model name"),
        (["SOURCE", "--repository", "REPO", "--convert-io"], 2, "--convert-io is for --precision fp16"),
        (["REPO", "--repository", "REPO"], 2, "no such directory"),
        (["SOURCE"], 2, "--repository: it is missing"),
    ],
)
def test_wrong_usage(argv: list[str], code: int, message: str, run_cli: Run, bert_dir: Path, tmp_path: Path) -> None:
    places = {"SOURCE": str(bert_dir), "REPO": str(tmp_path / "repository")}
    done = run_cli("export", *(places.get(word, word) for word in argv))
    assert (done.code, done.out) == (code, "")
    assert f"{message}" in done.err
    assert "hint: " in done.err


def test_options_of_the_export_before_an_engine(run_cli: Run, bert_dir: Path, tmp_path: Path) -> None:
    """They count where the source is exported first; half inputs do not, where TensorRT 10 gets single precision."""
    argv = ("export", bert_dir, "-r", tmp_path / "r", "--format", "tensorrt", "--print-command", "--opset", "17", "-q")
    refused = run_cli(*argv, "--precision", "fp16", "--convert-io")
    assert (refused.code, refused.out) == (2, "")
    assert "--convert-io: TensorRT 10.5.0 chooses half precision itself" in refused.err
    assert not (tmp_path / "r").exists()
    done = run_cli(*argv, "--precision", "fp16", "--json")
    assert done.code == 0, done.err
    assert "--fp16" in done.json["data"]["command"]
    made = json.loads((tmp_path / "r" / "tiny-bert" / "export.json").read_bytes())
    assert (made["opset"], made["precision"]) == (17, "fp32")
