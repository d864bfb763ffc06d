"""tritonserver's options from the models: what they are, and that the real server takes them and does what they say."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tooling.check.repository import read_repository
from tooling.check.target import Target
from tooling.errors import UsageError
from tooling.releases import current_release
from tooling.server import EmbeddedServer, ServerFlags
from tooling.server.flags import flags_for, flags_of
from tooling.server.options import ServerOptions
from tooling.server.ports import choose_ports

from .conftest import CONFIG

ASKING = (
    CONFIG.replace("count: 1", 'count: 1 rate_limiter { resources { name: "R" count: 3 } }')
    + "response_cache { enable: true }\n"
)


def models_of(repository: Path) -> Any:
    return read_repository(repository, Target(current_release())).models.values()


def test_flags_follow_the_models(repository: Path, add_model: Callable[..., Path]) -> None:
    assert flags_of(repository) == ServerFlags()
    add_model(repository, "asking", ASKING)
    add_model(repository, "broken", "max_batch_size: four")
    assert flags_of(repository) == ServerFlags(cache_bytes=100 * 2**20, rate_limit=True, resources={"R": 3})
    assert flags_for(models_of(repository), cache_bytes=2**20).cache_bytes == 2**20


@pytest.mark.parametrize(("size", "message"), [(2**30, "no model would use the cache"), (9, "no model would use")])
def test_a_cache_for_nobody(repository: Path, size: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        flags_for(models_of(repository), cache_bytes=size)


@pytest.mark.live
def test_the_embedded_server_runs_with_them(
    repository: Path,
    add_model: Callable[..., Path],
    start: Callable[..., EmbeddedServer],
    infer: Callable[..., Any],
    settled: Callable[..., Any],
) -> None:
    add_model(repository, "asking", ASKING)
    with start(repository, flags=flags_of(repository)) as server:
        server.load("asking")
        for _ in range(3):
            assert infer(server, "asking", [1, 2]) == [2, 4]

        def cached() -> tuple[int, int]:
            stats = server.stats("asking")["inference_stats"]
            return stats["cache_hit"]["count"], stats["cache_miss"]["count"]

        assert settled(cached, (2, 1)) == (2, 1)
        assert "nv_inference_queue_summary_us" in server.metrics()


@pytest.mark.live
def test_a_server_that_is_measured_has_them_but_the_cache(
    repository: Path, add_model: Callable[..., Path], start: Callable[..., EmbeddedServer], infer: Callable[..., Any]
) -> None:
    add_model(repository, "asking", ASKING)
    with start(repository) as server:
        words = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
        assert {"--rate-limit=execution_count", "--rate-limit-resource=R:3"} <= set(words)
        server.load("asking")
        for _ in range(3):
            assert infer(server, "asking", [1, 2]) == [2, 4]
        assert server.stats("asking")["inference_stats"]["cache_hit"]["count"] == 0


@contextmanager
def running(runtime: Any, repository: Path, flags: ServerFlags, log: Path) -> Iterator[str]:
    """A tritonserver as a container starts it, with every option; HOST:PORT of its HTTP."""
    ports = choose_ports(ServerOptions())
    command = [str(runtime.tritonserver), *flags.arguments(str(repository)), f"--backend-directory={runtime.backends}"]
    command += [f"--cache-directory={runtime.tritonserver.parents[1] / 'caches'}", "--exit-timeout-secs=3"]
    for name, port in ports._asdict().items():
        command += [f"--{name}-address=127.0.0.1", f"--{name}-port={port}"]
    with log.open("w") as file:
        server = subprocess.Popen(command, env=runtime.env(), stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 60
        while True:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            try:
                if ask(f"127.0.0.1:{ports.http}", "/v2/health/ready")[0] == 200:
                    break
            except OSError:
                pass
            time.sleep(0.1)
        yield f"127.0.0.1:{ports.http}"
    finally:
        server.terminate()
        server.wait(timeout=40)


def ask(url: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(url, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET" if body is None else "POST", path, json.dumps(body), named)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.mark.live
def test_a_deployed_server_takes_every_option(
    repository: Path, add_model: Callable[..., Path], runtime: Any, tmp_path: Path
) -> None:
    """And its load API only with the key."""
    add_model(repository, "asking", ASKING)
    pools = {"pinned_pool_bytes": 2**20, "cuda_pool_bytes": 2**20, "gpus": 0}
    flags = replace(flags_of(repository), control="explicit", load=("asking",), control_key="k", **pools)
    with running(runtime, repository, flags, tmp_path / "log") as url:
        assert ask(url, "/v2/models/asking/ready")[0] == 200
        status, reason = ask(url, "/v2/repository/models/double/load", {})
        assert status in (401, 403) and "restricted" in reason
        assert ask(url, "/v2/repository/models/double/load", {}, triton_control_key="wrong")[0] == status
        assert ask(url, "/v2/repository/models/double/load", {}, triton_control_key="k")[0] == 200
        assert ask(url, "/v2/models/double/ready")[0] == 200
