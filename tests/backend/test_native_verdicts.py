"""The embedded server gives each configuration the verdict that the native backend of release 24.10 gave it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tooling.errors import Refused
from tooling.runtime import Runtime
from tooling.server import EmbeddedServer, ServerOptions

RECORDED = yaml.safe_load(Path(__file__).with_name("native_verdicts.yaml").read_text(encoding="utf-8"))
CASES = RECORDED["cases"]
STATUS = re.compile(r"^(Invalid argument|Internal|Unavailable|Unsupported): ")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, add_and_multiply: Callable[..., Path]) -> Path:
    root = tmp_path_factory.mktemp("verdicts")
    for case in CASES:
        add_and_multiply(
            root / case["name"] / "1" / case.get("file", "model.onnx"), **RECORDED["models"][case["model"]]
        )
        if case["config"] is not None:
            (root / case["name"] / "config.pbtxt").write_text(case["config"], encoding="utf-8")
    return root


def _verdict(server: EmbeddedServer, name: str) -> str:
    try:
        server.load(name)
    except Refused as refusal:
        return refusal.problems[0].what
    return "ready"


@pytest.fixture(scope="module", params=["complete", "strict"])
def verdicts(
    request: pytest.FixtureRequest, repository: Path, runtime: Runtime
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mode, and for each case what the embedded server says; ready ones with the configuration in force."""
    options = ServerOptions(strict_config=request.param == "strict")
    names = [case["name"] for case in CASES]
    with EmbeddedServer(repository, runtime, options) as server, ThreadPoolExecutor(4) as pool:
        said = dict(zip(names, pool.map(lambda name: _verdict(server, name), names), strict=True))
        configs = {name: server.model_config(name) for name, verdict in said.items() if verdict == "ready"}
        yield request.param, {name: (verdict, configs.get(name)) for name, verdict in said.items()}


@pytest.mark.live
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_verdict_is_the_native_one(case: dict[str, Any], verdicts: tuple[str, dict[str, Any]]) -> None:
    mode, said = verdicts
    expected = case.get("says_strict", case["says"]) if mode == "strict" else case["says"]
    pattern = re.escape(expected.replace("{model}", case["name"])).replace(r"\{path\}", "/.*")
    assert re.fullmatch(pattern, STATUS.sub("", said[case["name"]][0]))


@pytest.mark.live
def test_ready_models_run_with_the_native_defaults(verdicts: tuple[str, dict[str, Any]]) -> None:
    """Completed: batch 4, dynamic batching, every tensor; a model that cannot batch keeps 0; two CPU instances."""
    mode, said = verdicts
    if mode == "strict":
        assert said["backend_inferred"][1]["platform"] == "onnxruntime_onnx"
        assert "dynamic_batching" not in said["backend_inferred"][1]
        return
    for name, batch in {"config_absent": 4, "config_empty": 4, "config_batch_zero": 4, "config_batch_only": 16}.items():
        config = said[name][1]
        assert config["max_batch_size"] == batch
        assert config["dynamic_batching"]["preferred_batch_size"] == [batch]
        assert [(t["name"], t["data_type"], t["dims"]) for t in config["input"]] == [
            ("a", "TYPE_FP32", [8]),
            ("b", "TYPE_FP32", [8]),
        ]
        assert {t["name"]: t["dims"] for t in config["output"]} == {"sum": [8], "prod": [8]}
        assert [(group["kind"], group["count"]) for group in config["instance_group"]] == [("KIND_CPU", 2)]
    fixed = said["config_absent_fixed"][1]
    assert fixed["max_batch_size"] == 0
    assert "dynamic_batching" not in fixed
    assert {t["name"]: t["dims"] for t in fixed["input"]} == {"a": [1, 8], "b": [1, 8]}
