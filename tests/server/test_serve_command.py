"""`tritune serve` as a process: ready text, signals, exit codes, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

ANY_PORT = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")


@contextmanager
def serving(*argv: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", "from tooling.cli import entry; entry()", "serve", *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until_ready(stream: IO[str] | None) -> str:
    """Everything up to the curl line; fails when the stream ends first."""
    assert stream is not None
    lines: list[str] = []
    for line in stream:
        lines.append(line)
        if line.startswith("  curl"):
            return "".join(lines)
    raise AssertionError("".join(lines))


def run_id_in(text: str) -> str:
    found = re.search(r"/(tritune-[0-9a-f]{12})-", text)
    assert found is not None
    return found[1]


def server_pid(run_id: str) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and f"--id={run_id}".encode() in (entry / "cmdline").read_bytes().split(b"\0"):
            return int(entry.name)
    raise AssertionError("no tritonserver of this run")


@pytest.mark.live
def test_serves_until_interrupted(repository: Path, left: Any) -> None:
    with serving(str(repository), *ANY_PORT) as process:
        text = read_until_ready(process.stdout)
        for line in (r"HTTP +http://127\.0\.0\.1:\d+", r"gRPC +127\.0\.0\.1:\d+", r"metrics +http://\S+/metrics"):
            assert re.search(line, text)
        assert re.search(r"models +double\n", text)
        answer = subprocess.run(text.splitlines()[-1].strip(), shell=True, capture_output=True, text=True, timeout=20)
        assert json.loads(answer.stdout)["outputs"][0]["data"] == [2.0, 2.0]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert left.of(run_id_in(text)) == []


@pytest.mark.live
def test_json_and_keep_going_until_terminated(repository: Path, add_model: Callable[..., Path], left: Any) -> None:
    add_model(repository, "cut", files={"1/model.onnx": "not an ONNX file"})
    with serving(str(repository), *ANY_PORT, "--keep-going", "--json") as process:
        ready = read_until_ready(process.stderr)
        assert "warning: Triton refused `cut`: " in ready
        process.terminate()
        out, _ = process.communicate(timeout=20)
    envelope = json.loads(out)
    assert process.returncode == envelope["exit_code"] == 143
    assert envelope["data"]["models"] == ["double"]
    assert "Protobuf parsing failed" in envelope["data"]["refused"]["cut"]
    assert left.of(run_id_in(ready)) == []


@pytest.mark.live
def test_refused_model_ends_the_command(run_cli: Callable[..., Any], repository: Path) -> None:
    config = repository / "double" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_FP32", "TYPE_INT64", 1))
    result = run_cli("serve", repository, *ANY_PORT)
    assert (result.code, result.out) == (1, "")
    assert "error: Triton refused `double`: unable to load model 'double'" in result.err
    assert "--keep-going" in result.err


@pytest.mark.live
def test_server_dies_while_serving(repository: Path, left: Any) -> None:
    with serving(str(repository), *ANY_PORT) as process:
        run_id = run_id_in(read_until_ready(process.stdout))
        os.kill(server_pid(run_id), signal.SIGKILL)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 4
    assert "error: tritonserver was killed by SIGKILL while serving; its last log lines:\n" in err
    assert "successfully loaded 'double'" in err
    assert left.of(run_id) == []


@pytest.mark.live
def test_a_tuned_config_that_is_not_taken_is_named(repository: Path) -> None:
    from tooling.repository import config_path, cpu_name

    tuned = config_path(repository / "double", cpu_name())
    tuned.parent.mkdir()
    tuned.write_text((repository / "double" / "config.pbtxt").read_text())
    for option, said in (
        ([], f"config.pbtxt; configs/{cpu_name()}.pbtxt, made for this hardware, is left aside: take it with --"),
        (["--config-name", "auto"], f"configs/{cpu_name()}.pbtxt where it exists, else config.pbtxt\n"),
    ):
        with serving(str(repository), *ANY_PORT, *option) as process:
            assert f"  config   {said}" in read_until_ready(process.stdout)
            process.terminate()
            process.communicate(timeout=20)


@pytest.mark.live
def test_config_of_this_hardware(run_cli: Callable[..., Any], repository: Path) -> None:
    from tooling.repository import config_path, cpu_name

    tuned = config_path(repository / "double", cpu_name())
    tuned.parent.mkdir()
    tuned.write_text((repository / "double" / "config.pbtxt").read_text().replace("dims: [ 2 ]", "dims: [ 2, 2 ]"))
    result = run_cli("serve", repository, *ANY_PORT, "--config-name", "auto")
    assert result.code == 1, "the config of this hardware is taken: it is wrong on purpose"
    assert "tensor 'x'" in result.err


def test_a_directory_in_place_of_a_config_is_told_before_the_server_starts(
    run_cli: Callable[..., Any], repository: Path
) -> None:
    config = repository / "double" / "config.pbtxt"
    config.unlink()
    config.mkdir()
    result = run_cli("serve", repository, *ANY_PORT)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"error: {config}: not a regular file (expected a config)\nhint: put a text file in its place\n"
    )


def test_config_name_that_no_model_has(run_cli: Callable[..., Any], repository: Path) -> None:
    result = run_cli("serve", repository, "--config-name", "gpu-nope")
    assert result.code == 2
    assert "--config-name: no model has a config of this name (got `gpu-nope`; expected a file" in result.err


@pytest.mark.live
def test_strict_completes_no_config(
    run_cli: Callable[..., Any], repository: Path, add_model: Callable[..., Path]
) -> None:
    with serving(str(repository), *ANY_PORT, "--strict") as process:
        pid = server_pid(run_id_in(read_until_ready(process.stdout)))
        assert b"--disable-auto-complete-config" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        process.terminate()
        process.communicate(timeout=20)
    add_model(repository, "short", config='backend: "onnxruntime"\n')
    result = run_cli("serve", repository, *ANY_PORT, "--strict")
    assert (result.code, "Triton refused `short`" in result.err) == (1, True), result.err
    assert "hint: list every input and output in its config, or leave --strict out" in result.err


@pytest.mark.live
def test_model_without_weights_says_how_to_make_them(run_cli: Callable[..., Any], repository: Path) -> None:
    (repository / "bare").mkdir()
    (repository / "bare" / "config.pbtxt").write_text('backend: "onnxruntime"\n')
    result = run_cli("serve", repository, *ANY_PORT, "--model", "bare")
    assert result.code == 1
    assert f"tritune export SOURCE --repository {repository} --name bare" in result.err


@pytest.mark.live
def test_a_backend_that_only_containers_have_is_told_with_the_command(
    run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "llm" / "1").mkdir(parents=True)
    engine = 'parameters { key: "gpt_model_path" value { string_value: "/engines/llm" } }'
    (tmp_path / "llm" / "config.pbtxt").write_text(f'backend: "tensorrtllm"\nmax_batch_size: 1\n{engine}\n')
    (tmp_path / "ov" / "1").mkdir(parents=True)
    (tmp_path / "ov" / "config.pbtxt").write_text('backend: "openvino"\n')
    result = run_cli("serve", tmp_path, *ANY_PORT)
    assert (result.code, result.out) == (1, "")
    mounts = f"-v {tmp_path}:/models:ro -v /engines/llm:/engines/llm:ro"
    begin = "the embedded server has no tensorrtllm backend, which needs an NVIDIA GPU: `docker run --rm --gpus all "
    assert begin in result.err
    assert f"{mounts} nvcr.io/nvidia/tritonserver:24.10-trtllm-python-py3 tritonserver --model-repo" in result.err
    assert "the embedded server has no openvino backend, which needs a container: `docker run --rm --shm-" in result.err
    assert "nvcr.io/nvidia/tritonserver:24.10-py3 tritonserver --model-repository=/models`" in result.err


@pytest.mark.live
def test_a_python_model_without_its_code_is_refused_at_once(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    """Triton itself would wait for ever, but for an ensemble, whose backend it refuses before it looks for code."""
    for name in ("plain", "llm", "both"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text('backend: "python"\n')
    with (tmp_path / "both" / "config.pbtxt").open("a") as config:
        config.write('platform: "ensemble"\n')
    (tmp_path / "llm" / "1" / "model.yaml").write_text("triton_config: {}\n")
    result = run_cli("serve", tmp_path, *ANY_PORT)
    assert (result.code, result.out) == (1, "")
    for name in ("plain", "llm"):
        assert f"'{tmp_path}/{name}/1/model.py' is not there, and the Python backend would wait for a" in result.err
    assert result.err.count("it is TensorRT-LLM's LLM API, which needs an NVIDIA GPU: the commands that") == 1
    assert "Ensemble model 'both' must have platform type 'ensemble' and empty backend type" in result.err


def test_taken_port(run_cli: Callable[..., Any], repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        taken = foreign.getsockname()[1]
        result = run_cli("serve", repository, "--http-port", taken)
    assert (result.code, result.out) == (2, "")
    assert f"port {taken} is taken" in result.err
    assert "--http-port" in result.err


def test_missing_repository(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    result = run_cli("serve", tmp_path / "nowhere")
    assert (result.code, result.out) == (2, "")
    assert "nowhere: not a model repository (got no such directory" in result.err


@pytest.mark.live
def test_empty_repository(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    result = run_cli("serve", tmp_path, *ANY_PORT)
    assert (result.code, result.out) == (2, "")
    assert "no model in this repository" in result.err
    assert "tritune export" in result.err


def test_missing_runtime(
    run_cli: Callable[..., Any], repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITUNE_RUNTIME", str(tmp_path / "none"))
    result = run_cli("serve", repository)
    assert (result.code, result.out) == (3, "")
    assert "tritune runtime install" in result.err
