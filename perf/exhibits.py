"""Charts and tables of the report on a guided search, from its findings and its study. Layer: above result, pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perf.charts import BarChart, Piece, XYChart, bar_chart, xy_chart
from perf.result import TuneResult
from perf.study import Record
from perf.trial import Trial


def exhibits(result: TuneResult, records: Sequence[Record]) -> dict[str, Any]:
    """Everything the template shows beside the comparison, by the name it has there; None or empty without data."""
    found = result.findings
    shown: dict[str, Any] = {"timeline": _timeline(records, result), "split": _split(result), "found": found}
    if not found:
        return shown
    return {
        **shown,
        "lines": _lines(result, found),
        "frontier": _frontier(found),
        "agreement": _agreement(found),
        "batches": [(name, _histogram(one)) for name, one in _shown(found)],
        "buckets": _buckets(found),
        "lengths": _lengths(found),
    }


def _lines(result: TuneResult, found: dict[str, Any]) -> XYChart | None:
    """Predicted latency over throughput as the load grows, with what was measured."""
    lines = {
        one["name"]: [
            (
                p["throughput_rps"],
                p["p99_us"] / 1e3,
                f"{p['load']}: {p['throughput_rps']:.1f}/s, p99 {p['p99_us'] / 1e3:.1f} ms",
            )
            for p in one["points"]
            if p["p99_us"]
        ]
        for one in found["lines"]
    }
    measured = [
        (t.figures.throughput_rps.middle, t.figures.p99_us.middle / 1e3, f"measured: {t.candidate.label}")
        for t in (result.default, result.chosen)
        if t and t.figures
    ]
    return xy_chart({**lines, "measured": measured}, joined=lines)


def _frontier(found: dict[str, Any]) -> XYChart | None:
    best = [_point(one) for one in found["frontier"]]
    others = [point for one in found["cloud"] if (point := _point(one)) not in best]
    return xy_chart({"a setting": others, "no other beats it": best})


def _point(one: dict[str, Any]) -> tuple[float, float, str]:
    rate, p99_ms = one["throughput_rps"], one["p99_us"] / 1e3
    return rate, p99_ms, f"{one['label']}: {rate:.1f}/s, p99 {p99_ms:.1f} ms"


def _agreement(found: dict[str, Any]) -> XYChart | None:
    """Measured over predicted throughput: on the diagonal they are equal."""
    points = [
        (
            c["predicted_rps"],
            c["measured_rps"],
            f"{c['label']}: predicted {c['predicted_rps']:.1f}, measured {c['measured_rps']:.1f}",
        )
        for c in found["checks"]
    ]
    return xy_chart({"a setting": points}, diagonal=True)


def _split(result: TuneResult) -> BarChart | None:
    """Where a request spends its time on the server, measured, and what is left for the way there and back."""
    rows: list[tuple[str, str, Sequence[Piece]]] = []
    for trial in (result.default, *result.trials):
        f = trial.figures
        if f is None or f.queue_us is None or f.compute_us is None:
            continue
        rest = max(0.0, f.avg_us.middle - f.queue_us - f.compute_us)
        parts = {"queue": f.queue_us, "compute": f.compute_us, "rest": rest}
        text = f"{' + '.join(f'{us / 1e3:.0f}' for us in parts.values())} ms"
        rows.append((_name(trial, result), text, list(_stacked(parts))))
    return bar_chart(rows)


def _name(trial: Trial, result: TuneResult) -> str:
    return f"{trial.candidate.label}{' · chosen' if trial == result.chosen else ''}"


def _stacked(parts: dict[str, float]) -> Iterator[Piece]:
    start = 0.0
    for kind, length in parts.items():
        yield kind, start, length, f"{kind} {length / 1e3:.1f} ms"
        start += length


def _shown(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings whose batches are shown: the baselines, and the best of the frontier."""
    for one in found["baselines"]:
        yield one["name"], one
    if found["frontier"]:
        yield "highest throughput", found["frontier"][-1]


def _histogram(one: dict[str, Any]) -> BarChart | None:
    total = sum(one["batch_histogram"].values()) or 1
    rows = [
        (
            f"{rows} row{'s' * (rows != '1')}",
            f"{count / total:.0%}",
            [("compute", 0.0, count / total, f"{count} executions")],
        )
        for rows, count in one["batch_histogram"].items()
    ]
    return bar_chart(rows)


def _lengths(found: dict[str, Any]) -> BarChart | None:
    """How many requests of each length, in at most ten ranges."""
    lengths = {int(length): count for length, count in found["lengths"].items()}
    low, high = min(lengths), max(lengths)
    step = max(1, -(-(high - low + 1) // 10))
    total = sum(lengths.values())
    rows = []
    for first in range(low, high + 1, step):
        last = min(first + step - 1, high)
        share = sum(count for length, count in lengths.items() if first <= length <= last) / total
        label = str(first) if first == last else f"{first}–{last}"
        rows.append((label, f"{share:.0%}", [("compute", 0.0, share, f"{share:.1%} of the requests")]))
    return bar_chart(rows)


def _buckets(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What each choice of lengths to pad to would give, with the share of tokens that is padding."""
    lengths = [(int(length), count) for length, count in found["lengths"].items()]
    real = sum(length * count for length, count in lengths)
    shown = []
    for one in found["buckets"]:
        edges = one["edges"]
        padded = sum(min((e for e in edges if e >= length), default=length) * count for length, count in lengths)
        shown.append({**one, "padding": 1 - real / padded if padded else 0.0})
    return shown


def _timeline(records: Sequence[Record], result: TuneResult) -> BarChart | None:
    """When what was measured, a lane for each setting."""
    names = {t.candidate.id: _name(t, result) for t in (result.default, *result.trials)}
    lanes: dict[str, list[Piece]] = {}
    now = 0.0
    for record in records:
        spent = record.get("spent_s")
        if spent is None:
            continue
        lane, kind = _lane(record, names)
        lanes.setdefault(lane, []).append((kind, now, spent, f"{lane}: {spent:.1f} s from {now:.1f} s"))
        now += spent
    return bar_chart([(lane, f"{sum(p[2] for p in pieces):.0f} s", pieces) for lane, pieces in lanes.items()])


def _lane(record: Record, names: dict[str, str]) -> tuple[str, str]:
    if record["record"] == "curve":
        return "service curve", "queue"
    if record["record"] == "window" or record.get("side") == "A":
        return "current config", "rest"
    return names.get(record.get("candidate", ""), "other"), "compute"
