"""The kernel compiled by numba, an optional dependency that is imported when first used. Layer: sim, adapter."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType

from perf.sim import batcher, kernel, lines, memory
from perf.sim.memory import Memory

SOURCES = (memory, lines, batcher, kernel)


@cache
def compiled_run() -> Callable[[Memory], None] | None:
    """`kernel.run` as machine code, kept on disk between processes; None where numba is not installed."""
    try:
        from numba import njit
        from numba.extending import register_jitable
    except ImportError:
        return None
    for module in SOURCES:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                register_jitable(function)
    entry, options = _entry(_digest()), {"error_model": "numpy", "nogil": True}
    compiled: Callable[[Memory], None]
    try:
        compiled = njit(cache=True, **options)(entry)
    except RuntimeError:  # neither the package's nor the user's cache directory can be written
        compiled = njit(**options)(entry)
    return compiled


def _digest() -> int:
    return zlib.crc32(b"".join(Path(str(module.__file__)).read_bytes() for module in SOURCES))


def _entry(digest: int) -> Callable[[Memory], None]:
    """numba's cache looks at the file of the compiled function only; `digest` in its key adds the kernel's files."""

    def enter(m: Memory) -> None:
        if digest >= 0:
            kernel.run(m)

    return enter
