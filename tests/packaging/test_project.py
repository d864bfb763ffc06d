"""Guards of the project's shape: top-level names, module sizes, entry points, no package below tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

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


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, and the wheel that is built from it alone. No isolation, so no network is needed."""
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    return directory


def tracked(*folders: str) -> set[str]:
    """What git tracks, or would with the next `git add`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return set(listed.stdout.split("\0")) - {""}


def test_the_wheel_holds_exactly_the_three_packages_with_their_data(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == set(PACKAGES)
    assert names == tracked(*PACKAGES)
    assert {"tooling/data/releases.yaml", "tooling/data/start-triton.sh", "perf/data/sentences.txt"} <= names


def test_the_source_distribution_holds_what_is_tracked(dist: Path) -> None:
    """With the examples, the docs and all that the tests look at; what only CI needs is left out."""
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert names - {"PKG-INFO"} == {name for name in tracked() if not name.startswith((".ci/", ".github/"))}


@pytest.mark.long
def test_the_wheel_works_in_a_clean_environment(dist: Path, tmp_path: Path) -> None:
    """Outside the checkout, with no more than the base dependencies."""
    (wheel,) = dist.glob("*.whl")
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    python = tmp_path / "clean" / "bin" / "python"
    place = tmp_path / "some where"
    add_model(place / "model_repository" / "m")

    def run(*words: object) -> str:
        done = subprocess.run([*map(str, words)], cwd=place, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", python.parents[1])
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    assert "No broken requirements" in run(python, "-m", "pip", "check")
    tritune = python.with_name("tritune")
    assert run(tritune, "--version") == f"tritune {version('tritune')}\n"
    assert "quickstart" in run(tritune, "--help")
    assert "max_batch_size" in run(tritune, "gen-config", "model_repository/m", "--stdout")
    run(tritune, "gen-config", "model_repository/m")
    assert "nothing to complain about" in run(tritune, "check", "model_repository")
    run(tritune, "init", "--no-tune")
    assert "gen-config" in run(tritune, "build", "--dry-run")
    run(tritune, "build")
    assert "_tritune_completion" in run(tritune, "completion", "bash")
    assert Path(run(python, "-c", "import tooling; print(tooling.__file__)").strip()).is_relative_to(python.parents[1])


def add_model(directory: Path) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
    (directory / "1").mkdir(parents=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        directory / "1" / "model.onnx",
    )


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_has_one_job(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 400
    assert path.stem not in WRAPPED
    assert not lines or lines[0].startswith('"""'), "a module opens with its job"


def test_tests_are_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))
