"""What the server says of a run: differences of Triton's statistics, and its metrics. Layer: bottom of perf, pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PARTS = ("queue", "compute_input", "compute_infer", "compute_output")
_FAILURE = re.compile(r"^nv_inference_request_failure\{(?P<labels>[^}]*)\} (?P<count>\S+)", re.MULTILINE)
_ENERGY = re.compile(r"^nv_energy_consumption\{[^}]*\} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def since(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What a model did between two answers of its statistics endpoint, under Measurement's names.

    Times are mean microseconds: `server_us` of an answered request (Δ success ns / Δ success count, queue included),
    `queue_us` and the parts of the compute time of a counted one. `batch_histogram` maps rows to executions; every
    client of the server is in these figures. Requests that a queue refused are only in the metrics.
    """
    success, failed = (_moved(before, after, part) for part in ("success", "fail"))
    times = {f"{part}_us": _mean_us(_moved(before, after, part)) for part in PARTS}
    sizes = {side: _executions(stats) for side, stats in (("before", before), ("after", after))}
    histogram = {rows: count - sizes["before"].get(rows, 0) for rows, count in sizes["after"].items()}
    return {
        "server_us": _mean_us(success),
        **times,
        "answered": success[0],
        "failed": failed[0],
        "inference_count": _count(after, "inference_count") - _count(before, "inference_count"),
        "execution_count": _count(after, "execution_count") - _count(before, "execution_count"),
        "batch_histogram": {rows: count for rows, count in sorted(histogram.items()) if count > 0},
    }


def failures_since(before: str, after: str, model: str) -> dict[str, int]:
    """Failed and, of them, rejected requests of a model between two texts of the metrics endpoint."""
    then, now = failure_counts(before, model), failure_counts(after, model)
    moved = {reason: count - then.get(reason, 0) for reason, count in now.items()}
    return {"failed": sum(moved.values()), "rejected": moved.get("REJECTED", 0)} if moved else {}


def energy_j(before: str, after: str) -> float | None:
    """The joules that all GPUs of a server took between two texts of the metrics endpoint; None where none tells."""
    then, now = ([float(value) for value in _ENERGY.findall(text)] for text in (before, after))
    return sum(now) - sum(then) if now and len(now) == len(then) else None


def failure_counts(metrics: str, model: str) -> dict[str, int]:
    """Failed requests of a model by reason (REJECTED, CANCELED, BACKEND, OTHER), over all its versions, from the text
    of the metrics endpoint; their sum is the number of all failures."""
    counts: dict[str, int] = {}
    for line in _FAILURE.finditer(metrics):
        labels = dict(_LABEL.findall(line["labels"]))
        if labels.get("model") == model:
            reason = labels.get("reason", "OTHER")
            counts[reason] = counts.get(reason, 0) + int(float(line["count"]))
    return counts


def _count(stats: Mapping[str, Any], name: str) -> int:
    return int(stats.get(name, 0))


def _moved(before: Mapping[str, Any], after: Mapping[str, Any], part: str) -> tuple[int, int]:
    """By how much a counter and its nanoseconds grew."""
    then, now = (stats.get("inference_stats", {}).get(part, {}) for stats in (before, after))
    return _count(now, "count") - _count(then, "count"), _count(now, "ns") - _count(then, "ns")


def _mean_us(moved: tuple[int, int]) -> float | None:
    count, spent_ns = moved
    return spent_ns / count / 1e3 if count > 0 else None


def _executions(stats: Mapping[str, Any]) -> dict[int, int]:
    sizes = stats.get("batch_stats", ())
    return {int(size["batch_size"]): int(size["compute_infer"]["count"]) for size in sizes}
