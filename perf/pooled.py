"""Percentiles over several runs of one setting, of all their requests together. Layer: above profile_export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perf.measurement import Measurement

REQUESTS_FILE = "requests.csv"
"""Where each run keeps the times of its requests, beside perf_analyzer's own files."""


def pooled_us(points: Sequence[Measurement]) -> dict[str, float]:
    """`p50_us` to `p99_us` of the requests of all these runs, in microseconds since each left.

    The median of the p99 of short runs lies below the p99 of what users get: a pause hits few of the runs, but there
    many of the requests. Empty where not every run has kept its times.
    """
    import numpy as np

    from perf.profile_export import percentiles_us, read_requests

    files = [Path(point.raw_dir) / REQUESTS_FILE for point in points]
    if not files or not all(point.raw_dir and file.is_file() for point, file in zip(points, files, strict=True)):
        return {}
    found = percentiles_us(np.concatenate([read_requests(file).latency_ns for file in files]))
    return {name: value for name, value in found.items() if name != "avg_us"}
