"""The kernel compiled by numba, an optional dependency that is imported when first used. Layer: sim, adapter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
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
    entry, options = _entry(), {"error_model": "numpy", "nogil": True}
    for module in SOURCES:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                register_jitable(function)
    compiled: Callable[[Memory], None]
    try:
        compiled = njit(cache=True, **options)(entry)
    except RuntimeError:  # neither the package's nor the user's cache directory can be written
        compiled = njit(**options)(entry)
    return compiled


def _entry() -> Callable[[Memory], None]:
    """`kernel.run` under a name of this very code, which numba names its cache files after.

    Other machine code than that of the memory's layout writes beside it. numba asks only whether this file changed,
    and processes that share an index of several builds can swap their entries.
    """

    def enter(m: Memory) -> None:
        kernel.run(m)

    enter.__qualname__ = f"run_{_digest()}"
    return enter


def _digest() -> str:
    """Of the code and the constants as loaded: their files may have changed since."""
    digest = hashlib.sha256()
    for module in SOURCES:
        for name, value in vars(module).items():
            if isinstance(value, FunctionType):
                code = value.__code__
                digest.update(repr((name, code.co_code, code.co_consts, code.co_names)).encode())
            elif isinstance(value, int):
                digest.update(repr((name, value)).encode())
    return digest.hexdigest()[:16]
