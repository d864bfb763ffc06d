"""What a measurement holds for: this machine, and the very model file. Layer: bottom of perf."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

from tooling.repository import usable_cores


def host_facts() -> dict[str, Any]:
    """What of this machine a measurement depends on: processor, usable cores, kernel, C library, Python."""
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def sha256(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
