"""However the engine or its server ends, its clients are told, and no process and no semaphore is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tooling.errors import ExternalError
from tooling.server import EmbeddedServer, ServerOptions
from tooling.server.supervisor import children_of

pytestmark = pytest.mark.llm
ENDS = ("engine", "server", "supervisor", "stop")


def descendants(pid: int) -> dict[int, bytes]:
    """Command lines of all processes below one, its own left out."""
    found: dict[int, bytes] = {}
    for child in children_of(pid):
        with suppress(OSError):
            found[child] = Path(f"/proc/{child}/cmdline").read_bytes()
        found |= descendants(child)
    return found


def engine_of(server: EmbeddedServer) -> int:
    (engine,) = [pid for pid, line in descendants(server.pid).items() if b"EngineCore" in line]
    return engine


def stub_of(server: EmbeddedServer) -> int:
    (stub,) = children_of(server.pid)
    return stub


def gone(pid: int, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def semaphores(pid: int) -> list[Path]:
    """Named semaphores that a process holds: files of /dev/shm that it has mapped, by their inodes."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    mapped = {int(line.split()[4]) for line in lines if "/dev/shm/sem." in line}
    return [path for path in Path("/dev/shm").glob("sem.*") if path.stat().st_ino in mapped]


def vanished(paths: list[Path], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while any(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(path.exists() for path in paths)


def long_streams(client: Any, count: int = 3) -> None:
    names = [client.ask(f"long {number}", max_tokens=480, ignore_eos=True) for number in range(count)]
    client.wait(*names, first=True)


@pytest.fixture(scope="module")
def living(
    tmp_path_factory: pytest.TempPathFactory,
    add_llm: Callable[..., Path],
    runtime: Any,
    load_all: Callable[..., None],
    left: Any,
) -> Iterator[dict[str, EmbeddedServer]]:
    """Servers with an engine each, one for every end. When all have ended nothing of any run may be left."""
    repository = tmp_path_factory.mktemp("ends")
    add_llm(repository, "llama")
    options = ServerOptions(load_timeout_s=240)
    with ExitStack() as stack:
        servers = {end: stack.enter_context(EmbeddedServer(repository, runtime, options)) for end in ENDS}
        load_all(*((server, "llama") for server in servers.values()))
        yield servers
    assert [left.of(server.run_id) for server in servers.values()] == [[]] * len(servers)


def test_a_killed_engine_is_told_and_can_be_loaded_again(
    living: dict[str, EmbeddedServer], connect: Callable[..., Any]
) -> None:
    server = living["engine"]
    client, engine, stub = connect(server), engine_of(server), stub_of(server)
    long_streams(client)
    held = semaphores(engine)
    assert held
    os.kill(engine, signal.SIGKILL)
    assert all("the vLLM engine died while it generated: it was killed" in one.error for one in client.wait())
    late = connect(server)
    late.ask("too late", max_tokens=1)
    assert "has died, unload the model and load it again: it was killed" in late.wait()[0].error
    client.close()
    late.close()
    server.unload("llama")
    server.load("llama")
    assert gone(stub)
    assert vanished(held)
    assert engine_of(server) != engine
    after = connect(server)
    after.ask("after", max_tokens=2, ignore_eos=True)
    assert after.wait()[0].tokens == 2


def test_an_engine_ends_with_its_stub(living: dict[str, EmbeddedServer], connect: Callable[..., Any]) -> None:
    """The one that was loaded again."""
    server = living["engine"]
    engine = engine_of(server)
    held = semaphores(engine)
    assert held
    long_streams(connect(server))
    os.kill(stub_of(server), signal.SIGKILL)
    assert gone(engine)
    assert vanished(held)


@pytest.mark.parametrize("whom", ["server", "supervisor"])
def test_killing_the_server_while_it_generates(
    living: dict[str, EmbeddedServer], connect: Callable[..., Any], left: Any, whom: str
) -> None:
    """The engine goes with it, and nothing else of the run is left."""
    server = living[whom]
    long_streams(connect(server))
    engine = engine_of(server)
    held = semaphores(engine)
    assert held
    supervisor = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(server.pid if whom == "server" else supervisor, signal.SIGKILL)
    assert gone(engine)
    with pytest.raises(ExternalError, match=r"was killed by SIGKILL|supervisor process was killed"):
        server.load("llama")
    assert vanished(held)
    assert left.after(server.run_id, 5) == []


def test_stopping_the_server_while_it_generates(
    living: dict[str, EmbeddedServer], connect: Callable[..., Any], left: Any
) -> None:
    server = living["stop"]
    long_streams(connect(server))
    held = semaphores(engine_of(server))
    assert held
    server.stop()
    assert left.of(server.run_id) == []
    assert not any(path.exists() for path in held)
