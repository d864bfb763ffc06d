"""A tiny real model, servers that are checked to leave nothing behind, and a view of what a run left."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tooling.server import EmbeddedServer, ServerOptions

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching {}
"""


@pytest.fixture(scope="session")
def tiny_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = x + x, FP32 [-1, 2]."""
    from onnx import TensorProto, helper, save

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", tensors[:1], tensors[1:])
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="session")
def add_model(tiny_onnx: Path) -> Callable[..., Path]:
    """Put a model into a repository: `add_model(repository, "double", config=..., files={"1/model.py": ...})`."""

    def add(repository: Path, name: str, config: str = CONFIG, files: dict[str, str] | None = None) -> Path:
        directory = repository / name
        (directory / "1").mkdir(parents=True)
        (directory / "config.pbtxt").write_text(config)
        for path, text in (files or {}).items():
            (directory / path).write_text(text)
        if not files:
            shutil.copy(tiny_onnx, directory / "1" / "model.onnx")
        return directory

    return add


@pytest.fixture
def repository(tmp_path: Path, add_model: Callable[..., Path]) -> Path:
    """A repository with the model `double`."""
    add_model(tmp_path / "repository", "double")
    return tmp_path / "repository"


@pytest.fixture
def start(runtime: Any, left: Any) -> Iterator[Callable[..., EmbeddedServer]]:
    """Make servers (strict configs: loading is quick); the test fails when anything of one is left at its end."""
    made: list[EmbeddedServer] = []

    def server(repository: Path, **options: Any) -> EmbeddedServer:
        made.append(EmbeddedServer(repository, runtime, ServerOptions(**{"strict_config": True, **options})))
        return made[-1]

    yield server
    for one in made:
        assert left.of(one.run_id) == []


@pytest.fixture(scope="session")
def infer() -> Callable[..., list[float]]:
    """One inference of `double` over HTTP: `infer(server, "double", [1, 2]) == [2, 4]`."""

    def call(server: EmbeddedServer, name: str, values: list[float]) -> list[float]:
        connection = http.client.HTTPConnection(server.http_url, timeout=10)
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": values}
        connection.request("POST", f"/v2/models/{name}/infer", json.dumps({"inputs": [tensor]}))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return list(answer["outputs"][0]["data"])

    return call
