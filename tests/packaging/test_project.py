"""Guards of the project's shape: top-level names, module sizes, entry points, no package below tests."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tooling", "export", "perf")
WRAPPED = {
    "onnx",
    "onnxruntime",
    "tensorrt",
    "torch",
    "transformers",
    "tritonclient",
    "plotly",
    "numba",
    "typer",
    "jinja2",
}


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def test_the_wheel_holds_exactly_the_three_packages(tmp_path: Path) -> None:
    """Built without isolation from the installed hatchling, so no network is needed."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == set(PACKAGES)
    for needed in ("tooling/backends/onnxruntime/model.py", "tooling/data/releases.yaml", "perf/data/sentences.txt"):
        assert needed in names
    assert any(n.startswith("tooling/templates/") for n in names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_has_one_job(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 400
    assert path.stem not in WRAPPED
    assert not lines or lines[0].startswith('"""'), "a module opens with its job"


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))
