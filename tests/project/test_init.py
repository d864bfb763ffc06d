"""`tritune init`: the file it writes is right and has what was asked; without a terminal it never waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tooling.cli import build


def test_a_file_from_options(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "tritune.yaml"
    made = run_cli(
        *("init", "--file", file, "--source", "org/My-Model", "--pipeline", "text", "--slo", "p99<50ms,throughput"),
        *("--request-rate", "40", "--owner", "search: team", "--deploy", "compose", "--deploy", "kubernetes"),
    )
    assert made.code == 0, made.err
    project = build.read(file)
    model = project.models["my-model"]
    assert (model.source, model.slo, model.workload) == ("org/My-Model", "p99<50ms,throughput", {"request_rate": 40.0})
    assert model.export is not None and model.export.given() == {"pipeline": "text"}
    assert project.owner == "search: team"
    assert project.deploy is not None and project.deploy.compose and project.deploy.kubernetes
    assert "p99<50ms" in file.read_text()
    again = run_cli("init", "--file", file, "--source", "a")
    assert (again.code, again.out) == (2, "")
    assert "--force" in again.err


def test_a_language_model_and_a_repository_that_is_there(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "models" / "Llama-3").mkdir(parents=True)
    assert run_cli("init", "--file", tmp_path / "llm.yaml", "--llm", "models/Llama-3", "--no-tune").code == 0
    assert build.read(tmp_path / "llm.yaml").models["llama-3"].tune is False
    (tmp_path / "models" / "a").mkdir()
    (tmp_path / "models" / "a" / "config.pbtxt").write_text("")
    made = run_cli("init", "--file", tmp_path / "there.yaml", "--repository", "models", "--json")
    assert made.json["data"]["models"] == ["a"]
    assert build.read(tmp_path / "there.yaml").models["a"].origin == ""


def test_what_is_not_said_is_no_question_without_a_terminal(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    refused = run_cli("init", "--file", tmp_path / "tritune.yaml")
    assert (refused.code, refused.out) == (2, "")
    assert "--source or --llm" in refused.err
    assert not (tmp_path / "tritune.yaml").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--source", "a", "--llm", "b"], "exclude each other"),
        (["--source", "a", "--slo", "p99<50"], "tritune init"),
        (["--source", "a", "--release", "1.2"], "tritune init"),
        (["--source", "./nowhere"], "tritune init: `models.nowhere.source`: no such directory"),
        (["--llm", "nowhere"], "there is no such file or directory"),
        (["--llm", "a", "--pipeline", "text"], "--source"),
        (["--source", "a", "--concurrency", "2", "--request-rate", "3"], "exclude each other"),
    ],
)
def test_answers_that_cannot_be(run_cli: Callable[..., Any], tmp_path: Path, options: list[str], told: str) -> None:
    refused = run_cli("init", "--file", tmp_path / "tritune.yaml", *options)
    assert (refused.code, refused.out) == (2, "")
    assert told in refused.err
    assert not (tmp_path / "tritune.yaml").exists()


def test_the_schema(run_cli: Callable[..., Any]) -> None:
    shown = run_cli("init", "--schema")
    assert json.loads(shown.out)["properties"]["models"]["description"]


def test_on_a_terminal_it_asks_what_no_option_says(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    command = [sys.executable, "-m", "tooling.cli.step", "init"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=terminal, stderr=terminal, stdout=subprocess.PIPE) as process:
        os.close(terminal)
        os.write(master, b"org/Some-Model\ny\np99<80ms\n")
        out, _ = process.communicate(timeout=60)
    os.close(master)
    assert process.returncode == 0
    assert b"tritune build" in out
    model = build.read(tmp_path / "tritune.yaml").models["some-model"]
    assert (model.source, model.slo) == ("org/Some-Model", "p99<80ms")
    assert model.export is not None and model.export.given() == {"pipeline": "text"}
