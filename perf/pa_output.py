"""Read what perf_analyzer writes: its CSV row and the figures that only its stdout has. Layer: above measurement."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from math import isclose
from pathlib import Path

from perf.measurement import Load

_FIRST_COLUMN = {"concurrency": "Concurrency", "request_rate": "Request Rate"}

_COLUMNS = {
    "throughput_rps": "Inferences/Second",
    "avg_us": "Avg latency",
    "p50_us": "p50 latency",
    "p90_us": "p90 latency",
    "p95_us": "p95 latency",
    "p99_us": "p99 latency",
    "queue_us": "Server Queue",
    "compute_input_us": "Server Compute Input",
    "compute_infer_us": "Server Compute Infer",
    "compute_output_us": "Server Compute Output",
}
_IMPOSSIBLE = 2.0**62
"""A difference of unsigned counters that went below zero in perf_analyzer comes out larger than this."""

_PASS = re.compile(r"^  Pass \[\d+\] throughput: (\S+) infer/sec\. (?:Avg|p\d+) latency: (\d+) usec", re.MULTILINE)


def read_row(path: Path, load: Load, *, exact: bool = True) -> dict[str, float] | None:
    """Figures of the point `load` in the CSV, under Measurement's names; None without such a row.

    Rows are sorted by throughput and columns come and go with the options, so both are looked up by their name.
    The CSV holds six digits of a rate; of custom intervals only a whole number, so there the only row is meant
    (`exact=False`).
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        return None
    first = _FIRST_COLUMN[load["mode"]]
    meant = [r for r in rows if not exact or isclose(_number(r.get(first)) or 0, load["value"], rel_tol=1e-5)]
    row = meant[0] if meant else None
    if row is None:
        return None
    values = {name: _number(row.get(column)) for name, column in _COLUMNS.items()}
    return {name: value for name, value in values.items() if value is not None}


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < _IMPOSSIBLE else None


@dataclass(frozen=True, slots=True)
class Report:
    """What stdout says of one point run with -v; counts are of the three pooled windows, None where it is silent."""

    requests: int | None
    inference_count: int | None
    execution_count: int | None
    send_rate_rps: float | None
    delayed_percent: float | None
    client_overhead_percent: float | None
    windows_rps: tuple[float, ...]
    windows_us: tuple[float, ...]
    responses_per_request: float | None = None


def read_stdout(text: str) -> Report:
    """The figures of the last point in `text`."""
    passes = _PASS.findall(text)
    return Report(
        requests=_last_int(r"^    Request count: (\d+)", text),
        inference_count=_last_int(r"Inference count: (\d+)", text),
        execution_count=_last_int(r"Execution count: (\d+)", text),
        send_rate_rps=_last(r"Avg send request rate: (\S+) infer/sec", text),
        delayed_percent=_last(r"(\d+\.\d+)% of the requests were delayed", text),
        client_overhead_percent=_last(r"Avg client overhead: (\d+\.?\d*)%", text),
        windows_rps=tuple(float(rps) for rps, _ in passes[-3:]),
        windows_us=tuple(float(us) for _, us in passes[-3:]),
        responses_per_request=_ratio(
            _last(r"^    Response Throughput: (\S+) infer/sec", text), _last(r"^    Throughput: (\S+) infer/sec", text)
        ),
    )


def _last(pattern: str, text: str) -> float | None:
    found = re.findall(pattern, text, re.MULTILINE)
    return _number(found[-1]) if found else None


def _last_int(pattern: str, text: str) -> int | None:
    value = _last(pattern, text)
    return None if value is None else int(value)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
