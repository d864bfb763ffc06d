"""Running a program to its end or its deadline, and the load of others meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from perf import process
from perf.process import ForeignLoad, run_until

BURN = "import time; e = time.monotonic() + {}\nwhile time.monotonic() < e: pass"


@pytest.fixture
def run(tmp_path):
    def start(*argv: str, deadline_s: float = 20.0):
        files = {"stdout": tmp_path / "out", "stderr": tmp_path / "err"}
        return run_until(argv, env=dict(os.environ), cwd=tmp_path, deadline_s=deadline_s, **files)

    return start


def gone(pid: int) -> bool:
    """Whether the process is no more, or only waits to be reaped; given a moment to get there."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_output_goes_to_files_and_the_exit_code_is_kept(run, tmp_path):
    ended = run("sh", "-c", "echo data; echo news >&2; pwd >&2; exit 7")
    assert (ended.rc, ended.timed_out) == (7, False)
    assert (tmp_path / "out").read_text() == "data\n"
    assert (tmp_path / "err").read_text() == f"news\n{tmp_path}\n"


def test_a_signal_is_a_negative_exit_code(run):
    assert run("sh", "-c", "kill -9 $$").rc == -signal.SIGKILL


def test_cpu_time_is_counted(run):
    ended = run(sys.executable, "-c", BURN.format(0.5))
    assert 0.05 < ended.cpu_s <= ended.wall_s * 1.1


def test_the_deadline_interrupts_first(run, tmp_path):
    ended = run("sh", "-c", "trap 'echo last words; exit 3' INT; while :; do sleep 0.05; done", deadline_s=0.5)
    assert (ended.rc, ended.timed_out) == (3, True)
    assert (tmp_path / "out").read_text() == "last words\n"


def test_then_the_whole_group_is_killed(run, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "_PATIENCE_S", 0.3)
    ended = run("sh", "-c", "trap '' INT; sleep 60 & echo $!; wait", deadline_s=0.5)
    assert (ended.rc, ended.timed_out) == (-signal.SIGKILL, True)
    assert ended.wall_s < 10
    assert gone(int((tmp_path / "out").read_text()))


def test_what_the_program_leaves_behind_is_ended(run, tmp_path):
    assert run("sh", "-c", "sleep 60 & echo $!").rc == 0
    assert gone(int((tmp_path / "out").read_text()))


def test_an_interrupt_ends_the_program_and_goes_on(run, tmp_path):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run("sh", "-c", "echo $$; exec sleep 60")
    assert gone(int((tmp_path / "out").read_text()))


def test_a_program_that_is_not_there(run):
    with pytest.raises(FileNotFoundError):
        run("/no/such/program")


def test_the_load_of_others_leaves_the_server_and_its_children_out():
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN.format(1.2)!r}])"
    with subprocess.Popen(["sleep", "1.3"]) as idle, subprocess.Popen([sys.executable, "-c", script]) as busy:
        all_others, others = ForeignLoad(idle.pid), ForeignLoad(busy.pid)
        time.sleep(1)
        burnt, foreign = all_others.cores(0), others.cores(0)
    assert burnt is not None and foreign is not None
    assert burnt - foreign > 0.1


def test_the_load_of_others_is_unknown_without_a_server():
    assert ForeignLoad(None).cores(0) is None
