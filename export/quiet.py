"""Keeps what third-party libraries print away from stdout and stderr. Layer: export, bottom."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from tooling.console import Console


@contextmanager
def quiet(console: Console) -> Iterator[None]:
    """Collect what the block prints and warns, shown afterwards as detail (`-v`); nothing of ours may print inside."""
    heard = io.StringIO()
    warned: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as warned, redirect_stdout(heard), redirect_stderr(heard):
            warnings.simplefilter("default")
            yield
    finally:
        for line in filter(str.strip, heard.getvalue().splitlines()):
            console.detail(line)
        for warning in warned:
            console.detail(f"{warning.category.__name__}: {warning.message}")
