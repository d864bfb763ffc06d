"""The container's start script: it names missing weights, else hands over to tritonserver."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from tooling.releases import current_release
from tooling.server import ServerFlags
from tooling.server.flags import flags_of

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tooling" / "data" / "start-triton.sh"


@pytest.fixture
def start(tmp_path: Path):
    """Run the script on a repository, with a `tritonserver` that only shows its arguments."""
    server = tmp_path / "bin" / "tritonserver"
    server.parent.mkdir()
    server.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    server.chmod(0o755)

    def run(repository: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{server.parent}:{os.defpath}", "MODEL_REPOSITORY": str(repository), **variables}
        return subprocess.run(["/bin/sh", SCRIPT, *argv], env=env, capture_output=True, text=True, timeout=30)

    return run


def model(repository: Path, name: str, config: str = "", files: tuple[str, ...] = ("1/model.onnx",)) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    for file in files:
        (repository / name / file).touch()


def test_the_committed_repository_lacks_its_weights(start, tmp_path):
    """What `docker compose up` does in a fresh clone."""
    repository = tmp_path / "model_repository"
    (repository / "minilm").mkdir(parents=True)
    shutil.copy(ROOT / "model_repository" / "minilm" / "config.pbtxt", repository / "minilm")
    shutil.copy(ROOT / "model_repository" / "README.md", repository)
    done = start(repository)
    assert (done.returncode, done.stdout) == (3, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: model_repository/minilm: the weights are missing")
    assert "tritune export SOURCE --repository model_repository --name minilm" in hint


def test_every_model_without_weights_is_named(start, tmp_path):
    repository = tmp_path / "models"
    model(repository, "whole")
    model(repository, "first", files=())
    model(repository, "second", files=())
    done = start(repository)
    assert done.returncode == 3
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()[::2]] == [
        "model_repository/first",
        "model_repository/second",
    ]


def test_an_empty_repository_is_explained(start, tmp_path):
    done = start(tmp_path)
    assert done.returncode == 3 and "no model with a config.pbtxt" in done.stderr


def test_whole_models_and_ensembles_are_served(start, tmp_path):
    repository = tmp_path / "my models"
    model(repository, "whole")
    model(repository, "both", 'name: "both"\nplatform: "ensemble"\n', files=())
    done = start(repository, "--log-verbose=1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*ServerFlags().arguments(str(repository)), "--log-verbose=1"]


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_model_control_is_what_a_rendered_deployment_gets(start, tmp_path, mode):
    model(tmp_path / "models", "whole")
    flags = ServerFlags(control=mode, load=("*",) if mode == "explicit" else (), config_name="gpu-l4-x1")
    done = start(tmp_path / "models", TRITON_CONFIG_NAME="gpu-l4-x1", TRITON_MODEL_CONTROL=mode)
    assert set(done.stdout.splitlines()) == set(flags.arguments(str(tmp_path / "models")))


CACHE, LIMIT = "--cache-config=local,size=104857600", "--rate-limit=execution_count"
SERVED = """backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""


@pytest.mark.parametrize(
    ("config", "own", "asked"),
    [
        ("response_cache { enable: true }", "", CACHE),
        ("response_cache: {\n  enable : True # all texts\n}", "", CACHE),
        ("response_cache { enable: false }", "", None),
        ("# response_cache { enable: true }", "", None),
        ("", "response_cache < enable: t >", CACHE),
        ("response_cache { enable: true }", "# without", None),
        ('instance_group { rate_limiter { resources { name: "R" count: 2 } } }', "", LIMIT),
        ("instance_group [ { count: 1 } ] # rate_limiter { }", "", None),
    ],
)
def test_the_models_decide_as_in_a_rendered_deployment(start, tmp_path, config, own, asked):
    repository = tmp_path / "models"
    model(repository, "m", SERVED + config, files=("1/model.py",))
    if own:
        (repository / "m" / "configs").mkdir()
        (repository / "m" / "configs" / "gpu-l4-x1.pbtxt").write_text(SERVED + own)
    name = "gpu-l4-x1" if own else None
    expected = set(flags_of(repository, name).arguments(str(repository)))
    done = start(repository, TRITON_CONFIG_NAME=name or "")
    # without a count a resource is there as often as one instance asks at most, which is what is counted out there
    assert set(done.stdout.splitlines()) == {word for word in expected if "rate-limit-resource" not in word}
    extra = {word for word in done.stdout.splitlines() if word.startswith(("--cache", "--rate"))}
    assert extra == ({asked} if asked else set())


def test_the_size_of_the_cache_and_plans_for_other_versions(start, tmp_path):
    repository = tmp_path / "models"
    model(repository, "cached", "response_cache { enable: true }")
    model(repository, "plan", 'platform: "tensorrt_plan"', files=("1/model.plan",))
    (repository / "plan" / "1" / "model.plan.json").write_text('{\n "version_compatible": true}')
    words = start(repository, TRITON_CACHE_SIZE="2097152").stdout.splitlines()
    assert "--cache-config=local,size=2097152" in words
    assert "--backend-config=tensorrt,version-compatible=true" in words


def test_loading_models_takes_a_key_where_others_reach_the_port(start, tmp_path):
    model(tmp_path / "models", "whole")
    explicit = {"TRITON_MODEL_CONTROL": "explicit"}
    for host in ("", "127.0.0.1", "::1", "[::1]"):
        done = start(tmp_path / "models", TRITON_HOST=host, **explicit)
        assert (done.returncode, "restricted" in done.stdout) == (0, False), host
    for host in ("0.0.0.0", "::", "192.168.0.7"):
        done = start(tmp_path / "models", TRITON_HOST=host, **explicit)
        assert (done.returncode, done.stdout) == (2, "")
        told = f"TRITON_CONTROL_KEY: not set, and others reach the load API (TRITON_HOST={host})"
        assert told in done.stderr
        assert start(tmp_path / "models", TRITON_HOST=host).returncode == 0
    done = start(tmp_path / "models", TRITON_HOST="0.0.0.0", TRITON_CONTROL_KEY="a $b", **explicit)
    flags = ServerFlags(control="explicit", load=("*",), control_key="a $b")
    assert set(done.stdout.splitlines()) == set(flags.arguments(str(tmp_path / "models")))


def test_an_unknown_control_mode_is_refused(start, tmp_path):
    model(tmp_path / "models", "whole")
    done = start(tmp_path / "models", TRITON_MODEL_CONTROL="manual")
    assert (done.returncode, done.stdout) == (2, "")
    assert "TRITON_MODEL_CONTROL: no such mode (got manual; expected none, poll or explicit)" in done.stderr


def test_the_config_name_is_passed_only_when_set(start, tmp_path):
    model(tmp_path / "models", "whole")
    for value, expected in (("", []), ("gpu-h200-x1", ["--model-config-name=gpu-h200-x1"])):
        done = start(tmp_path / "models", TRITON_CONFIG_NAME=value)
        assert done.stdout.splitlines()[2:] == expected


@pytest.mark.live
def test_the_real_server_starts_with_the_named_config_and_passes_the_health_check(minilm_repository, runtime, tmp_path):
    repository = tmp_path / "models"
    (repository / "minilm").mkdir(parents=True)
    (repository / "minilm" / "1").symlink_to(minilm_repository / "minilm" / "1")
    config = (ROOT / "model_repository" / "minilm" / "config.pbtxt").read_text()
    (repository / "minilm" / "config.pbtxt").write_text(config)
    (repository / "minilm" / "configs").mkdir()
    (repository / "minilm" / "configs" / "small.pbtxt").write_text(config.replace("size: 8", "size: 3"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = runtime.env() | {"MODEL_REPOSITORY": str(repository), "TRITON_CONFIG_NAME": "small"}
    env["PATH"] = f"{runtime.tritonserver.parent}:{env['PATH']}"
    options = ["--http-address=127.0.0.1", f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
    options += [f"--backend-directory={runtime.backends}"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(["/bin/sh", SCRIPT, *options], env=env, stdout=log, stderr=log)
    try:
        check = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["triton"]["healthcheck"]["test"]
        command = [sys.executable, *check[2:-1], check[-1].replace(":8000/", f":{port}/")]
        deadline = time.monotonic() + 60
        while subprocess.run(command, capture_output=True, timeout=20).returncode:
            assert time.monotonic() < deadline and server.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.3)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2", timeout=5) as answer:
            assert json.load(answer)["version"] == current_release().tritonserver
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/minilm/config", timeout=5) as answer:
            assert json.load(answer)["max_batch_size"] == 3
    finally:
        server.terminate()
        assert server.wait(timeout=40) == 0
