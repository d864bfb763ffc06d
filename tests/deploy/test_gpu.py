"""`docker compose up` on a real GPU, and the sweep beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..gpu import compose, require_docker, up


@pytest.mark.gpu
def test_up_and_sweep(minilm_repository: Path, run_cli: Callable[..., Any], tmp_path: Path) -> None:
    require_docker()
    assert run_cli("deploy", "compose", minilm_repository, "-o", tmp_path).code == 0
    with up(tmp_path):
        swept = compose(tmp_path, "run", "--rm", "-e", "TRITON_CONCURRENCY=1:4:3", "tune")
    found = {int(clients): float(rate) for clients, rate in re.findall(r"Concurrency: (\d+), throughput: (\S+)", swept)}
    assert set(found) >= {1} and min(found.values()) > 50, swept  # a laptop's CPU answers more
