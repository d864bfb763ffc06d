"""A server that runs already: measured as it is, changed only when allowed, and given back whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perf.study import read_study
from perf.target import EmbeddedTarget, RunningTarget, Variant
from tooling.config.knobs import apply, read
from tooling.errors import ExternalError, MissingError, Refused, UsageError
from tooling.server import EmbeddedServer, ServerFlags, ServerOptions
from tooling.server.journal import restore

pytestmark = pytest.mark.live

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching {}
"""
KILLED = """
import os, signal, sys
from pathlib import Path
from perf.target import RunningTarget, Variant
from tooling.config.knobs import apply, read
from dataclasses import replace
url, journals = sys.argv[1:]
with RunningTarget(url, "double", reconfigure=True, journals=Path(journals)) as target:
    config = target.config()
    target.serve(Variant("slow", apply(replace(read(config), max_queue_delay_us=5_000), config)))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FP32 [-1, 2] → its double, as the model `double`."""
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    directory = tmp_path_factory.mktemp("running") / "double"
    (directory / "1").mkdir(parents=True)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), directory / "1/model.onnx"
    )
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory.parent


@pytest.fixture(scope="module")
def running(repository: Path, runtime: Any) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(repository, runtime) as server:
        server.load("double")
        yield server


def delayed(target: RunningTarget, delay_us: int) -> Variant:
    from dataclasses import replace

    config = target.config()
    return Variant(f"d{delay_us}", apply(replace(read(config), max_queue_delay_us=delay_us), config))


def delay(server: EmbeddedServer) -> int:
    return int(server.model_config("double")["dynamic_batching"]["max_queue_delay_microseconds"])


def test_changed_and_given_back(running: EmbeddedServer, tmp_path: Path) -> None:
    before = running.model_config("double")
    with (
        pytest.raises(KeyboardInterrupt),
        RunningTarget(running.http_url, "double", reconfigure=True, journals=tmp_path) as target,
    ):
        own = Variant("own", target.config())
        assert target.serve(own) == ("double", True)
        assert target.serve(own) == ("double", False)
        assert not (state := next(tmp_path.iterdir())).read_text(), "nothing is changed yet"
        assert target.serve(delayed(target, 3_000)) == ("double", True)
        assert delay(running) == 3_000
        assert json.loads(state.read_text())["original"] == before
        target.check("double")
        assert target.serve(own) == ("double", True)
        assert delay(running) == 0
        target.serve(delayed(target, 4_000))
        raise KeyboardInterrupt
    assert running.model_config("double") == before
    assert list(tmp_path.iterdir()) == []


def test_without_leave_it_is_only_measured(running: EmbeddedServer, tmp_path: Path) -> None:
    with RunningTarget(running.http_url, "double", journals=tmp_path) as target:
        assert target.serve(Variant("own", target.config())).fresh
        with pytest.raises(UsageError, match="a running server is only measured as it is") as raised:
            target.serve(delayed(target, 1_000))
        assert "--allow-reconfigure" in str(raised.value.problems[0].hint)
        target.check("double")
    assert delay(running) == 0


def test_one_process_changes_a_model_at_a_time(running: EmbeddedServer, tmp_path: Path) -> None:
    def target() -> RunningTarget:
        return RunningTarget(running.http_url, "double", reconfigure=True, journals=tmp_path)

    with target(), pytest.raises(UsageError, match="another process changes this model's configuration"), target():
        pass


def test_a_killed_run_is_given_back_later(
    running: EmbeddedServer, tmp_path: Path, run_cli: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    journals = tmp_path / "tritune" / "restore"
    before = running.model_config("double")
    done = subprocess.run([sys.executable, "-c", KILLED, running.http_url, journals], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert delay(running) == 5_000

    entering = RunningTarget(running.http_url, "double", reconfigure=True)
    with pytest.raises(UsageError, match="an earlier run left this model with another configuration"), entering:
        pass
    given = run_cli("restore")
    assert (given.code, given.out) == (0, f"{running.http_url}, `double`: its own configuration is loaded again\n")
    assert running.model_config("double") == before
    assert run_cli("restore", "--json").json["data"] == {"restored": []}


@pytest.mark.long
def test_a_damaged_journal_keeps_nothing_else_from_being_given_back(
    running: EmbeddedServer, tmp_path: Path, run_cli: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    journals = tmp_path / "tritune" / "restore"
    subprocess.run([sys.executable, "-c", KILLED, running.http_url, journals], check=False)
    assert delay(running) == 5_000
    texts = {"cut.json": '{"url": "127.0.0.1:1", "model": "dou', "a list.json": "[1, 2]", "empty.json": ""}
    texts |= {"binary.json": "\0\x7f", "gone.json": '{"url": "127.0.0.1:1", "model": "m", "original": {}}'}
    for name, text in texts.items():
        (journals / name).write_text(text)
    given = run_cli("restore")
    assert given.code == 2 and given.out == ""
    assert f"{running.http_url}, `double`: its own configuration is loaded again" in given.err
    assert given.err.count("the journal is damaged") == 3
    assert "load the model's configuration by hand, then delete this file" in given.err
    assert "127.0.0.1:1" in given.err, "the server that is gone is told of too"
    assert delay(running) == 0
    assert sorted(path.name for path in journals.iterdir()) == ["a list.json", "binary.json", "cut.json", "gone.json"]


@pytest.mark.long
def test_what_somebody_else_changed_since_stays(running: EmbeddedServer, repository: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, running.http_url, tmp_path], check=False)
    from tooling.repository import read_config

    config = read_config(repository / "double")
    config.dynamic_batching.max_queue_delay_microseconds = 7_000
    running.load("double", config)
    with pytest.raises(Refused, match="somebody else has changed the configuration"):
        restore(tmp_path)
    assert delay(running) == 7_000
    assert restore(tmp_path, force=True) == [(f"{running.http_url}, `double`", True)]
    assert delay(running) == 0


@pytest.mark.long
def test_a_change_meanwhile_is_noticed(running: EmbeddedServer, tmp_path: Path) -> None:
    with RunningTarget(running.http_url, "double", journals=tmp_path) as target:
        target.serve(Variant("own", target.config()))
        target.check("double")
        config = delayed(target, 9_000).config
        running.load("double", config)
        with pytest.raises(ExternalError, match="another server, or another configuration, answers here now"):
            target.check("double")
        running.load("double", target.config())


@pytest.mark.long
def test_a_server_without_model_control_is_told_before_anything_is_measured(repository: Path, runtime: Any) -> None:
    class Fixed(EmbeddedServer):
        def _command(self, *args: Any) -> list[str]:
            command = super()._command(*args)
            return [word.replace("control-mode=explicit", "control-mode=none") for word in command]

    with Fixed(repository, runtime) as server:
        deadline = time.monotonic() + 30
        while "double" not in models(server) and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(UsageError, match="server not in explicit mode: variants cannot be loaded") as e:
            RunningTarget(server.http_url, "double", reconfigure=True)
        assert "restart with --model-control-mode=explicit" in str(e.value.problems[0].hint)
        with RunningTarget(server.http_url, "double") as target:
            target.serve(Variant("own", target.config()))


def models(server: EmbeddedServer) -> list[str]:
    from tooling.server.running import RunningServer

    return RunningServer(server.http_url).models()


@pytest.mark.long
@pytest.mark.parametrize("how", ["--direct", "--no-progress"])
def test_a_tuning_gives_the_server_back(
    running: EmbeddedServer, repository: Path, run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = running.model_config("double")
    argv = [
        "tune",
        repository / "double",
        "--url",
        running.http_url,
        "--instances",
        1,
        "--threads",
        1,
        "--delay",
        "0,1ms",
    ]
    only = run_cli(*argv)
    assert (only.code, only.out) == (2, "")
    assert "a running server is only measured as it is, so no other settings can be tried" in only.err
    study = tmp_path / "study"
    tuned = run_cli(*argv, "--allow-reconfigure", "--budget", "1s", "--study", study, how)
    assert tuned.code == 0, tuned.err
    assert running.model_config("double") == before
    header = json.loads((study / "study.jsonl").read_text().splitlines()[0])
    assert header["server"]["url"] == running.http_url
    assert not list((tmp_path / "state").rglob("*.json"))


@pytest.mark.long
def test_a_tuning_leaves_the_response_cache_out(
    repository: Path, runtime: Any, run_cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server that has one: requests repeat, so that all but the first few would come from it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    served = Path(shutil.copytree(repository / "double", tmp_path / "cached" / "double"))
    (served / "config.pbtxt").write_text(f"{CONFIG}response_cache {{ enable: true }}\n")
    with EmbeddedServer(served.parent, runtime, ServerOptions(flags=ServerFlags(cache_bytes=2**24))) as server:
        server.load("double")
        before = server.model_config("double")
        argv = [served, "--url", server.http_url, "--allow-reconfigure", "--direct", "--budget", "1s"]
        tuned = run_cli("tune", *argv, "--instances", 1, "--threads", 1, "--delay", "0,1ms", "--study", tmp_path / "s")
        assert tuned.code == 0, tuned.err
        left_out = "the response cache is on: it is left out while measuring, so that every request is executed"
        assert left_out in tuned.err
        assert left_out[1:] in (tmp_path / "s" / "decision.md").read_text()
        runs = [r["measurement"] for r in read_study(tmp_path / "s")[1] if r["record"] == "measurement"]
        assert runs
        assert all(run["inference_count"] > 0.8 * run["requests"] for run in runs)
        assert server.model_config("double") == before
        assert before["response_cache"] == {"enable": True}


def test_no_server_no_model_no_address(running: EmbeddedServer) -> None:
    with pytest.raises(MissingError, match="no Triton server answers here"):
        RunningTarget("127.0.0.1:1", "double")
    with pytest.raises(UsageError, match="no such model loaded") as raised:
        RunningTarget(running.http_url, "duoble")
    assert raised.value.problems[0].hint == "did you mean `double`?"
    with pytest.raises(UsageError, match="not HOST:PORT"):
        RunningTarget("localhost", "double")


@pytest.mark.long
def test_a_port_that_another_server_took_is_noticed(repository: Path, runtime: Any, tmp_path: Path) -> None:
    """The first server is killed, and one with the same model takes its port: same name, version and configuration."""
    with EmbeddedServer(repository, runtime) as first:
        first.load("double")
        port = int(first.http_url.rpartition(":")[2])
        with RunningTarget(first.http_url, "double", journals=tmp_path) as target:
            target.serve(Variant("own", target.config()))
            infer(first.http_url)
            target.check("double")
            os.kill(first.pid, signal.SIGKILL)
            with pytest.raises(ExternalError, match="was killed by SIGKILL"):
                first.stats("double")
            with EmbeddedServer(repository, runtime, ServerOptions(http_port=port)) as second:
                second.load("double")
                with pytest.raises(ExternalError, match="another server"):
                    target.check("double")


def infer(url: str) -> None:
    from perf.client import Connection, encode

    request = encode("double", {"x": {"content": [1.0, 2.0], "shape": [1, 2]}}, {"x": "TYPE_FP32"})
    with Connection(url, 10) as connection:
        connection.send(request)


@pytest.mark.long
def test_the_embedded_server_keeps_several_side_by_side(repository: Path, runtime: Any) -> None:
    from dataclasses import replace

    from tooling.repository import read_config

    config = read_config(repository / "double")
    base = Variant("a", config, repository / "double")
    others = [
        Variant(f"b{us}", apply(replace(read(config), max_queue_delay_us=us), config), repository / "double")
        for us in (1_000, 2_000)
    ]
    with EmbeddedTarget(repository, runtime) as target:
        assert target.serve(base) == ("double", True)
        assert target.serve(others[0]) == ("double.candidate", True)
        assert target.serve(base) == ("double", False)
        assert target.serve(others[1]) == ("double.candidate", True)
        assert (
            target.server.model_config("double.candidate")["dynamic_batching"]["max_queue_delay_microseconds"] == 2_000
        )
        target.hold(*others)
        assert target.serve(others[0]) == ("double.candidate-2", True)
        assert target.serve(others[0]) == ("double.candidate-2", False)
        assert [target.serve(one) for one in others] == [("double.candidate-2", False), ("double.candidate", False)]
        target.hold(others[1])
        assert target.reload(others[1])
        assert [target.serve(one).fresh for one in (base, others[1])] == [False, False]
        os.kill(target.pid, signal.SIGKILL)
        with pytest.raises(ExternalError, match="was killed by SIGKILL"):
            for _ in range(100):
                target.check("double")
                time.sleep(0.05)
