"""The documentation is held to what is true: Python examples run, links lead somewhere, commands and options exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    if "quickstart/model_repository" in code
]


@pytest.mark.live
@pytest.mark.parametrize("code", EXAMPLES)
@pytest.mark.long
def test_a_python_example_runs(code: str, minilm_repository: Path, tmp_path: Path) -> None:
    """In a directory that looks as after `tritune quickstart`."""
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart" / "model_repository").symlink_to(minilm_repository)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path, run_cli) -> None:
    """Every `tritune COMMAND … --option` in a page is one that the command's own help shows."""
    for line in re.findall(r"tritune (?!/)([a-z][^`\n|]*)", page.read_text()):
        words = line.split("#")[0].split()
        command = words[:2] if words[0] in GROUPS else words[:1]
        if not re.fullmatch(r"[a-z-]+", command[0]) or command[0] in NO_COMMANDS:
            continue
        shown = run_cli(*command, "--help")
        assert shown.code == 0, f"{page.name}: tritune {line}"
        for option in (word.split("=")[0] for word in words if re.fullmatch(r"--[a-z0-9-]+(=.*)?", word)):
            assert option in shown.out or option in GLOBAL, f"{page.name}: tritune {line}"


GROUPS = {"deploy", "runtime", "study", "workload"}
GLOBAL = {"--json", "--quiet", "--verbose", "--no-progress", "--version", "--help"}
NO_COMMANDS = {
    "takes",
    "measures",
    "wrote",
    "did",
    "starts",
    "finds",
    "with",
    "itself",
    "and",
    "is",
    "as",
    "has",
    "reads",
}
"""Words that follow the name of the tool in prose."""
