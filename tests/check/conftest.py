"""Repositories from short texts: the examples of rules, small ONNX models, and what `tritune check` says to them."""

from __future__ import annotations

import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, ClassVar

import pytest

MODEL = "x: FP32 [batch, 8] -> y: FP32 [batch, 8]"
_TENSOR = re.compile(r"(\w+):\s*(\w+)\s*\[([^\]]*)\]")
_TYPES = {"FP32": "FLOAT", "FP16": "FLOAT16", "FP64": "DOUBLE", "BF16": "BFLOAT16"}


def _values(text: str) -> list[Any]:
    from onnx import TensorProto, helper

    found = []
    for name, kind, dims in _TENSOR.findall(text):
        shape = [int(dim) if dim.lstrip("-").isdecimal() else dim for dim in dims.replace(" ", "").split(",") if dim]
        found.append(helper.make_tensor_value_info(name, getattr(TensorProto, _TYPES.get(kind, kind)), shape))
    return found


def _filler(inputs: list[Any], outputs: list[Any]) -> list[Any]:
    """Nodes that give each output its declared type, and a shape that no inference can know."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Cast", [inputs[0].name], ["inner_number"], to=TensorProto.FLOAT),
        helper.make_node("Unique", ["inner_number"], ["inner_unique"]),
        helper.make_node("Cast", ["inner_unique"], ["inner_shape"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["inner_number", "inner_shape"], ["inner_any"]),
        helper.make_node("Add", ["inner_any", "w"], ["inner_sum"]),
    ]
    for output in outputs:
        nodes.append(helper.make_node("Cast", ["inner_sum"], [output.name], to=output.type.tensor_type.elem_type))
    return nodes


def _nodes(text: str, inputs: list[Any], outputs: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Nodes, weights and declared inner types of a model."""
    from onnx import TensorProto, helper

    if "bad cast" in text:
        inner = helper.make_tensor_value_info("c", TensorProto.FLOAT16, None)
        weight = helper.make_tensor("w", TensorProto.FLOAT16, [8], [1.0] * 8)
        nodes = [
            helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["c", "w"], ["y"]),
        ]
        return nodes, [weight], [inner]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], bytes(4), raw=True)
    if "lookup" in text:
        table = helper.make_tensor("table", TensorProto.FLOAT, [100, 4], [1.0] * 400)
        return [helper.make_node("Gather", ["table", inputs[0].name], [outputs[0].name])], [table], []
    nodes = _filler(inputs, outputs)
    if "quantised" in text:
        nodes.append(helper.make_node("DynamicQuantizeLinear", ["inner_number"], ["q", "q_scale", "q_zero"]))
    if "contrib" in text:
        nodes.append(helper.make_node("EmbedLayerNormalization", [inputs[0].name], ["unused"], domain="com.microsoft"))
    if "custom" in text:
        nodes.append(helper.make_node("Fused", [inputs[0].name], ["unused"], domain="my.operators"))
    return nodes, [weight], []


def write_model(path: Path, text: str) -> Path:
    """Write the ONNX model that a text describes: `x: FP32 [batch, 8] -> y: FP32 [batch, 8] opset 17 ir 8 …`."""
    from onnx import external_data_helper, helper, save

    left, _, right = text.partition("->")
    inputs, outputs = _values(left), _values(right)
    nodes, weights, inner = _nodes(text, inputs, outputs)
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights, value_info=inner)
    opset = int(next(iter(re.findall(r"opset (\d+)", text)), 17))
    domains = sorted({node.domain for node in nodes if node.domain})
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    ir = int(next(iter(re.findall(r"ir (\d+)", text)), 8))
    model = helper.make_model(graph, opset_imports=imports, ir_version=ir)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = next(iter(re.findall(r"external (\S+)", text)), None)
    if kind is not None:
        weight = model.graph.initializer[0]
        location = kind if "." in kind else "weights.bin"
        external_data_helper.set_external_data(weight, location, offset=0, length=4)
        weight.ClearField("raw_data")
        if kind == "short":
            (path.parent / location).write_bytes(b"1")
    save(model, path)
    return path


def plan(version: str) -> bytes:
    """The header of a TensorRT plan of this version."""
    numbers = [*map(int, version.split(".")), 0, 0, 0][:4]
    return b"ftrt" + bytes(20) + bytes(numbers) + b"engine"


def write_torchscript(path: Path, forward: str) -> None:
    """The archive of a TorchScript module whose `forward` is declared so: `forward(x: Tensor) -> Tensor`."""
    declared = forward.strip().replace("(", "(self: __torch__.M, ", 1)
    code = f"class M(Module):\n  def {declared}:\n    return x\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02c__torch__\nM\nq\x00)\x81.")
        archive.writestr("model/code/__torch__.py", code)


@dataclass(frozen=True)
class Example:
    """What an example becomes: the path to check, the options, and the directory of the model it is about."""

    path: Path
    options: list[str]
    model: Path
    served: dict[str, Any] | None = None
    """What a running server is to answer: its version; versions and config by model."""


def write_example(root: Path, text: str) -> Example:
    """Write a config and files that follow it under lines `--- PATH`; `root` (/models/ in texts) is the repository."""
    text = text.replace("/models/", f"{root}/")
    config, *sections = re.split(r"(?:^|\n)--- ", text)
    parts = dict(section.partition("\n")[::2] for section in sections)
    root = root / parts.pop("repository", "").strip()
    model = root / parts.pop("name", "example").strip()
    options = re.findall(r"--server-args .*|\S+", parts.pop("options", ""))
    options = [word for option in options for word in option.split(" ", 1 if "server-args" in option else -1)]
    checked = parts.pop("checked", "").strip()
    if "request" in parts:
        root.mkdir(parents=True, exist_ok=True)
        request = root.parent / "request.json"
        request.write_text(parts.pop("request"), encoding="utf-8")
        options += ["--request", str(request), "--model", model.name]
    served = json.loads(parts.pop("server", "null"))
    parts = {"config.pbtxt": config, "1/model.onnx": MODEL, **parts}
    if any(name.startswith("config.pbtxt/") for name in parts):
        del parts["config.pbtxt"]
    (model / "1").mkdir(parents=True)
    for name, content in parts.items():
        path = model / name
        if content.strip() == "absent":
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".onnx" and "->" in content:
            write_model(path, content)
        elif content.strip() == "pipe":
            os.mkfifo(path)
        elif content.startswith("zeros "):
            path.write_bytes(bytes(int(content.split()[1])))
        elif path.suffix == ".pt" and content.startswith("forward("):
            write_torchscript(path, content)
        elif content.startswith("plan "):
            path.write_bytes(plan(content.split()[1]))
        else:
            path.write_text(content, encoding="utf-8")
    if checked == "empty":
        (root / "none").mkdir()
        return Example(root / "none", options, model)
    return Example(model / checked if checked else root, options, model, served)


class _Answers(BaseHTTPRequestHandler):
    """The endpoints of tritonserver that say what it has loaded."""

    served: ClassVar[dict[str, Any]]

    def do_GET(self) -> None:
        *_, name, what = self.path.split("/")
        if self.path == "/v2":
            self._answer({"name": "triton", "version": self.served["version"]})
        elif what == "config" and "config" in self.served["models"].get(name, {}):
            self._answer(self.served["models"][name]["config"])
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        listed: list[dict[str, str]] = []
        for name, model in self.served["models"].items():
            states = model["versions"].items()
            listed += [{"name": name, "version": version, "state": state} for version, state in states]
            listed += [] if states else [{"name": name}]
        self._answer(listed)

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, Any]], str]]:
    """Answer as a server with these models does; returns HOST:PORT."""
    servers: list[ThreadingHTTPServer] = []

    def start(served: dict[str, Any]) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"served": served}))
        servers.append(server)
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def example(tmp_path: Path) -> Callable[[str], Example]:
    return lambda text: write_example(tmp_path / "repository", text)


@pytest.fixture
def check(
    run_cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Run `tritune check` and return its data, with the exit code; a vLLM that is installed here does not count."""

    def run(path: Path, *options: str) -> dict[str, Any]:
        with monkeypatch.context() as without:
            without.setenv("TRITUNE_RUNTIME", str(tmp_path / "no-runtime"))
            result = run_cli("check", path, *options, "--json")
        assert result.json["error"] is None, result.json["error"]
        assert "Traceback" not in result.err
        return {**result.json["data"], "exit_code": result.code}

    return run


@pytest.fixture(scope="session")
def write() -> ModuleType:
    """This module, for the functions that write models and plans."""
    return sys.modules[__name__]
