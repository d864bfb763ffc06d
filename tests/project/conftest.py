"""A project of two small ONNX models that stand in its repository, with all that needs no measuring."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

PROJECT = """version: 1
release: "24.10"
owner: search
models:
  one:
    config: {max_batch_size: 4, from: more.yaml}
    tune: false
  two:
    tune: false
deploy:
  compose: {gpus: none}
"""


def _write_onnx(path: Path, factor: float) -> None:
    """`y = factor * x` with rows of any number."""
    value = helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "factor"], ["y"])], "g", tensors[:1], tensors[1:], [value])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def _write_project(root: Path) -> Path:
    for name, factor in (("one", 2.0), ("two", 3.0)):
        _write_onnx(root / "model_repository" / name / "1" / "model.onnx", factor)
    (root / "more.yaml").write_text("version_policy: {all: {}}\n")
    (root / "tritune.yaml").write_text(PROJECT)
    return root


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the project, which is also the one we are in."""
    root = _write_project(tmp_path / "a project")
    monkeypatch.chdir(root)
    return root


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, built. Read-only."""
    from tooling.cli import main

    root = _write_project(tmp_path_factory.mktemp("built") / "a project")
    assert main(["build", "-q", "--file", str(root / "tritune.yaml")]) == 0
    return root


@pytest.fixture
def built(built_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is also the directory we are in."""
    root = Path(shutil.copytree(built_once, tmp_path / "a copy"))
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def write_onnx() -> Callable[[Path, float], None]:
    """Write a model that multiplies by a factor."""
    return _write_onnx
