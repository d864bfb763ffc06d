"""What hardware a tuned config is named after, and what is left to do before it serves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perf.tune_request import TuneRequest
from perf.tuned import hardware_of
from perf.workload import Workload
from tooling import repository
from tooling.cli.tune import run
from tooling.cli.tuned_answer import next_steps
from tooling.config.proto import pb
from tooling.console import Console
from tooling.errors import UsageError
from tooling.server.client import on_this_machine


def running(url: str, kind: str) -> Any:
    """What `hardware_of` asks of a running server: its address, and the config in force."""
    config = pb().ModelConfig(name="m", instance_group=[{"count": 1, "kind": kind}])
    return SimpleNamespace(url=url, config=lambda: config)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("127.8.0.1:8000", True),
        ("[::1]:8000", True),
        ("127.example.org:8000", False),
        ("10.0.0.7:8000", False),
        ("gpu-host:8000", False),
    ],
)
def test_which_addresses_are_this_machine(url: str, here: bool) -> None:
    assert on_this_machine(url) == here


def test_a_config_is_named_after_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "_gpu_names", lambda: ["NVIDIA H200"])
    assert hardware_of(None) == repository.cpu_name(), "the embedded server computes on the CPU"
    assert hardware_of(running("localhost:8000", "KIND_GPU")) == "gpu-h200-x1"
    assert hardware_of(running("localhost:8000", "KIND_CPU")) == repository.cpu_name()
    assert hardware_of(running("gpu-host:8000", "KIND_GPU")) is None, "its GPUs are not those of this machine"


def test_a_config_of_a_server_elsewhere_needs_a_name(tmp_path: Path) -> None:
    request, there = TuneRequest(tmp_path, Workload(concurrency=1)), running("gpu-host:8000", "KIND_GPU")
    with pytest.raises(UsageError, match="gpu-host:8000: what the server runs on is not known here") as raised:
        run(request, Console(quiet=True), apply=True, report=None, running=there)
    assert "--hardware" in str(raised.value.problems[0].hint)


@pytest.mark.parametrize("name", ["a b", "../up", "é"])
def test_a_name_that_is_none(run_cli: Any, name: str) -> None:
    said = run_cli("tune", "models/m", "--hardware", name)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"error: --hardware: not a usable hardware name (got `{name}`")


def test_what_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = tmp_path / "my models" / "m" / "configs" / "cpu-2.pbtxt"
    assert next_steps(written) == "next\n  tritune serve 'my models' --config-name cpu-2"
    assert next_steps(Path("m/configs/cpu-2.pbtxt")) == "next\n  tritune serve . --config-name cpu-2"
    assert next_steps(written, "gpu-host:8000") == "next\n  start Triton with --model-config-name=cpu-2"
    assert "the same command with --apply" in next_steps(None)
