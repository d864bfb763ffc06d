"""Drive perf_analyzer for one point and report it as a Measurement. Layer: above discovery and measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from perf.measurement import Measurement
from perf.workload import Workload

if TYPE_CHECKING:
    from tooling.runtime import Runtime


@dataclass(frozen=True, slots=True)
class PerfAnalyzer:
    """A probed perf_analyzer: command line, additions to the environment, version, where it comes from."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    version: str
    source: str

    def measure(
        self,
        model: str,
        url: str,
        workload: Workload,
        input_file: Path,
        *,
        raw_dir: Path,
        window_ms: int = 300,
        deadline_s: float | None = None,
        protocol: Literal["grpc", "http"] = "grpc",
        server_pid: int | None = None,
    ) -> Measurement:
        """Measure one point: three windows of 1.2 × `window_ms` pooled, in one perf_analyzer process."""
        raise NotImplementedError


def find_perf_analyzer(runtime: Runtime | None = None) -> PerfAnalyzer:
    """The first perf_analyzer that runs here; raises MissingError with all reasons and the fix."""
    raise NotImplementedError
