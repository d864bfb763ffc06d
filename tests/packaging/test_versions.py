"""The versions of Triton, ONNX Runtime and perf_analyzer that the project names agree wherever they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tooling.releases import Release, current_release, release_named, releases
from tooling.runtime.location import PINS, RELEASE

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HISTORY = {"rules.md"}  # says of each rule from and until which release it holds


@pytest.fixture(scope="module")
def tested() -> Release:
    return current_release()


def test_the_embedded_server_is_the_tested_release(tested: Release) -> None:
    assert tested.tag == RELEASE
    assert PINS["onnxruntime"] == tested.onnxruntime
    assert PINS["tritonclient"] == tested.tritonserver, "the wheel that holds its perf_analyzer"


def test_compose_files_and_examples_are_for_the_tested_release(tested: Release) -> None:
    assert f"TRITON_RELEASE={tested.tag}\n" in (ROOT / ".env").read_text()
    for file in (ROOT / "examples").rglob("tritune.yaml"):
        release = yaml.safe_load(file.read_text())["release"]
        assert release == tested.tag or (file.parent.name == "llm" and release_named(release).vllm), file


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY], ids=lambda page: page.name)
def test_a_page_names_the_versions_of_the_tested_release(page: Path, tested: Release) -> None:
    text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
    for number in re.findall(r"tritonserver (\d+(?:\.\d+)+)", text):
        assert number in (tested.tritonserver, tested.tritonserver.rpartition(".")[0])
    for number in re.findall(r"ONNX Runtime (\d+\.\d+\.\d+)", text):
        assert number == tested.onnxruntime
    for number in re.findall(r"perf_analyzer (\d+\.\d+\.\d+)", text):
        assert number == PINS["tritonclient"]
    pairs = re.findall(r"(\d\d\.\d\d) = tritonserver ([\d.]+\d)", text)
    assert set(pairs) <= {(release.tag, release.tritonserver) for release in releases()}


def test_the_first_page_and_the_benchmarks_name_them(tested: Release) -> None:
    readme, benchmarks = ((ROOT / name).read_text() for name in ("README.md", "benchmarks/README.md"))
    assert f"{tested.tag} = tritonserver {tested.tritonserver}" in readme
    for text in (readme, benchmarks):
        assert f"ONNX Runtime {tested.onnxruntime}" in text
    assert f"tritonserver {tested.tritonserver} ({tested.tag})" in benchmarks


def test_the_oldest_perf_analyzer_is_one() -> None:
    from perf.discovery import _OLDEST

    oldest = ".".join(map(str, _OLDEST))
    assert f'"perf-analyzer>={oldest};' in (ROOT / "pyproject.toml").read_text()
    assert f"`perf-analyzer` ≥ {oldest}" in (ROOT / "docs" / "measuring.md").read_text()


def test_the_changelog_has_a_place_for_what_comes_and_for_every_version() -> None:
    from importlib.metadata import version

    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert len(headings) == 1 or headings[1] == version("tritune")
