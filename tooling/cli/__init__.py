"""The command line: thin Typer commands over the libraries. Layer: top.

Imports nothing of its own at first, so that signals are handled before the libraries load.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool in this process and return its exit code (see the table in docs/cli.md)."""
    from tooling.cli.app import main as run

    return run(argv)


def entry() -> NoReturn:
    """Console script. Ctrl-C and SIGTERM unwind the stack, so that servers and files are cleaned up.

    While the libraries load there is nothing to clean up, and when all is done nothing more: the process just ends.
    """
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so under nohup and the like
    _handle(_leave, interruptible)
    from tooling.cli.app import main as run
    from tooling.errors import Terminated

    try:
        _handle(_unwind, interruptible)
        code = run()
        _handle(_leave, interruptible)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except Terminated:
        code = 128 + signal.SIGTERM
    sys.exit(code)


def _handle(handler: Callable[[int, FrameType | None], None], interruptible: bool) -> None:
    signal.signal(signal.SIGTERM, handler)
    if interruptible:
        signal.signal(signal.SIGINT, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _unwind(number: int, frame: FrameType | None) -> NoReturn:
    from tooling.errors import Terminated

    raise KeyboardInterrupt if number == signal.SIGINT else Terminated
