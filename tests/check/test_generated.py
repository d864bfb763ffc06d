"""What `tritune gen-config` makes for a model of any backend, `tritune check` has nothing against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tooling.check.registry import rules

# Texts of examples that hold a right model file.
IR = rules()["openvino-batch-not-padded"].example.partition("--- 1/model.xml\n")[2]
SIDECAR = rules()["plan-weights-per-instance"].example.partition("--- 1/model.plan.json\n")[2]
TENSORS = ("--input", "x:FP32:-1,8", "--output-tensor", "y:FP32:-1,8")


def _onnx(version: Path, write: ModuleType) -> tuple[str, ...]:
    write.write_model(version / "model.onnx", write.MODEL)
    return ()


def _plan(version: Path, write: ModuleType) -> tuple[str, ...]:
    (version / "model.plan").write_bytes(write.plan("10.5.0"))
    (version / "model.plan.json").write_text(SIDECAR, encoding="utf-8")
    return ()


def _openvino(version: Path, write: ModuleType) -> tuple[str, ...]:
    (version / "model.xml").write_text(IR, encoding="utf-8")
    return ()


def _torchscript(version: Path, write: ModuleType) -> tuple[str, ...]:
    write.write_torchscript(version / "model.pt", "forward(x: Tensor) -> Tensor")
    return TENSORS


def _vllm(version: Path, write: ModuleType) -> tuple[str, ...]:
    (version / "model.json").write_text('{"model": "org/llm"}', encoding="utf-8")
    return ()


@pytest.mark.parametrize("make", [_onnx, _plan, _openvino, _torchscript, _vllm], ids=lambda make: make.__name__[1:])
@pytest.mark.parametrize("batch", [None, 4])
def test_generated_configs_have_no_errors(
    make: Callable[[Path, ModuleType], tuple[str, ...]],
    batch: int | None,
    tmp_path: Path,
    write: ModuleType,
    run_cli: Callable[..., Any],
    check: Callable[..., dict[str, Any]],
) -> None:
    version = tmp_path / "repository" / "model" / "1"
    version.mkdir(parents=True)
    options = make(version, write)
    size = () if batch is None or make is _vllm else ("--max-batch-size", str(batch))
    generated = run_cli("gen-config", version.parent, *options, *size)
    assert generated.code == 0, generated.err
    for strict in ((), ("--strict",)):
        if strict and make is _vllm:
            continue  # nothing loads a vLLM model whose tensors nobody completes
        findings = check(version.parents[1], *strict)["findings"]
        assert [(f["rule"], f["message"]) for f in findings if f["severity"] != "info"] == []
