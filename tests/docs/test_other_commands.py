"""Commands of the documentation that are not tritune's own: what no test can run says what it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .blocks import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "model_repository/README.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in ("commands.md", "rules.md")),
]
RUN = ("tritune", "make", "cp", "mkdir", "curl")
"""Run with their page (test_commands_run.py, tests/project/test_examples.py), or by whoever contributes."""
TESTED = {
    "pip": "tests/packaging/test_project.py",  # the wheel, in an environment of its own
    "python make_model.py": "tests/project/test_examples.py",
    "sh models/encoder/clients/client_curl.sh": "tests/export/text/test_pipeline.py",
    ".venv/bin/tritune": "tests/export/test_cli.py",
}
"""How others begin, and the test that does the same."""
NEEDS = {"docker": "Docker", "kubectl": "cluster", "nsys": "GPU", "nvidia-smi": "GPU", "python": "GPU"}
"""Programs that no test here can run, and the word by which their section says so."""
SETTING = re.compile(r"[A-Z_]+=\S*")


def _lines(page: Path) -> Iterator[tuple[str, str]]:
    """Each command of a page, with the page from the heading above it to the end of its block."""
    programs = {*NEEDS, *(begin.split()[0] for begin in TESTED)}
    for block in commands(page):
        for line in block.code.splitlines():
            if line.startswith("$ "):
                yield line[2:], block.context
            elif (block.language == "sh" and line) or _program(line) in programs:
                yield line, block.context


def _program(line: str) -> str:
    return next((word for word in line.split() if not SETTING.fullmatch(word)), "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_runs_in_a_test_or_says_what_it_needs(page: Path) -> None:
    for line, context in _lines(page):
        program = _program(line)
        if program in RUN or line.startswith("#"):
            continue
        if done := [test for begin, test in TESTED.items() if line.startswith(begin)]:
            assert (ROOT / done[0]).is_file()
            continue
        assert program in NEEDS, f"{page.name}: no test runs `{line}`"
        needed = {NEEDS[program], *(["GPU"] if "--gpus" in line else [])}
        for word in needed:
            assert word in context, f"{page.name}: `{line}` does not say that it needs a {word}"


def test_every_target_of_make_that_a_page_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"(?:^\$ |`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 5
    assert [one for one in named if one[1] not in targets] == []


def test_every_service_and_file_of_docker_compose_that_a_page_names_is_there() -> None:
    files = [yaml.safe_load((ROOT / name).read_text()) for name in ("docker-compose.yml", "docker-compose.text.yml")]
    services = {name for file in files for name in file["services"]}
    profiles = {one for file in files for body in file["services"].values() for one in body.get("profiles", ())}
    seen = set()
    for page in PAGES:
        for line in re.findall(r"docker compose ([^`\n]*)", page.read_text(encoding="utf-8")):
            words = line.split("#")[0].split()
            for number, word in enumerate(words[:-1]):
                following = words[number + 1]
                if word == "-f":
                    assert (ROOT / following).is_file(), f"{page.name}: docker compose {line}"
                elif word == "--profile":
                    assert following in profiles, f"{page.name}: docker compose {line}"
                elif word in ("up", "run", "stop", "logs", "exec"):
                    service = next((one for one in words[number + 1 :] if not one.startswith("-")), None)
                    assert service in {*services, None}, f"{page.name}: docker compose {line}"
                    seen.add(service)
    assert {"triton-cpu", "tune"} <= seen
