"""What a measurement holds for: this machine, and the very model file. Layer: bottom of perf."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
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


def conditions(perf_analyzer: str, server: Mapping[str, Any]) -> dict[str, Any]:
    """What, beside the model and the question, must be equal for measurements to be comparable."""
    from tooling.config.proto import pb

    schema = hashlib.sha256(pb().DESCRIPTOR.serialized_pb).hexdigest()[:12]
    return {
        "tool": {
            "tritune": version("tritune"),
            "perf_analyzer": perf_analyzer,
            "config_schema": schema,
        },
        "server": dict(server),
        "host": host_facts(),
    }


def session() -> dict[str, Any]:
    """Who measures: the command line, the place and time, and the variables that change what programs do."""
    shown = ("TRITUNE_", "CUDA_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_", "LD_PRELOAD", "XDG_")
    return {
        "argv": list(sys.argv),
        "directory": str(Path.cwd()),
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load": list(os.getloadavg()),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(shown)},
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
