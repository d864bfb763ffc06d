"""Owns one tritonserver and leaves nothing of it behind, whoever dies first. Layer: server.

Runs as a program of its own (`python -I -S supervisor.py DIRECTORY`), so it imports the standard library only.

stdin   one JSON line `{"run_id", "command", "env", "log"}`, then: the byte `t` asks tritonserver to stop (SIGTERM);
        end of file (closed by the parent, or the parent is dead) ends everything at once.
stdout  the line PID when tritonserver is started, then the line STATUS (exit code, or minus the signal) when it and all
        its descendants, its shared memory, its directories in /tmp and DIRECTORY are gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SHARED_MEMORY, _TEMPORARY = Path("/dev/shm"), Path("/tmp")
_PYTHON_BACKEND = b"libtriton_python.so"
_TRACKER, _TRACKER_S = b"multiprocessing.resource_tracker", 2.0


def children_of(parent: int) -> list[int]:
    """Process ids of the children of a process, zombies included (Linux /proc)."""
    children: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                line = (entry / "stat").read_bytes()
                if int(line.rpartition(b")")[2].split()[1]) == parent:
                    children.append(int(entry.name))
    return children


def spared(pid: int, since: float) -> bool:
    """Whether a process is left to end by itself, up to 2 s after `since` (of the monotonic clock).

    Python's resource tracker removes what the processes of its family named in /dev/shm (vLLM's engine a semaphore)
    once they all are gone, and ends then; nobody else knows those names.
    """
    if time.monotonic() - since > _TRACKER_S:
        return False
    try:
        return _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def remove_shared_memory(run_id: str) -> None:
    """Remove the shared memory regions of a run: its stubs name theirs by the run's id."""
    for region in _SHARED_MEMORY.glob(f"{run_id}*"):
        with suppress(OSError):
            region.unlink()


def left_environments(since_s: float) -> list[Path]:
    """Directories of Triton's Python backend whose server is surely dead, made since a time of the system's clock.

    Each server makes one for packed environments, in /tmp whatever TMPDIR says, and removes it only when it ends in
    order. Its name tells nothing, so what a living server of this user may have made is not among them: it was started
    before the directory was last changed.
    """
    found = []
    for place in _TEMPORARY.glob("python_env_??????"):
        with suppress(OSError):
            seen = place.lstat()
            if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid() and seen.st_ctime >= since_s:
                found.append((place, seen.st_ctime))
    living = _backends_started_s() if found else []  # looked for after the directories: a maker runs before it makes
    return [place for place, changed_s in found if all(started_s > changed_s for started_s in living)]


def remove_environments(since_s: float) -> None:
    """Remove what `left_environments` finds."""
    for place in left_environments(since_s):
        shutil.rmtree(place, ignore_errors=True)


def _backends_started_s() -> list[float]:
    """When the processes of this user were started that run Triton's Python backend; 0 where that is not told."""
    found = []
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == os.geteuid() and _PYTHON_BACKEND in (entry / "maps").read_bytes():
                    ticks = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[19])
                    found.append(boot_s + ticks / os.sysconf("SC_CLK_TCK"))
            except PermissionError:  # it may do more than this process, as the first one of a container
                with suppress(OSError):
                    if (entry / "comm").read_bytes().strip() == b"tritonserver":
                        found.append(0.0)
            except OSError:  # it has ended
                continue
    return found


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit


def _read_order() -> dict[str, Any] | None:
    """The JSON line of the parent, or None when it died before it could write it."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1)
        if not chunk:
            return None
        line += chunk
    order: dict[str, Any] = json.loads(line)
    return order


def _start(order: dict[str, Any]) -> int:
    """Start tritonserver in a process group of its own; it dies with this process even if that is killed -9."""
    supervisor = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.execve(order["command"][0], order["command"], order["env"])
    except OSError as error:
        os.write(2, f"cannot start {error.filename}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _watch(child: int, wake: int) -> int | None:
    """Wait until tritonserver has ended (its status) or the parent has let go (None)."""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return os.waitstatus_to_exitcode(ended[1])
        if 0 in ready:
            if not os.read(0, 64):
                return None
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)


def _end_descendants(child: int) -> int | None:
    """Kill and reap until no descendant is left: as a subreaper this process inherits every orphan of the run."""
    status: int | None = None
    since = time.monotonic()
    while True:
        for pid in children_of(os.getpid()):
            if not spared(pid, since):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    status = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            return status
        time.sleep(0.01)


def _say(number: int) -> None:
    with suppress(OSError):  # the parent is gone
        os.write(1, f"{number}\n".encode())


def main(directory: str) -> None:
    """Run one tritonserver until it ends or the parent lets go."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    order = _read_order()
    status: int | None = None
    if order is not None:
        started_s = time.time()
        child = _start(order)
        try:
            signal.signal(signal.SIGTERM, _terminated)
            _say(child)
            status = _watch(child, wake)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            ended = _end_descendants(child)
            remove_shared_memory(order["run_id"])
            remove_environments(started_s)
            shutil.rmtree(directory, ignore_errors=True)
            _say(status if status is not None else (ended or 0))
    else:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
