"""`tritune init`: the file it writes is right and has what was asked; without a terminal it never waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from tooling.cli import build, init
from tooling.errors import UsageError
from tooling.project.section import Section
from tooling.repository import alone_in


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
        (
            ["--source", "a", "--slo", "ttft_p95<1s"],
            "init --slo: no limit or goal for a model that answers whole requests",
        ),
        (["--llm", "a", "--slo", "p99<100ms"], "init --slo: no limit or goal for a language model (got `p99<100ms`; "),
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


def test_a_language_model_has_its_traffic_where_its_tuning_reads_it(
    run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "hf").mkdir()
    file = tmp_path / "tritune.yaml"
    asked = ("init", "--force", "--file", file, "--llm", "hf")
    for options, tune in (([], {"concurrency": 8}), (["--request-rate", "3"], {"request_rate": 3.0})):
        assert run_cli(*asked, *options).code == 0
        model = build.read(file).models["hf"]
        assert model.workload is None and isinstance(model.tune, Section) and model.tune.given() == tune
    refused = run_cli(*asked, "--no-tune", "--concurrency", "4")
    assert (refused.code, refused.out) == (2, "") and "--concurrency: a language model has traffic" in refused.err


def test_models_of_a_repository_are_taken_as_their_backends_can_be_tuned(
    run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    for name, config in {
        "chat": 'backend: "vllm"',
        "text": 'platform: "onnxruntime_onnx"',
        "torch": 'platform: "pytorch_libtorch"',
        "odd": "max_batch_size: [",
    }.items():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(config)
    asked = ("init", "--file", tmp_path / "tritune.yaml", "--repository", "models")
    assert run_cli(*asked, "--slo", "throughput").code == 0
    found = build.read(tmp_path / "tritune.yaml").models
    assert (found["torch"].tune, found["torch"].slo, found["torch"].workload) == (False, None, None)
    assert (found["text"].tune, found["text"].slo, found["text"].workload) == (None, "throughput", {"concurrency": 8})
    assert (found["odd"].tune, found["odd"].workload) == (None, {"concurrency": 8})
    assert found["chat"].workload is None and isinstance(found["chat"].tune, Section)
    named = run_cli(*asked, "--force", "--name", "other")
    assert (named.code, named.out) == (2, "") and "--name: the models of the repository have their names" in named.err


def test_a_model_without_a_config_is_taken_by_its_file(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    for file in ("onnx/1/model.onnx", "torch/1/model.pt", "notes/README", "versions/1/other"):
        path = tmp_path / "models" / file
        path.parent.mkdir(parents=True)
        path.touch()
    asked = ("init", "--file", tmp_path / "tritune.yaml", "--repository", "models", "--json")
    assert run_cli(*asked).json["data"]["models"] == ["onnx", "torch"]
    found = build.read(tmp_path / "tritune.yaml").models
    assert (found["onnx"].tune, found["torch"].tune) == (None, False)


def test_limits_are_for_all_models_of_a_repository(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    for name, config in {"chat": 'backend: "vllm"', "text": 'platform: "onnxruntime_onnx"'}.items():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").write_text(config)
    asked = ("init", "--file", tmp_path / "tritune.yaml", "--repository", "models", "--slo")
    for slo in ("p99<100ms", "ttft<1s", "ttft<1s,p99<100ms"):
        refused = run_cli(*asked, slo)
        assert (refused.code, refused.out) == (2, "")
        said = f"no limit or goal for all of these models (got `{slo}`; expected some of throughput)"
        assert f"tritune init --slo: {said}" in refused.err
        assert "leave it out, and write `slo` for each into the file" in refused.err
    assert "not a duration" in run_cli(*asked, "p99<100").err
    assert run_cli(*asked, "throughput>5").code == 0


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (["--source", "org/a"], ("none", 0)),
        (["--source", "org/a", "--no-tune"], (None, None)),
        (["--llm", "hf"], (None, None)),
    ],
)
def test_what_is_tuned_on_the_cpu_is_deployed_there(
    run_cli: Callable[..., Any], tmp_path: Path, options: list[str], gpus: tuple[str | None, int | None]
) -> None:
    (tmp_path / "hf").mkdir()
    file = tmp_path / "tritune.yaml"
    made = run_cli("init", "--file", file, *options, "--deploy", "compose", "--deploy", "kubernetes")
    assert made.code == 0, made.err
    deploy = build.read(file).deploy
    assert (deploy.compose.given().get("gpus"), deploy.kubernetes.given().get("gpus")) == gpus


def test_of_two_at_once_the_second_keeps_what_the_first_has_written(tmp_path: Path) -> None:
    file, text = tmp_path / "tritune.yaml", "models: {m: {source: org/a}}\n"
    with ThreadPoolExecutor(1) as pool:
        with alone_in(tmp_path):
            second = pool.submit(init._write, file, text, force=False)
            wait([second], timeout=2)
            file.write_text("version: 1\n")
        with pytest.raises(UsageError, match="there is a project file already"):
            second.result(timeout=60)
    assert file.read_text() == "version: 1\n"
