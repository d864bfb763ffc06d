"""Which perf_analyzer is taken, and why others are not; programs and distributions made for each test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perf import discovery
from perf.analyzer import find_perf_analyzer
from perf.discovery import candidates
from tooling.errors import MissingError
from tooling.runtime import Runtime

WORKING = "#!/bin/sh\necho 'Perf Analyzer Version 9.8.7 (commit abc)' >&2\n"


def program(path: Path, text: str = WORKING) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def distribution(site: Path, version: str, *, binary: str | None = None) -> None:
    """An installed `perf-analyzer` in the directory `site`, with the program `binary` inside or none."""
    info = site / f"perf_analyzer-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: perf-analyzer\nVersion: {version}\n")
    record = ["perf_analyzer/__init__.py,,"]
    if binary is not None:
        program(site / "perf_analyzer" / "bin" / "perf_analyzer", binary)
        record += ["perf_analyzer/bin/perf_analyzer,,", "../../../bin/perf_analyzer,,"]
    (info / "RECORD").write_text("\n".join(record) + "\n")


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Path:
    """A machine with only a placeholder distribution; its PATH is `bin`, its package directory `site`."""
    monkeypatch.delenv(discovery.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin")
    (tmp_path / "site").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path


def made_runtime(root: Path, binary: Path | None) -> Runtime:
    return Runtime(root, root / "python", root / "tritonserver", root / "backends", (), binary)


def test_the_named_command_line_comes_first(machine, monkeypatch):
    distribution(machine / "site", "2.60.0", binary=WORKING)
    named = program(
        machine / "own dir" / "pa", '#!/bin/sh\n[ "$1" = --quick ] && echo "Perf Analyzer Version 1.2" >&2\n'
    )
    monkeypatch.setenv(discovery.VARIABLE, f"'{named}' --quick")
    found = find_perf_analyzer()
    assert (found.command, found.version) == ((str(named), "--quick"), "1.2")
    assert found.source == "$TRITUNE_PERF_ANALYZER"


def test_a_named_one_that_fails_is_never_passed_over(machine, monkeypatch):
    distribution(machine / "site", "2.60.0", binary=WORKING)
    monkeypatch.setenv(discovery.VARIABLE, "/no/such/pa")
    with pytest.raises(MissingError, match=r"\$TRITUNE_PERF_ANALYZER.*/no/such/pa: cannot be started") as missing:
        find_perf_analyzer()
    assert missing.value.exit_code == 3


def test_the_program_inside_the_distribution_is_taken_with_the_distribution_s_version(machine):
    distribution(machine / "site", "2.60.0", binary=WORKING.replace("9.8.7", "0.0.0"))
    program(machine / "bin" / "perf_analyzer")
    found = find_perf_analyzer()
    assert found.command == (str(machine / "site" / "perf_analyzer" / "bin" / "perf_analyzer"),)
    assert found.version == "2.60.0"


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.1.0", "placeholder"), ("2.50.0", "older than 2.58"), ("2.59.1", "holds no program")],
)
def test_a_distribution_that_is_no_use_says_why_and_path_is_next(machine, version, words):
    distribution(machine / "site", version)
    binary = program(machine / "bin" / "perf_analyzer")
    refused, taken, runtime = candidates(None)
    assert words in (refused.problem or "")
    assert refused.hint
    assert (taken.command, taken.version, taken.problem) == ((str(binary),), "9.8.7", None)
    assert runtime.problem == "not installed"


@pytest.mark.parametrize(
    "head", ["#!/usr/bin/python3\n", "#!/bin/sh\n'''exec' '/a long/venv/bin/python' \"$0\" \"$@\"\n"]
)
def test_a_console_script_is_never_taken(machine, head):
    distribution(machine / "site", "0.1.0")
    program(machine / "bin" / "perf_analyzer", head + "echo 'Perf Analyzer Version 1.0' >&2\n")
    with pytest.raises(MissingError, match="console script"):
        find_perf_analyzer()


def test_the_runtime_s_comes_last_with_its_own_environment(machine):
    distribution(machine / "site", "0.1.0")
    needs_library = f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" = "{machine}/perf_analyzer" ] || exit 127\n'
    binary = program(machine / "venv" / "perf_analyzer", needs_library + WORKING.splitlines()[1])
    found = find_perf_analyzer(made_runtime(machine, binary))
    assert (found.source, found.version) == ("the runtime", "9.8.7")
    assert found.env["LD_LIBRARY_PATH"] == f"{machine}/perf_analyzer"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'echo "pa: /lib/libc.so.6: version \\`GLIBC_2.38\' not found (required by pa)" >&2; exit 1',
            "needs GLIBC_2.38",
        ),
        (
            "echo 'pa: error while loading shared libraries: libb64.so.0d: cannot open' >&2; exit 127",
            "needs libb64.so.0d",
        ),
        ("echo 'no such luck' >&2; exit 9", "exit code 9: no such luck"),
        ("echo 'Perf Analyzer Version 9.8.7'", "exit code 0: nothing on stderr"),
        ("exec sleep 60", "did not answer"),
    ],
)
def test_a_program_that_does_not_run_says_why(machine, monkeypatch, text, words):
    monkeypatch.setattr(discovery, "_PROBE_S", 0.5)
    distribution(machine / "site", "0.1.0")
    program(machine / "bin" / "perf_analyzer", f"#!/bin/sh\n{text}\n")
    with pytest.raises(MissingError) as missing:
        find_perf_analyzer(made_runtime(machine, None))
    assert words in str(missing.value)
    assert "its perf_analyzer does not run here" in str(missing.value)
    assert missing.value.problems[0].hint


def test_a_file_that_may_not_be_started_is_told_how(machine, monkeypatch):
    script = machine / "pa"
    script.write_text(WORKING)
    monkeypatch.setenv(discovery.VARIABLE, str(script))
    with pytest.raises(MissingError) as missing:
        find_perf_analyzer()
    assert missing.value.problems[0].hint == f"chmod +x {script}"
