"""What the commands cost: wall time and peak memory of whole processes, median with range.

    python benchmarks/costs.py [--runs N]

Peak memory is the kernel's own figure of the finished process (ru_maxrss of wait4).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRITUNE = str(Path(sys.executable).parent / "tritune")


def run(*argv: str) -> tuple[float, float]:
    """Seconds and MiB of one process."""
    started = time.perf_counter()
    process = subprocess.Popen([TRITUNE, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"tritune {' '.join(argv)} ended with {process.returncode}")
    return seconds, usage.ru_maxrss / 1024


def report(name: str, samples: list[tuple[float, float]]) -> None:
    for unit, index, digits in (("s", 0, 2), ("MiB", 1, 0)):
        values = [sample[index] for sample in samples]
        print(
            f"{name:<28} {statistics.median(values):>8.{digits}f} {unit:<4}"
            f" [{min(values):.{digits}f}–{max(values):.{digits}f}]  n={len(values)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    from export.source import bundled_minilm

    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        model = str(repository / "minilm")
        export = ["export", str(bundled_minilm()), "--repository", str(repository), "--name", "minilm", "--force"]
        run(*export)  # a warm file cache, as on a developer's machine
        report("export MiniLM", [run(*export) for _ in range(max(1, runs // 2))])
        report("--help", [run("--help") for _ in range(runs)])
        report("gen-config MiniLM", [run("gen-config", model, "--force") for _ in range(runs)])


if __name__ == "__main__":
    main()
