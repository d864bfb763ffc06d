"""What `tritune deploy compose` refuses, and `deploy kubernetes` as well where both may be asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import PYTHON

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("config", "argv", "code", "message"),
    [
        ('platform: "onnx"\n', [], 1, "platform-unknown"),
        (PYTHON + "instance_group { kind: KIND_GPU }\n", ["--gpus", "none"], 2, "a model runs on GPUs only"),
        (PYTHON, ["--cache-size", "1GiB"], 2, "--cache-size: no model would use the cache"),
        (PYTHON, ["--gpus", "first"], 2, "--gpus: no GPUs"),
        (PYTHON, ["--gpus", "0,1,0"], 2, "--gpus: no GPUs (got `0,1,0`; expected all, none, or ids such as 0,1, each"),
        (PYTHON, ["--gpus", "GPU-"], 2, "--gpus: no GPUs"),
        (PYTHON, ["--host", "localhost"], 2, "--host: no IP address (got `localhost`; expected an address of this"),
        (PYTHON, ["--host", "127.0.0.1:80"], 2, "--host: no IP address"),
        (PYTHON, ["--grpc-port", "8000"], 2, "--grpc-port: the port of --http-port too (got 8000; expected three"),
        (PYTHON, ["--config-name", "../m"], 2, "--config-name: not a usable hardware name (got `../m`; expected"),
        (PYTHON, ["--config-name", "gpu"], 2, "--config-name: no model has a config of this name (got `gpu`; exp"),
        (PYTHON, ["--p99", "0"], 2, "--p99: too small (got `0`; expected 1us or more)"),
        (PYTHON, ["--p99", "fast"], 2, "--p99: not a duration"),
        (PYTHON, ["--queue-target", "0ms"], 2, "--queue-target: too small"),
        (PYTHON, ["--pinned-pool", "big"], 2, "--pinned-pool: not a size"),
        (PYTHON, ["--bucket", "s3://../m"], 2, "--bucket: no object store"),
        (PYTHON, ["--sweep", "n"], 2, "--sweep: no such model (got `n`; expected a model of"),
        (PYTHON, ["--release", "99.01"], 2, "--release: no known release of Triton (got `99.01`; expected"),
        (PYTHON, ["--shm-size", "1"], 2, "--shm-size: not a size"),
        (PYTHON, ["--shm-size", "0"], 2, "--shm-size: too small (got `0`; expected 1MiB or more)"),
        (PYTHON, ["--bucket", "https://b/m"], 2, "no object store"),
    ],
)
def test_refused(config: str, argv: list[str], code: int, message: str, run_cli: Run, repository: Any, tmp_path: Path):
    done = run_cli("deploy", "compose", repository(m=config), "-o", tmp_path / "out", *argv)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert not (tmp_path / "out").exists()


CACHED = PYTHON + "response_cache { enable: true }\n"


@pytest.mark.parametrize(
    ("kind", "config", "argv", "message"),
    [
        (
            *("compose", CACHED),
            ["--release", "23.02"],
            "tritonserver:23.02 has no --cache-config, which a model with a",
        ),
        (*("compose", CACHED), ["--release", "23.03"], ""),
        (*("compose", PYTHON), ["--release", "23.10", "--control", "explicit"], ""),
        (
            *("compose", PYTHON),
            ["--release", "23.10", "--control", "explicit", "--host", "0.0.0.0"],
            (
                "--release: tritonserver:23.10 has no --http-restricted-api, which keeps the load API from strangers ("
                "got 23.10; expected 23.11 or newer)"
            ),
        ),
        (*("kubernetes", PYTHON), ["--release", "23.10", "--control", "explicit"], "has no --http-restricted-api"),
        (*("kubernetes", PYTHON), ["--release", "23.11", "--control", "explicit"], ""),
    ],
)
def test_options_that_a_release_has_not_are_refused(
    kind: str, config: str, argv: list[str], message: str, run_cli: Run, repository: Any, tmp_path: Path
) -> None:
    """The server would not start with them."""
    done = run_cli("deploy", kind, repository(m=config), "-o", tmp_path / "out", *argv)
    assert done.code == (2 if message else 0), done.err
    assert message in done.err
    assert (tmp_path / "out").exists() == (not message)


def test_what_only_some_models_need_is_told_of_these(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    models = repository(a=PYTHON, b=PYTHON + "instance_group { kind: KIND_GPU }\n")
    assert "expected GPUs for b)" in run_cli("deploy", "compose", models, "-o", tmp_path / "out", "--gpus", "none").err


@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_an_output_that_is_no_directory_is_named(kind: str, run_cli: Run, repository: Any, tmp_path: Path) -> None:
    models = repository(m=PYTHON)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        done = run_cli(
            "deploy", kind, models, "-o", tmp_path / name / "deep", "--name=enc" if kind != "compose" else "-v"
        )
        assert (done.code, f"cannot be written (got {tmp_path / name}, which is no directory)" in done.err) == (2, True)


def test_not_a_repository(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    models = repository(m=PYTHON)
    assert "no model repository" in run_cli("deploy", "compose", models / "m", "-o", tmp_path / "out").err
