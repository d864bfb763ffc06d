"""However a server ends, nothing of it is left and there is one clear error."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tooling.errors import ExternalError, Terminated, UsageError
from tooling.server import EmbeddedServer, ServerOptions, embedded, supervisor
from tooling.server.ports import Ports, choose_ports
from tooling.server.supervisor import children_of

PYTHON_CONFIG = """
backend: "python"
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
MODEL = """
import os, signal, subprocess, time
class TritonPythonModel:
    def initialize(self, args):
        {body}
    def execute(self, requests):
        return []
"""
PARENT = """
import sys, time
from pathlib import Path
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer, ServerOptions
with EmbeddedServer(Path(sys.argv[1]), find_runtime(), ServerOptions(strict_config=True)) as server:
    server.load("double")
    print(server.run_id, flush=True)
    time.sleep(60)
"""


def supervisor_of(server: EmbeddedServer) -> int:
    return int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until every thread has stopped."""
    os.kill(pid, signal.SIGSTOP)
    while not all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks(pid)):
        time.sleep(0.01)


def tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


@pytest.mark.live
def test_kill_9_of_the_parent(repository: Path, left: Any) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(repository)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        run_id = parent.stdout.readline().strip()
        assert len(left.of(run_id)) == 5  # supervisor, tritonserver, stub, its shared memory, the private directory
        parent.kill()
    assert left.after(run_id, 5) == []


@pytest.mark.live
def test_kill_9_of_tritonserver(start: Callable[..., EmbeddedServer], repository: Path, left: Any) -> None:
    with start(repository) as server:
        server.load("double")
        os.kill(server.pid, signal.SIGKILL)
        assert left.after(server.run_id, 5) == []
        assert not server.alive()
        with pytest.raises(ExternalError, match="was killed by SIGKILL before loading `double`") as raised:
            server.load("double")
        assert "successfully loaded 'double'" in str(raised.value), "the last log lines are shown"
        assert "CUDA" not in str(raised.value)


@pytest.mark.live
@pytest.mark.parametrize("whom", ["server", "supervisor"])
def test_a_killed_server_leaves_no_directory_for_environments(
    start: Callable[..., EmbeddedServer], repository: Path, whom: str, left: Any
) -> None:
    """The Python backend makes one in /tmp by itself; what another server may have made stays."""
    began_s = time.time()
    with start(repository) as server:
        server.load("double")
        made = [place for place in Path("/tmp").glob("python_env_*") if place.stat().st_ctime >= began_s]
        assert made, "Triton makes none any more: nothing is to be removed"
        assert supervisor.left_environments(began_s) == [], "its server lives"
        os.kill(server.pid if whom == "server" else supervisor_of(server), signal.SIGKILL)
        with pytest.raises(ExternalError):
            server.watch()
    assert left.after(server.run_id, 5) == []
    assert supervisor.left_environments(began_s) == []


BACKEND = """
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    print("mapped", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start processes that have a file named as Triton's Python backend mapped."""
    library = tmp_path / "libtriton_python.so"
    library.write_bytes(b"x")
    made: list[subprocess.Popen[str]] = []

    def run() -> subprocess.Popen[str]:
        made.append(subprocess.Popen([sys.executable, "-c", BACKEND, library], stdout=subprocess.PIPE, text=True))
        assert made[-1].stdout is not None
        assert made[-1].stdout.readline() == "mapped\n"
        return made[-1]

    yield run
    for one in made:
        one.kill()
        one.communicate()


def test_only_environments_of_dead_servers_are_removed(
    tmp_path: Path, backend: Callable[[], subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_TEMPORARY", tmp_path)
    monkeypatch.setattr(supervisor, "_PYTHON_BACKEND", os.fsencode(tmp_path / "libtriton_python.so"))
    began_s = time.time() - 1
    old = tmp_path / "python_env_Xy12ab"
    (old / "0" / "bin").mkdir(parents=True)
    (tmp_path / "python_env_filefi").touch()
    (tmp_path / "python_env_of_mine").mkdir()
    assert supervisor.left_environments(time.time() + 1) == [], "made before the run"
    time.sleep(0.1)
    first = backend()
    assert supervisor.left_environments(began_s) == [old], "the living one was started later"
    own = tmp_path / "python_env_abcdef"
    own.mkdir()
    assert supervisor.left_environments(began_s) == [old]
    supervisor.remove_environments(began_s)
    assert sorted(place.name for place in tmp_path.glob("python_env_*")) == [
        *("python_env_abcdef", "python_env_filefi", "python_env_of_mine")
    ]
    first.kill()
    first.wait()
    assert supervisor.left_environments(began_s) == [own]


@pytest.mark.live
def test_kill_9_of_the_supervisor(start: Callable[..., EmbeddedServer], repository: Path) -> None:
    with start(repository) as server:
        server.load("double")
        os.kill(supervisor_of(server), signal.SIGKILL)
        with pytest.raises(ExternalError, match="its supervisor process was killed"):
            server.watch()


@pytest.mark.live
def test_kill_9_of_the_supervisor_while_a_model_loads(
    start: Callable[..., EmbeddedServer], tmp_path: Path, add_model: Callable[..., Path], left: Any
) -> None:
    """The orphan of a hanging load holds the connection; the call must not wait for it until its deadline."""
    add_model(tmp_path, "hanging", PYTHON_CONFIG, {"1/model.py": MODEL.format(body="time.sleep(300)")})
    with start(tmp_path) as server:
        began = time.monotonic()
        killer = threading.Timer(1.5, lambda: os.kill(supervisor_of(server), signal.SIGKILL))
        killer.start()
        with pytest.raises(ExternalError, match="its supervisor process was killed while loading `hanging`"):
            server.load("hanging", deadline_s=60)
        assert time.monotonic() - began < 12
        killer.join()
    assert left.after(server.run_id, 5) == []


@pytest.mark.live
@pytest.mark.parametrize("call", ["load", "stats"])
def test_stopped_server_is_reported_after_the_deadline(
    start: Callable[..., EmbeddedServer], repository: Path, call: str, left: Any
) -> None:
    with start(repository, request_timeout_s=0.5, load_timeout_s=0.5) as server:
        freeze(server.pid)
        began = time.monotonic()
        with pytest.raises(ExternalError, match=r"did not answer within 0\.5 s") as raised:
            getattr(server, call)("double")
        assert time.monotonic() - began < 3
        assert "Started HTTPService" in str(raised.value)
        assert left.of(server.run_id) == []
        assert not server.alive()


@pytest.mark.live
def test_stopped_server_can_be_ended(start: Callable[..., EmbeddedServer], repository: Path) -> None:
    with start(repository) as server:
        freeze(server.pid)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 8
        server.stop()  # a second time there is nothing to do


@pytest.mark.live
@pytest.mark.parametrize("error", [KeyboardInterrupt, Terminated])
def test_signal_in_the_block(
    start: Callable[..., EmbeddedServer], repository: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error), start(repository):
        raise error


@pytest.mark.live
def test_model_that_kills_the_server_while_loading(
    start: Callable[..., EmbeddedServer], tmp_path: Path, add_model: Callable[..., Path]
) -> None:
    body = "os.kill(os.getppid(), signal.SIGKILL)"
    add_model(tmp_path, "killer", PYTHON_CONFIG, {"1/model.py": MODEL.format(body=body)})
    with (
        start(tmp_path) as server,
        pytest.raises(ExternalError, match="was killed by SIGKILL while loading `killer`"),
    ):
        server.load("killer")


@pytest.mark.live
def test_model_that_hangs_and_has_left_the_process_group(
    start: Callable[..., EmbeddedServer], tmp_path: Path, add_model: Callable[..., Path]
) -> None:
    body = 'subprocess.Popen(["sleep", "300"], start_new_session=True); time.sleep(300)'
    add_model(tmp_path, "hanging", PYTHON_CONFIG, {"1/model.py": MODEL.format(body=body)})
    with start(tmp_path) as server:
        with pytest.raises(ExternalError, match="did not answer within 2 s while loading `hanging`"):
            server.load("hanging", deadline_s=2)
        assert not server.alive()


@pytest.mark.live
def test_another_program_takes_a_chosen_port_first(
    start: Callable[..., EmbeddedServer], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        taken = foreign.getsockname()[1]
        first = iter([taken])

        def race(options: ServerOptions) -> Ports:
            chosen = choose_ports(options)
            return chosen._replace(http=next(first, chosen.http))

        monkeypatch.setattr(embedded, "choose_ports", race)
        with start(repository) as server:
            assert not server.http_url.endswith(f":{taken}")


@pytest.mark.parametrize("endpoint", ["http", "grpc", "metrics"])
def test_taken_port_is_named(repository: Path, runtime: Any, endpoint: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        taken = foreign.getsockname()[1]
        server = EmbeddedServer(repository, runtime, ServerOptions(**{f"{endpoint}_port": taken}))
        with pytest.raises(UsageError, match=f"port {taken} is taken") as raised, server:
            pass
    assert f"--{endpoint}-port" in str(raised.value.problems[0].hint)


def test_impossible_ports() -> None:
    with pytest.raises(UsageError, match="out of range"):
        choose_ports(ServerOptions(http_port=70000))
    with pytest.raises(UsageError, match="also the port of another endpoint"):
        choose_ports(ServerOptions(http_port=18111, grpc_port=18111))


def test_missing_repository(tmp_path: Path, runtime: Any) -> None:
    with pytest.raises(UsageError, match="no such directory"), EmbeddedServer(tmp_path / "nowhere", runtime):
        pass


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo libcuda.so is broken; exit 3", "ended with exit code 3 while starting"),
        ("echo still thinking; sleep 60", r"did not answer within 0\.5 s while starting"),
        ("kill -SEGV $$", "was killed by SIGSEGV while starting"),
    ],
)
def test_server_program_that_does_not_come_up(
    tmp_path: Path, repository: Path, runtime: Any, left: Any, script: str, message: str
) -> None:
    program = tmp_path / "tritonserver"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    other = dataclasses.replace(runtime, tritonserver=program)
    server = EmbeddedServer(repository, other, ServerOptions(start_timeout_s=0.5))
    with pytest.raises(ExternalError, match=message) as raised, server:
        pass
    if "echo" in script:
        assert script[5 : script.index(";")] in str(raised.value)
    assert left.of(server.run_id) == []


def test_server_program_that_is_not_there(repository: Path, runtime: Any) -> None:
    server = EmbeddedServer(repository, dataclasses.replace(runtime, tritonserver=Path("/nowhere/tritonserver")))
    with pytest.raises(ExternalError, match="cannot start /nowhere/tritonserver: No such file"), server:
        pass


def test_children_of_this_process() -> None:
    with subprocess.Popen(["sleep", "30"]) as child:
        assert child.pid in children_of(os.getpid())
        child.kill()
