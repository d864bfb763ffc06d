"""Fixtures shared by the whole suite: the real model, the real runtime, the command line in process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

# No deadline: the machine may be busy. The same examples each time, so that a failure is of the change under test.
# `make fuzz` looks further, elsewhere each time (HYPOTHESIS_PROFILE).
settings.register_profile("tritune", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tritune"))


class Left(list[str]):
    """What still exists of a run: processes, shared memory regions, private directories."""

    @classmethod
    def of(cls, run_id: str) -> Left:
        mark = run_id.encode()
        processes: list[str] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError):
                    if mark in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                        processes.append(entry.name)
        places = [*Path("/dev/shm").glob(f"{run_id}*"), *Path("/tmp").glob(f"{run_id}*")]
        return cls([*processes, *map(str, places)])

    @classmethod
    def after(cls, run_id: str, seconds: float) -> Left:
        """What is left after at most `seconds`; returns early when nothing is."""
        deadline = time.monotonic() + seconds
        while (left := cls.of(run_id)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left


class CliResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The one JSON object on stdout of a run with --json."""
        return json.loads(self.out)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files from what the code produces")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., CliResult]:
    """Run the command line in this process: `run_cli("gen-config", path)` → (code, out, err)."""
    from tooling.cli import main

    def run(*argv: object) -> CliResult:
        capfd.readouterr()
        code = main([str(a) for a in argv])
        out, err = capfd.readouterr()
        return CliResult(code, out, err)

    return run


@pytest.fixture(scope="session", autouse=True)
def export_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Exports of this run are kept for this run only: what earlier code exported is not taken."""
    os.environ["TRITUNE_EXPORT_CACHE"] = str(tmp_path_factory.mktemp("export-cache"))
    yield
    del os.environ["TRITUNE_EXPORT_CACHE"]


@pytest.fixture(scope="session")
def minilm_dir() -> Path:
    """The Hugging Face directory of all-MiniLM-L6-v2 from its package."""
    from export.source import bundled_minilm

    return bundled_minilm()


@pytest.fixture(scope="session")
def runtime():
    """The embedded server's own environment; a missing one is a failure, never a skip."""
    from tooling.runtime import find_runtime

    return find_runtime()


@pytest.fixture(scope="session")
def left() -> type[Left]:
    return Left


@pytest.fixture(scope="session")
def settled() -> Callable[[Callable[[], Any], Any], Any]:
    """`settled(read, wanted)`: what `read` gives, asked again for 5 s at most until it is `wanted`.

    Triton counts a request after it has answered it, so that statistics read at once may miss the last ones.
    """

    def ask(read: Callable[[], Any], wanted: Any) -> Any:
        deadline = time.monotonic() + 5
        while (got := read()) != wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        return got

    return ask


@pytest.fixture(scope="session")
def counts() -> Callable[[Any, str], tuple[int, int]]:
    """`counts(server, model)`: rows answered and executions so far, by Triton's statistics."""

    def read(server: Any, model: str) -> tuple[int, int]:
        stats = server.stats(model)
        return int(stats.get("inference_count", 0)), int(stats.get("execution_count", 0))

    return read


@pytest.fixture(scope="session")
def minilm_repository(tmp_path_factory: pytest.TempPathFactory, minilm_dir: Path) -> Path:
    """A repository with the exported and configured model `minilm`. Read-only: copy it to change it."""
    from tooling.cli import main

    repository = tmp_path_factory.mktemp("minilm") / "repository"
    assert main(["export", str(minilm_dir), "--repository", str(repository), "--name", "minilm", "-q"]) == 0
    assert main(["gen-config", str(repository / "minilm"), "-q"]) == 0
    return repository


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests are skipped with a printed reason where no GPU is; live tests never are.

    Live tests of measuring are `timed`: `make` runs them after the others, one by one. A live test that fails is run
    once more, which the summary tells: a shared machine may take a second away, and a defect fails again.
    """
    here = Path(__file__).parent
    for item in items:
        if item.get_closest_marker("live") or item.get_closest_marker("llm"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.get_closest_marker("live") and item.path.relative_to(here).parts[0] in ("perf", "quickstart"):
            item.add_marker("timed")
    import shutil

    if shutil.which("nvidia-smi"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine (nvidia-smi not found)"))
