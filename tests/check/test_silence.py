"""Comments that silence rules, and what `--fix` says and keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def found(data: dict[str, Any]) -> list[str]:
    return [finding["rule"] for finding in data["findings"]]


@pytest.mark.parametrize(
    "config",
    [
        "max_batch_size: 8\nversion_policy { }  # tritune: ignore[version-policy-empty] all versions are meant",
        "max_batch_size: 8\n# tritune: ignore[version-policy-empty] all versions are meant\nversion_policy { }",
        "# tritune: ignore[version-policy-empty, tensor-twice] all are meant\nversion_policy { }\nmax_batch_size: 8",
        "# tritune: ignore[version-policy-empty] all\n# of them\n\nversion_policy { }\nmax_batch_size: 8",
        "max_batch_size: 8 version_policy { } # note # Tritune: Ignore [version-policy-empty] all",
        "version_policy { # tritune: ignore[version-policy-empty] all\n}\nmax_batch_size: 8",
    ],
)
def test_a_comment_silences_its_line(
    config: str, example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    data = check(example(config).path)
    assert "version-policy-empty" not in found(data)
    assert data["silenced"] == 1


@pytest.mark.parametrize(
    ("config", "silenced"),
    [
        ("# tritune: ignore[kind-cpu-with-gpus] r\ninstance_group {\n  kind: KIND_CPU\n  gpus: [ 0 ]\n}", True),
        ("instance_group { # tritune: ignore[kind-cpu-with-gpus] r\n  kind: KIND_CPU\n  gpus: [ 0 ]\n}", True),
        ("instance_group {\n  # tritune: ignore[kind-cpu-with-gpus] r\n  kind: KIND_CPU\n  gpus: [ 0 ]\n}", False),
        ("instance_group {\n  kind: KIND_CPU\n  gpus: [ 0 ]\n} # tritune: ignore[kind-cpu-with-gpus] r", False),
    ],
)
def test_a_comment_at_a_field_silences_all_of_it(
    config: str, silenced: bool, example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    data = check(example(f"max_batch_size: 8\n{config}").path)
    assert ("kind-cpu-with-gpus" not in found(data)) == silenced
    assert (data["exit_code"] == 0) == silenced


def test_what_is_silenced_keeps_no_server_from_starting(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    """The other model of the repository is well."""
    text = "max_batch_size: -1 # tritune: ignore[max-batch-size-negative] a test\n--- ../good/1/model.onnx\n"
    assert "exit-on-error" not in found(check(example(text + "x: FP32 [batch, 8] -> y: FP32 [batch, 8]").path))


def test_a_comment_elsewhere_does_not(example: Callable[[str], Any], check: Callable[..., dict[str, Any]]) -> None:
    path = example("# tritune: ignore[version-policy-empty] reason\nmax_batch_size: 8\nversion_policy { }").path
    assert "version-policy-empty" in found(check(path))


def test_a_comment_inside_a_string_is_none(example: Callable[[str], Any], check: Callable[..., dict[str, Any]]) -> None:
    text = 'parameters { key: "# tritune: ignore[parameter-unknown] x" value { string_value: "1" } }'
    assert "parameter-unknown" in found(check(example(text).path))


def test_what_has_no_line_is_silenced_from_anywhere(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    """The ONNX file has no lines; its findings are silenced in the config."""
    text = "max_batch_size: 8  # tritune: ignore[onnx-opset] the image has a newer runtime\n--- 1/model.onnx\n"
    assert "onnx-opset" not in found(check(example(text + "x: FP32 [batch, 8] -> y: FP32 [batch, 8] opset 23").path))


def test_fixes_are_told_and_keep_the_rest(example: Callable[[str], Any], run_cli: Callable[..., Any]) -> None:
    made = example(
        "max_batch_size: 8  # as measured\n"
        'input [ { name: "x", data_type: TYPE_INT32, dims: [ 8 ] } ]  # numbers\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }'
    )
    result = run_cli("check", made.path, "--fix")
    assert result.code == 0
    assert "[tensor-type]" in result.err
    assert "[tensor-dims]" in result.err
    config: Path = made.model / "config.pbtxt"
    assert config.read_text(encoding="utf-8") == (
        "max_batch_size: 8  # as measured\n"
        'input [ { name: "x", data_type: TYPE_FP32, dims: [ 8 ] } ]  # numbers\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }'
    )


def test_as_many_files_are_fixed_as_there_are(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    for number in range(110):
        version = tmp_path / f"model{number}" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text("class TritonPythonModel: pass", encoding="utf-8")
        text = 'backend: "python"\nversion_policy { }\ninstance_group { kind: KIND_CPU gpus: [ 0 ] }\n'
        (version.parent / "config.pbtxt").write_text(text, encoding="utf-8")
    result = run_cli("check", tmp_path, "--fix", "--fail-on", "warning")
    assert result.code == 0
    assert result.err.count("[version-policy-empty]") == result.err.count("[kind-cpu-with-gpus]") == 110
