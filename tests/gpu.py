"""What the tests that need a GPU share: whether Docker is there, and a deployment that is up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PULL_S = 1_800  # NVIDIA's images have many gigabytes


def require_docker() -> None:
    """Skip, with the reason printed, where no Docker engine answers."""
    try:
        subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no Docker engine answers here ({error})")


def compose(directory: Path, *argv: str) -> str:
    """Standard output of `docker compose` in a project's directory; it must end with 0."""
    done = subprocess.run(
        ["docker", "compose", *argv], cwd=directory, capture_output=True, text=True, timeout=PULL_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def up(directory: Path) -> Iterator[None]:
    """The project's Triton, ready; all of it is gone afterwards."""
    try:
        compose(directory, "up", "--detach", "--wait", "triton")
        yield
    finally:
        compose(directory, "down", "--volumes", "--timeout", "40")
