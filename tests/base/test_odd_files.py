"""Devices, pipes, damaged records and odd environments: each is one clear error, none hangs or destroys anything."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tooling.errors import MissingError, UsageError


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_pipe_is_neither_read_nor_replaced(pipe: Path) -> None:
    from tooling.repository import read_text, require_writable, write_atomic
    from tooling.signature.onnx_file import read_onnx

    for use in (read_text, read_onnx, require_writable, lambda p: write_atomic(p, "x")):
        with pytest.raises(UsageError, match="a device or a pipe"):
            use(pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"a": 1}',
        "[1]",
        "[" * 100_000,
        '{"record": 1}',
        '{"record": "measurement", "spent_s": NaN, "measurement": {"status": "hung"}}',
    ],
)
def test_a_damaged_study_is_told(line: str, tmp_path: Path) -> None:
    from perf.study import SCHEMA_VERSION, Study, read_study

    header = json.dumps({"record": "header", "schema_version": SCHEMA_VERSION})
    (tmp_path / "study.jsonl").write_text(f"{header}\n{line}\n")
    with pytest.raises(UsageError, match="the study is damaged") as caught:
        read_study(tmp_path)
    assert str(caught.value.problems[0].where).endswith("study.jsonl:2")
    with pytest.raises(UsageError, match="the study is damaged"), Study(tmp_path, {}):
        pass


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"measurement": 1, "spent_s": 1},
        {"measurement": {"status": "ok", "load": {}, "throughput_rps": 0}, "spent_s": 1},
        {"measurement": {"status": "ok", "load": {}, "throughput_rps": "abc"}, "spent_s": 1},
        {"measurement": {"status": "ok"}, "spent_s": 1},
        {"measurement": {"status": "ok", "load": {}, "throughput_rps": 5}},
    ],
)
def test_a_measurement_that_is_not_whole_is_told(record: dict, tmp_path: Path) -> None:
    from perf.study import measurement_of

    with pytest.raises(UsageError, match="a measurement is not whole"):
        measurement_of({"record": "measurement", **record}, tmp_path / "study.jsonl")


def test_a_study_that_is_no_file(pipe: Path) -> None:
    from perf.study import Study

    pipe.rename(pipe.with_name("study.jsonl"))
    with pytest.raises(UsageError, match="not a regular file"), Study(pipe.parent, {}):
        pass


def test_a_perf_analyzer_variable_that_is_no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from perf.analyzer import find_perf_analyzer

    monkeypatch.setenv("TRITUNE_PERF_ANALYZER", '"x')
    with pytest.raises(MissingError) as caught:
        find_perf_analyzer(None)
    assert caught.value.problems[0].hint == 'correct TRITUNE_PERF_ANALYZER (now `"x`) or unset it'


@pytest.mark.live
@pytest.mark.parametrize("path", ["", "/nonexistent"])
def test_the_server_finds_a_shell_whatever_the_path_is(path: str, runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path)
    assert shutil.which("sh", path=runtime.env()["PATH"])


def test_a_directory_that_cannot_be_read_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as lost+found of a mounted volume; root may read everything, so the answer of the system is replaced."""
    from tooling.server import workspace

    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "config.pbtxt").write_text("")
    assert workspace._is_model(tmp_path / "lost+found")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert not workspace._is_model(tmp_path / "lost+found")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--instances", "99999999999"), ("--lengths", "99999999"), ("--lengths", "１６"), ("--vocab-size", "9" * 21)],
)
def test_counts_that_no_machine_has(option: str, value: str, tmp_path: Path, run_cli) -> None:
    result = run_cli("tune", tmp_path, option, value)
    assert result.code == 2
    assert option in result.err


@pytest.mark.parametrize("rate", ["inf", "1e400", "nan"])
def test_rates_that_are_none(rate: str, tmp_path: Path, run_cli) -> None:
    assert run_cli("tune", tmp_path, "--request-rate", rate).code == 2


def test_a_model_whose_pooling_is_not_told(minilm_dir: Path, tmp_path: Path) -> None:
    """Without its settings a pooling would silently be taken for the mean."""
    from export.source import open_source

    copy = tmp_path / "model"
    shutil.copytree(minilm_dir, copy, copy_function=os.link)
    (copy / "1_Pooling" / "config.json").unlink()
    with pytest.raises(UsageError, match=r"1_Pooling/config\.json: a module's settings are missing"):
        open_source(copy)
    modules = json.loads((copy / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (copy / "modules.json").unlink()
    (copy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UsageError, match="a module outside the model"):
        open_source(copy)


def test_a_tokenizer_that_is_none(minilm_dir: Path, tmp_path: Path) -> None:
    from export.source import open_source

    copy = tmp_path / "model"
    shutil.copytree(minilm_dir, copy, copy_function=os.link)
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tokenizer\.json: not a tokenizer"):
        open_source(copy)
