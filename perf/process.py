"""Run one program to its end or its deadline, and tell how busy others kept the cores. Layer: bottom of perf."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PATIENCE_S = 5.0
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Run:
    """How a program ended: exit code (negative: the signal), seconds on the clock and on the CPU, past its deadline."""

    rc: int
    wall_s: float
    cpu_s: float
    timed_out: bool


def run_until(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: Path, stderr: Path, deadline_s: float
) -> Run:
    """Run `argv` in a process group of its own with its output in files, for at most `deadline_s` seconds.

    At the deadline the group gets SIGINT, five seconds later SIGKILL. Nothing of the group is left on any way out,
    KeyboardInterrupt and Terminated included. Raises OSError when the program cannot be started.
    """
    started, cpu_before = time.monotonic(), _children_cpu_s()
    with stdout.open("wb") as out, stderr.open("wb") as err:
        process = subprocess.Popen(
            argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        timed_out = False
        try:
            try:
                process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                timed_out = True
                os.killpg(process.pid, signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Run(process.returncode, time.monotonic() - started, _children_cpu_s() - cpu_before, timed_out)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class ForeignLoad:
    """Cores used by other programs, on the CPUs this process may use, from now until `cores` is asked."""

    def __init__(self, server_pid: int | None) -> None:
        self._server_pid = server_pid
        self._started = time.monotonic()
        self._busy_s, self._server_s = _busy_s(), self._server_cpu_s()

    def cores(self, own_cpu_s: float) -> float | None:
        """Mean cores that neither the server's processes nor `own_cpu_s` account for; None when it cannot be told."""
        server_s = self._server_cpu_s()
        if server_s is None or self._server_s is None:
            return None
        foreign_s = _busy_s() - self._busy_s - (server_s - self._server_s) - own_cpu_s
        return round(max(foreign_s, 0.0) / (time.monotonic() - self._started), 3)

    def _server_cpu_s(self) -> float | None:
        """CPU seconds of the server and all its descendants, ended ones included; None without a server."""
        if self._server_pid is None:
            return None
        cpu_s: dict[int, float] = {}
        children: dict[int, list[int]] = defaultdict(list)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                pid, fields = int(stat.parent.name), stat.read_text(errors="replace").rpartition(")")[2].split()
                children[int(fields[1])].append(pid)
                cpu_s[pid] = sum(map(int, fields[11:15])) / _TICKS_S  # utime stime cutime cstime, proc(5)
        pids = [self._server_pid] if self._server_pid in cpu_s else []
        for pid in pids:
            pids += children[pid]
        return sum(cpu_s[pid] for pid in pids) if pids else None


def _busy_s() -> float:
    """Seconds that the usable CPUs were busy, or taken away by the hypervisor, since the system started."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in usable:
            user, nice, system, _, _, irq, softirq, steal = map(int, ticks[:8])
            busy += user + nice + system + irq + softirq + steal
    return busy / _TICKS_S
