"""Small repositories to deploy, and the Compose program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from perf.grid import Candidate
from perf.result import TuneResult
from perf.study import Study
from perf.trial import Figures, Spread, Trial
from tooling.config.knobs import Knobs

from ..compose import read

PYTHON_MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
PYTHON = """backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
"""


def write_study(directory: Path, capacity: dict[str, Any], mean_batch: float = 1.0, model: str = "m") -> None:
    """A finished tuning, as `tritune tune` keeps it."""
    one = Spread(1.0, 1.0, 1.0)
    figures = Figures(6, one, one, one, one, mean_batch)
    trial = Trial(Candidate("default", Knobs(max_batch_size=8, dynamic_batching=False)), "default", figures)
    result = TuneResult(
        *(model, "8 clients", "throughput", trial, (), trial),
        runs=6,
        disturbed=0,
        spent_s=9.0,
        finished="2026-01-01T00:00:00+00:00",
        study=directory,
        findings={"capacity": capacity},
    )
    with Study(directory, {"command": "tune"}) as study:
        study.append({"record": "result", "result": result.to_dict()})


@pytest.fixture
def repository(tmp_path: Path) -> Callable[..., Path]:
    """`repository(NAME=pbtxt, ...)` → a repository of Python models."""

    def make(**models: str) -> Path:
        root = tmp_path / "models"
        for name, config in models.items():
            (root / name / "1").mkdir(parents=True)
            (root / name / "config.pbtxt").write_text(config)
            (root / name / "1" / "model.py").write_text(PYTHON_MODEL)
        return root

    return make


@pytest.fixture
def services() -> Callable[..., dict[str, Any]]:
    """`services(directory, *profiles, **variables)` → the services of a project, as the real Compose reads them."""

    def read_services(directory: Path, *profiles: str, **variables: str) -> dict[str, Any]:
        profile = (f"--profile={name}" for name in profiles)
        return dict(read(directory, *profile, **variables)["services"])

    return read_services


@pytest.fixture
def rendered(run_cli: Callable[..., Any], repository: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """`rendered(*argv)` → the objects by file; a file with several holds a list."""

    def run(*argv: str, config: str = PYTHON) -> dict[str, Any]:
        out = tmp_path / "out"
        done = run_cli("deploy", "kubernetes", repository(m=config), "-o", out, "--name", "enc", *argv)
        assert done.code == 0, done.err
        return {p.relative_to(out).as_posix(): list(yaml.safe_load_all(p.read_text())) for p in out.rglob("*.yaml")}

    return run
