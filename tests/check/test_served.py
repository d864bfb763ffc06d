"""A running server against the repository: what it has loaded, and with which config."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tooling.config.proto import pb
from tooling.runtime import Runtime
from tooling.server import EmbeddedServer, ServerOptions

PYTHON = (
    'backend: "python"\nmax_batch_size: 4\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    "dynamic_batching { default_queue_policy { max_queue_size: 4 } }\n"
)
CODE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
ENSEMBLE = (
    'platform: "ensemble"\nmax_batch_size: 4\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'output { name: "z" data_type: TYPE_FP32 dims: [ 8 ] }\nensemble_scheduling { step { model_name: "code" '
    'model_version: -1 input_map { key: "x" value: "x" } output_map { key: "y" value: "z" } } }\n'
)


@pytest.fixture
def repository(tmp_path: Path, write: ModuleType) -> Path:
    """An ONNX model whose config leaves much out, one that says much, a Python model, an ensemble, a broken model."""
    root = tmp_path / "repository"
    said = (
        "max_batch_size: 8\noptimization { graph { level: 1 } }\nversion_policy { all { } }\n"
        "instance_group { count: 2 }\n"
        'parameters { key: "intra_op_thread_count" value { string_value: "1" } }\n'
        'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\noutput { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    )
    for name, config in (("bare", ""), ("said", said)):
        write.write_example(root, f"{config}--- name\n{name}")
    write.write_example(root, f"{PYTHON}--- name\ncode\n--- 1/model.onnx\nabsent\n--- 1/model.py\n{CODE}")
    write.write_example(root, f"{ENSEMBLE}--- name\njoined\n--- 1/model.onnx\nabsent")
    write.write_example(root, "max_batch_size: -4\n--- name\nbroken")
    return root


@pytest.mark.live
@pytest.mark.long
def test_a_server_that_has_what_the_repository_holds_differs_in_nothing(
    repository: Path, runtime: Runtime, check: Callable[..., dict[str, Any]]
) -> None:
    """Then one model is loaded with another config, the directory of another changes, and a third goes."""
    models = ("bare", "said", "code", "joined")
    with EmbeddedServer(repository, runtime, ServerOptions()) as server:
        for name in models:
            server.load(name)
        data = check(repository, "--url", server.http_url)
        assert [(f["rule"], f["model"]) for f in data["findings"]] == [("served-not-ready", "broken")]
        assert (data["release"], data["exit_code"]) == ("24.10", 1)
        assert check(repository, "--url", f"http://{server.http_url}/", "--model", "said")["findings"] == []

        changed = pb().ModelConfig()
        changed.ParseFromString(_config(server, "code").SerializeToString())
        changed.max_batch_size = 6
        changed.dynamic_batching.preferred_batch_size[:] = [6]
        changed.dynamic_batching.default_queue_policy.max_queue_size = 0
        server.load("code", changed)
        config = repository / "said" / "config.pbtxt"
        config.write_text(config.read_text(encoding="utf-8").replace('"1"', '"2"'), encoding="utf-8")
        (repository / "said" / "3").mkdir()
        server.unload("bare")
        data = check(repository, "--url", server.http_url)
    messages = {(f["model"], f["message"]): f for f in data["findings"] if f["model"] != "broken"}
    assert set(messages) == {
        ("bare", "version 1 of bare is UNAVAILABLE: unloaded"),
        ("code", "max_batch_size: the server has 6, the repository 4"),
        ("code", "dynamic_batching.preferred_batch_size: the server has [6], the repository leaves it out"),
        ("code", "dynamic_batching.default_queue_policy.max_queue_size: the server has 0, the repository 4"),
        ("said", "version 3 of said is not loaded"),
        ("said", 'parameters[intra_op_thread_count].string_value: the server has "1", the repository "2"'),
    }
    finding = messages["said", 'parameters[intra_op_thread_count].string_value: the server has "1", the repository "2"']
    assert (finding["severity"], finding["line"]) == ("error", 5)


def _config(server: EmbeddedServer, name: str) -> Any:
    from google.protobuf.json_format import ParseDict

    return ParseDict(server.model_config(name), pb().ModelConfig(), ignore_unknown_fields=True)


def _served(**config: Any) -> dict[str, Any]:
    return {"version": "2.51.0", "models": {"example": {"versions": {"1": "READY"}, "config": config}}}


def test_what_the_repository_leaves_to_the_server_is_no_difference(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]], serve: Callable[[dict[str, Any]], str]
) -> None:
    """Unless auto-complete is off: then somebody wrote it."""
    made = example('backend: "python"\nmax_batch_size: 8')
    url = serve(_served(backend="python", max_batch_size=8, dynamic_batching={}, runtime="model.py"))
    findings = check(made.path, "--url", url)["findings"]
    assert [(f["rule"], f["severity"]) for f in findings if "dynamic" in f["message"]] == [
        ("served-config-completed", "info")
    ]
    findings = check(made.path, "--url", url, "--strict")["findings"]
    assert {f["rule"] for f in findings if "dynamic" in f["message"]} == {"served-config-differs"}


@pytest.mark.parametrize(
    ("served", "said"),
    [
        ({"eager_batching": True}, "optimization.eager_batching: the server has true, the repository leaves it out"),
        ({"input_pinned_memory": {"enable": True}}, None),
        (
            {"output_pinned_memory": {"enable": False}},
            "optimization.output_pinned_memory.enable: the server has false, the repository leaves it out",
        ),
    ],
)
def test_pinned_memory_is_the_cores_all_else_is_somebodys(
    served: dict[str, Any],
    said: str | None,
    example: Callable[[str], Any],
    check: Callable[..., dict[str, Any]],
    serve: Callable[[dict[str, Any]], str],
) -> None:
    pinned = {f"{way}_pinned_memory": {"enable": True} for way in ("input", "output")}
    made = example('backend: "python"\ninstance_group { kind: KIND_CPU count: 1 }')
    group = {"name": "example_0", "kind": "KIND_CPU", "count": 1}
    policy = {"latest": {"num_versions": 1}}
    config = {"backend": "python", "default_model_filename": "model.py", "instance_group": [group]}
    url = serve(_served(name="example", version_policy=policy, **config, optimization=pinned | served))
    assert [f["message"] for f in check(made.path, "--url", url)["findings"]] == ([said] if said else [])


def test_tensors_are_matched_by_their_names(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]], serve: Callable[[dict[str, Any]], str]
) -> None:
    tensors = [
        {"name": "b", "data_type": "TYPE_INT32", "dims": [4]},
        {"name": "a", "data_type": "TYPE_FP32", "dims": [9]},
        {"name": "c", "data_type": "TYPE_FP32", "dims": [1]},
    ]
    made = example(
        'backend: "python"\ninput { name: "a" data_type: TYPE_FP32 dims: [ 8 ] }\n'
        'input { name: "b" data_type: TYPE_INT32 dims: [ 4 ] }'
    )
    url = serve(_served(backend="python", input=tensors))
    found = [(f["message"], f["line"]) for f in check(made.path, "--url", url)["findings"] if "input" in f["message"]]
    assert found == [
        ("input[a].dims: the server has [9], the repository [8]", 2),
        (
            'input[c]: the server has { name: "c" data_type: TYPE_FP32 dims: [1] }, the repository leaves it out',
            2,
        ),
    ]


def test_a_config_with_faults_is_said_to_have_them(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]], serve: Callable[[dict[str, Any]], str]
) -> None:
    made = example("max_batch_size = 8")
    rules = [f["rule"] for f in check(made.path, "--url", serve(_served(backend="python")))["findings"]]
    assert rules == ["syntax"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--url", "127.0.0.1:9"], 3, "no Triton server answers here"),
        (["--url", "localhost"], 2, "not HOST:PORT"),
        (["--url", "https://host:8000"], 2, "not HOST:PORT"),
        (["--url", "127.0.0.1:9", "--fix"], 2, "judges nothing else"),
        (["--url", "127.0.0.1:9", "--compose", "x.yml"], 2, "judges nothing else (got --compose)"),
        (["--request", "r.json", "--url", "127.0.0.1:9"], 2, "judges nothing else (got --url)"),
        (["--explain", "all"], 2, "--explain: a rule is explained, and nothing checked"),
        (["--url", "127.0.0.1:9", "elsewhere"], 2, "one repository"),
    ],
)
def test_no_server_and_no_sense_are_told(
    options: list[str], code: int, words: str, example: Callable[[str], Any], run_cli: Callable[..., Any]
) -> None:
    result = run_cli("check", example("").path, *options)
    assert (result.code, result.out) == (code, "")
    assert words in result.err


@pytest.mark.parametrize("answer", [[], {"version": 3}, {"name": "other program"}], ids=json.dumps)
def test_another_program_is_no_server(answer: Any, example: Callable[[str], Any], run_cli: Callable[..., Any]) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        result = run_cli("check", example("").path, "--url", f"127.0.0.1:{server.server_port}")
        server.shutdown()
    assert result.code == 3
    assert "no Triton server answers here" in result.err


def test_a_server_that_was_started_with_another_config_is_thought_of(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]], serve: Callable[[dict[str, Any]], str]
) -> None:
    """Of the instance groups only those that the server has are told: the core made the other one by itself."""
    made = example('backend: "python"\nmax_batch_size: 8\n--- configs/cpu-2.pbtxt\nbackend: "python"\n')
    group = {"name": "one", "kind": "KIND_CPU", "count": 3}
    url = serve(_served(backend="python", max_batch_size=8, instance_group=[group]))
    findings = [f for f in check(made.path, "--url", url)["findings"] if "instance_group" in f["message"]]
    (finding,) = findings
    assert finding["message"].startswith("instance_group[one]: the server has {")
    assert "or say --config-name cpu-2 if the server was started so" in finding["hint"]
    again = check(made.path, "--url", url, "--config-name", "other")["findings"]
    assert not any("--config-name" in (f["hint"] or "") for f in again)
