"""`python -m tooling.cli.step …`: a command as a step of a build, which ends when the build does. Layer: cli."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Have SIGTERM sent when the thread that started this process is gone, even by SIGKILL (prctl(2), Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    _die_with_parent()
    from tooling.cli import entry

    entry()
