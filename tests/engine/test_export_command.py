"""`tritune export --format tensorrt`: what is asked for becomes the command that builds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


def command(run_cli: Run, onnx: Path, repository: Path, *argv: str) -> list[str]:
    done = run_cli("export", onnx, "-r", repository, "--format", "tensorrt", "--print-command", "--json", *argv)
    assert done.code == 0, done.err
    return list(done.json["data"]["command"])


def test_profiles_from_buckets(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    words = command(
        run_cli, encoder(), tmp_path / "r", "--name", "enc", "--buckets", "64,128", "--max-batch-size", "16"
    )
    assert words[:2] == ["docker", "run"]
    assert "nvcr.io/nvidia/tensorrt:24.10-py3" in words
    assert [word for word in words if word.startswith("--maxShapes")] == [
        "--maxShapes=input_ids:16x64,attention_mask:16x64",
        "--maxShapes=input_ids:16x128,attention_mask:16x128",
    ]
    assert f"type=bind,source={tmp_path}/r/enc/1,target=/plan" in words


def test_the_longest_input_of_an_exported_model(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    words = command(run_cli, encoder(), tmp_path, "--max-tokens", "200", "--builder", "trtexec", "--engine", "opt=2x50")
    assert words[0] == "trtexec"
    assert "--optShapes=input_ids:2x50,attention_mask:2x50" in words
    assert "--maxShapes=input_ids:8x200,attention_mask:8x200" in words


@pytest.mark.live
def test_the_example_model_says_its_own_longest_input(run_cli: Run, minilm_repository: Path, tmp_path: Path) -> None:
    longest = json.loads((minilm_repository / "minilm" / "export.json").read_bytes())["max_tokens"]
    words = command(run_cli, minilm_repository / "minilm", tmp_path)
    assert any(word.startswith(f"--maxShapes=input_ids:8x{longest},") for word in words)
    assert f"type=bind,source={tmp_path}/minilm/1,target=/plan" in words


def test_settings_reach_the_command(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    words = command(
        *(run_cli, encoder(), tmp_path, "--max-tokens", "64", "--precision", "fp16", "--engine", "workspace=2GiB"),
        *("--engine", f"timing_cache={tmp_path}/t", "--engine", "compatible=version,ampere+", "--engine", "gpu=1"),
    )
    for word in ("--fp16", "--memPoolSize=workspace:2048", "--timingCacheFile=/cache/t", "--versionCompatible"):
        assert word in words
    assert {"--hardwareCompatibilityLevel=ampere+", "device=1"} <= set(words)


def test_shapes_by_hand(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    shapes = {
        key: f"input_ids:{size},attention_mask:{size}" for key, size in (("min", "1x1"), ("opt", "2x8"), ("max", "4x9"))
    }
    argv = [word for key, text in shapes.items() for word in ("--engine", f"{key}_shapes={text}")]
    assert f"--maxShapes={shapes['max']}" in command(run_cli, encoder(), tmp_path, *argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "dynamic inputs input_ids, attention_mask need min/opt/max shapes"),
        (["--max-tokens", "64", "--engine", "wrkspace=1GiB"], "did you mean `workspace`?"),
        (["--max-tokens", "64", "--engine", "gpu"], "gpu needs one value"),
        (["--max-tokens", "64", "--engine", "gpu=one"], "gpu is out of range"),
        (["--max-tokens", "64", "--engine", "opt=axb"], "no usual size"),
        (["--max-tokens", "64", "--engine", "opt=9"], "the usual batch is outside the profile"),
        (["--max-tokens", "64", "--engine", "compatible=all"], "no such compatibility"),
        (["--max-tokens", "64", "--engine", "min_shapes=input_ids:1x1"], "shapes by hand are a whole profile"),
        (["--max-tokens", "64", "--precision", "int8"], "no precision of an engine"),
        (["--max-tokens", "64", "--release", "24.04"], "engines cannot be built for Triton 24.04"),
        (["--max-tokens", "64", "--release", "26.08", "--precision", "fp16"], "takes the precision from the ONNX file"),
        (["--max-tokens", "64", "--padding", "auto"], "belongs to a text pipeline"),
    ],
)
def test_refused(argv: list[str], message: str, run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    done = run_cli("export", encoder(), "-r", tmp_path / "r", "--format", "tensorrt", "--print-command", *argv)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert not (tmp_path / "r").exists()


def test_engine_options_need_an_engine(run_cli: Run, encoder: Callable[..., Path], tmp_path: Path) -> None:
    done = run_cli("export", encoder(), "-r", tmp_path, "--print-command")
    assert (done.code, "belongs to an engine" in done.err) == (2, True)


def test_without_a_gpu_the_command_is_told(
    run_cli: Run, encoder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    done = run_cli("export", encoder(), "-r", tmp_path / "r", "--format", "tensorrt", "--max-tokens", "64")
    assert (done.code, done.out) == (3, "")
    assert "hint: run on the machine with the GPU: docker run --rm" in done.err
    assert not (tmp_path / "r").exists()
