"""Progress: one changing line on a terminal, plain lines elsewhere, nothing where it is not wanted."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

CODE = """
from tooling.console import Console
console = Console({options})
with console.progress("measuring", 2) as progress:
    progress.step("first " + "x" * 200)
    console.warning("odd")
    progress.step("second")
console.result({{"answer": 1}}, "the answer")
console.close(0)
"""


def run_on_terminal(options: str, **env: str) -> tuple[str, str]:
    """stdout through a pipe, stderr through a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    code = CODE.format(options=options)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", **env}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    return done.stdout.decode(), seen.decode().replace("\r\n", "\n")


def test_a_terminal_shows_one_line_that_changes() -> None:
    out, err = run_on_terminal("")
    assert out == "the answer\n"
    first, rest = err.split("\r\x1b[K")[1:3]
    assert first.startswith("measuring [1/2] ETA ")
    assert len(first) == 79, "cut to the width, so that it can be erased"
    assert rest == "warning: odd\n", "a message takes the place of the line"
    assert err.endswith("· second\n")


@pytest.mark.parametrize("options", ["quiet=True", "show_progress=False"])
def test_nothing_where_it_is_not_wanted(options: str) -> None:
    assert run_on_terminal(options)[1] == "warning: odd\n"


def test_json_stays_one_object_with_progress_beside() -> None:
    out, err = run_on_terminal("json=True")
    assert out.count("\n") == 1
    assert '"data": {"answer": 1}' in out
    assert "measuring [1/2]" in err


def test_a_dumb_terminal_and_a_file_get_plain_lines() -> None:
    assert "\x1b" not in run_on_terminal("", TERM="dumb")[1]
    done = subprocess.run([sys.executable, "-c", CODE.format(options="")], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["measuring", "warning:", "measuring"]
    assert "ETA" in lines[0]
    assert len(lines[0]) > 200
