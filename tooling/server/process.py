"""The supervised tritonserver as its parent sees it: start, wait, stop, what is left of a run. Layer: server."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tooling.errors import ExternalError
from tooling.server import supervisor
from tooling.server.supervisor import children_of, remove_environments, remove_shared_memory, spared

RUN_ID_VARIABLE = "TRITUNE_RUN_ID"
_GRACE_S = 5.0
_KILL_TIMEOUT_S = 10.0


class SupervisedServer:
    """One tritonserver under its supervisor process (see supervisor.py for what is promised)."""

    def __init__(self, run_id: str, command: Sequence[str], env: dict[str, str], directory: Path, log: Path) -> None:
        self._run_id, self._started_s = run_id, time.time()
        program = [sys.executable, "-I", "-S", supervisor.__file__, str(directory)]
        self._supervisor = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/", start_new_session=True, bufsize=0
        )
        order = {
            "run_id": run_id,
            "command": list(command),
            "env": {**env, RUN_ID_VARIABLE: run_id},
            "log": str(log),
        }
        assert self._supervisor.stdin is not None and self._supervisor.stdout is not None
        self._control, self._reports = self._supervisor.stdin, self._supervisor.stdout
        self.pid = 0
        try:
            self._control.write(json.dumps(order).encode() + b"\n")
            self.pid = int(self._reports.readline())
        except BaseException as error:
            self.stop(graceful=False)
            self.close()
            if isinstance(error, OSError | ValueError):
                raise ExternalError("the supervisor of tritonserver did not start", where=" ".join(program)) from None
            raise
        threading.Thread(target=self._watch, name=f"watch {run_id}", daemon=True).start()

    def _watch(self) -> None:
        """End what a killed supervisor left: its orphans hold the connections of calls that would wait for ever."""
        self._supervisor.wait()
        self._kill_leftovers(time.monotonic())

    def alive(self) -> bool:
        return self._supervisor.poll() is None

    def wait(self, timeout_s: float | None = None) -> bool:
        """True when the server and everything of it has ended within the time (None: wait for ever)."""
        try:
            self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def outcome(self) -> str:
        """How the server ended, for a sentence: `ended with exit code 1`, `was killed by SIGKILL`."""
        report = b"" if self._reports.closed else self._reports.readline().strip()
        if not report:
            return "was ended because its supervisor process was killed"
        status = int(report)
        if status >= 0:
            return f"ended with exit code {status}"
        return f"was killed by {signal.Signals(-status).name}"

    def stubs(self, model_dir: Path) -> int:
        """How many Python backend processes serve from a model directory: one for each instance and version."""
        prefix = os.fsencode(model_dir) + b"/"
        lines = map(_command_line, children_of(self.pid))
        return sum(len(argv) > 1 and argv[1].startswith(prefix) for argv in lines)

    def scatter(self) -> None:
        """Move every thread of the server to a CPU drawn at random out of those it may use, which stay the same.

        On a busy host a thread may keep its CPU, and so its neighbours, for minutes: of two equal models one was up to
        17 % faster that long. Moved before each run, that becomes scatter between runs.
        """
        for pid in (self.pid, *children_of(self.pid)):
            for task in _tasks(pid):
                with suppress(OSError):  # it has ended, or is not ours to move
                    allowed = os.sched_getaffinity(task)
                    os.sched_setaffinity(task, {random.choice(sorted(allowed))})
                    os.sched_setaffinity(task, allowed)

    def stop(self, *, graceful: bool = True) -> None:
        """End everything of this run; SIGTERM and a grace period come first unless not `graceful`.

        Raises ExternalError when something survives SIGKILL.
        """
        try:
            if graceful and self.alive():
                with suppress(BrokenPipeError):
                    self._control.write(b"t")
                self.wait(_GRACE_S)
        finally:
            self._control.close()
            if not self.wait(_KILL_TIMEOUT_S):
                self._supervisor.kill()  # it hangs: tritonserver dies with it
                self._supervisor.wait()
            self._end_leftovers()

    def close(self) -> None:
        """Let go of the pipes; `outcome` has nothing to read after that."""
        self._control.close()
        self._reports.close()

    def _end_leftovers(self) -> None:
        """What the supervisor would have done, in case it was killed itself: its orphans carry the run's id."""
        since = time.monotonic()
        while left := self._kill_leftovers(since):
            if time.monotonic() > since + _KILL_TIMEOUT_S:
                raise ExternalError("processes of the server cannot be ended", got=left, expected="none after SIGKILL")
            time.sleep(0.02)
        remove_shared_memory(self._run_id)
        remove_environments(self._started_s)

    def _kill_leftovers(self, since: float) -> list[int]:
        left = list(_processes_of(self._run_id))
        for pid in left:
            if not spared(pid, since):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return left


def _tasks(pid: int) -> list[int]:
    try:
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _processes_of(run_id: str) -> Iterator[int]:
    """Process ids whose environment names the run."""
    mark = f"{RUN_ID_VARIABLE}={run_id}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)
