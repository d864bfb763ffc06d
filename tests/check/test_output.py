"""What `tritune check` writes: text, JSON, SARIF, annotations, exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

BROKEN = "max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 4, 16 ] }"
MODEL = "x: FP32 [batch, 8] -> y: FP32 [batch, 8]"
WARNED = "max_batch_size: 8\nversion_policy { }"


@pytest.fixture
def broken(example: Callable[[str], Any]) -> Path:
    path: Path = example(BROKEN).path
    return path


def test_text_gives_place_rule_what_triton_says_and_the_way_out(broken: Path, run_cli: Callable[..., Any]) -> None:
    place = f"{broken}/example/config.pbtxt:2:47"
    lines = run_cli("check", broken).out.splitlines()
    assert lines[:3] == [
        f"{place}: error[preferred-size-above-max] preferred_batch_size 16 > max_batch_size 8",
        "    Triton says: dynamic batching preferred size must be <= max batch size for example",
        "    fix: drop 16, or raise max_batch_size",
    ]
    assert lines[-1] == "1 model judged for Triton 24.10: 1 error"


def test_exit_code_follows_the_failing_level(example: Callable[[str], Any], run_cli: Callable[..., Any]) -> None:
    path = example(WARNED).path
    assert run_cli("check", path).code == 0
    assert run_cli("check", path, "--fail-on", "warning").code == 1


def test_nothing_wrong_is_said_in_one_line(example: Callable[[str], Any], run_cli: Callable[..., Any]) -> None:
    path = example("max_batch_size: 8\ninstance_group { kind: KIND_CPU count: 1 }").path
    result = run_cli("check", path)
    assert result.code == 0
    assert result.out == "1 model judged for Triton 24.10: nothing to complain about\n"


def test_sarif_is_complete(broken: Path, run_cli: Callable[..., Any]) -> None:
    result = run_cli("check", broken, "--format", "sarif")
    assert result.code == 1
    log = json.loads(result.out)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    (found,) = run["results"]
    assert run["tool"]["driver"]["rules"][found["ruleIndex"]]["id"] == found["ruleId"] == "preferred-size-above-max"
    assert found["level"] == "error"
    location = found["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == (broken / "example" / "config.pbtxt").as_uri()
    assert location["region"] == {"startLine": 2, "startColumn": 47}


def test_annotations_escape_what_github_would_take_for_its_own(
    example: Callable[[str], Any], run_cli: Callable[..., Any]
) -> None:
    path = example('max_batch_size: 8\nparameters { key: "a\\n::b" value { string_value: "1" } }').path
    lines = run_cli("check", path, "--format", "github").out.splitlines()
    (line,) = [line for line in lines if "parameter-unknown" in line]
    assert line.startswith("::warning file=")
    assert ",title=parameter-unknown::unknown parameter a%0A::b" in line


def test_json_counts_and_tells_what_the_server_would_say(broken: Path, check: Callable[..., dict[str, Any]]) -> None:
    data = check(broken)
    assert data["counts"] == {"error": 1, "warning": 0, "info": 0}
    (finding,) = data["findings"]
    assert finding["first"] is True
    assert finding["server"] == "dynamic batching preferred size must be <= max batch size for example"


def test_only_the_first_refusal_is_the_servers(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    path = example(
        "max_batch_size: -1\ndynamic_batching { preferred_batch_size: [ 0 ] }\nversion_policy { latest { } }"
    ).path
    errors = [finding for finding in check(path)["findings"] if finding["severity"] == "error"]
    assert [finding["rule"] for finding in errors if finding["first"]] == ["max-batch-size-negative"]
    assert {"preferred-size-not-positive", "no-version"} <= {finding["rule"] for finding in errors}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "nothing to check"),
        (["/no/such/place"], 2, "does not exist"),
        (["--release", "24.13"], 2, "24.13"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, words: str, run_cli: Callable[..., Any], broken: Path) -> None:
    result = run_cli("check", *([broken] if "--release" in arguments else []), *arguments)
    assert (result.code, result.out) == (code, "")
    assert words in result.err


def test_the_hook_judges_the_configs_that_are_committed(
    example: Callable[[str], Any], run_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs for a changed config or model file, and judges the whole repository that its arguments name."""
    hooks = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    hook = next(hook for hook in hooks if hook["id"] == "tritune-check")
    text = BROKEN + "\n--- configs/gpu.pbtxt\nmax_batch_size: -1\n--- repository\nmodel_repository"
    made = example(text + "\n--- ../good/1/model.onnx\n" + MODEL)
    (made.path / "good" / "config.pbtxt").write_text("max_batch_size: 8", encoding="utf-8")
    names = [path.name for path in made.path.rglob("*") if path.is_file() and re.search(hook["files"], str(path))]
    assert sorted(names) == ["config.pbtxt", "config.pbtxt", "gpu.pbtxt", "model.onnx", "model.onnx"]
    monkeypatch.chdir(made.path.parent)
    program, *command = hook["entry"].split()
    assert program == "tritune" and not hook["pass_filenames"]
    result = run_cli(*command, *hook["args"], "--json")
    assert result.code == 1
    found = [f["rule"] for f in result.json["data"]["findings"] if f["severity"] == "error"]
    assert "preferred-size-above-max" in found


def test_a_model_is_chosen_by_name(example: Callable[[str], Any], run_cli: Callable[..., Any]) -> None:
    path = example(BROKEN + "\n--- ../good/1/model.onnx\nx: FP32 [batch, 8] -> y: FP32 [batch, 8]").path
    assert run_cli("check", path, "--model", "good").code == 0
    assert run_cli("check", path, "--model", "example").code == 1
    assert "did you mean `good`" in run_cli("check", path, "--model", "god").err


def test_one_file_is_judged_with_its_model(broken: Path, check: Callable[..., dict[str, Any]]) -> None:
    rules = [finding["rule"] for finding in check(broken / "example" / "config.pbtxt")["findings"]]
    assert "preferred-size-above-max" in rules


def test_another_config_is_judged_by_its_name(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    made = example("max_batch_size: 8\n--- configs/gpu.pbtxt\nmax_batch_size: -1")
    assert check(made.path)["counts"]["error"] == 0
    data = check(made.path, "--config-name", "gpu")
    assert data["counts"]["error"] == 1
    assert data["findings"][0]["file"].endswith("configs/gpu.pbtxt")
