"""Prometheus rules, Grafana dashboard and runbook links for one server. Layer: deploy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_WINDOW: Final = "2m"
_MODEL: Final = "model, version"
_RUNBOOK: Final = "runbook.md"
_WAITING: Final = f"sum by ({_MODEL}) (nv_inference_pending_request_count)"


@dataclass(frozen=True, slots=True)
class MonitoringOptions:
    """What to watch for. `target` is HOST:PORT of the metrics, `owner` who is called.

    `p99_us` is the latency to keep and `queue_us` the mean queue time of a request that is still as tuned, both in
    microseconds; `availability` the share of requests that must not fail; `batch` the mean batch under the tuned
    config, None where that is not known.
    """

    target: str
    owner: str = "unowned"
    p99_us: int = 100_000
    queue_us: int = 10_000
    availability: float = 0.999
    gpu: bool = True
    interval_s: int = 15
    batch: float | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: its Grafana unit, what it tells, and for each line a legend and an expression."""

    title: str
    unit: str
    tells: str
    lines: tuple[tuple[str, str], ...]


def _rate(metric: str, window: str = _WINDOW) -> str:
    return f"sum by ({_MODEL}) (rate({metric}[{window}]))"


def _each(metric: str) -> str:
    """The mean of a summed duration over the requests that ended."""
    return f"{_rate(metric)} / ({_rate('nv_inference_request_success')} > 0)"


def _failing(window: str) -> str:
    """The share of requests that failed; a client that cancels is no failure."""
    failed = f'sum(rate(nv_inference_request_failure{{reason!="CANCELED"}}[{window}]))'
    return f"{failed} / ({failed} + sum(rate(nv_inference_request_success[{window}])) > 0)"


def _p(quantile: str) -> str:
    return f'max by ({_MODEL}) (nv_inference_request_summary_us{{quantile="{quantile}"}})'


def panels(options: MonitoringOptions, *, cache: bool) -> list[Panel]:
    """What the dashboard shows, in the order in which one asks."""
    return [*_for_clients(options), *_in_the_server(options), *_on_the_host(options, cache=cache)]


def _for_clients(options: MonitoringOptions) -> Iterator[Panel]:
    """What clients see, and how much of what was promised them is left."""
    p99_ms, may_fail = options.p99_us / 1_000, 1 - options.availability
    yield Panel("Requests", "reqps", "Answered requests.", (("{{model}}", _rate("nv_inference_request_success")),))
    yield Panel(
        "Latency",
        "µs",
        f"From the server's own summaries. The Slo is p99 of at most {p99_ms:g} ms.",
        tuple((f"p{100 * float(q):g} {{{{model}}}}", _p(q)) for q in ("0.5", "0.95", "0.99")),
    )
    yield Panel(
        "Slo attainment",
        "percentunit",
        f"Share of the last day in which p99 was at most {p99_ms:g} ms.",
        (("{{model}}", f"avg_over_time(({_p('0.99')} <= bool {options.p99_us})[1d:{options.interval_s}s])"),),
    )
    yield Panel(
        "Error budget left",
        "percentunit",
        f"Of the {may_fail:.2%} of requests that may fail, over the last day; below 0 it is spent.",
        (("budget", f"1 - ({_failing('1d')}) / {may_fail:.6g}"),),
    )


def _in_the_server(options: MonitoringOptions) -> Iterator[Panel]:
    """What requests wait for, and whether the setting still does what it was chosen for."""
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    yield Panel(
        "Where the time goes",
        "µs",
        f"Mean of a request. Queue time is as tuned up to {options.queue_us / 1_000:g} ms.",
        (
            *((f"{part} {{{{model}}}}", _each(f"nv_inference_{part}_duration_us")) for part in parts),
            ("queue as tuned", f"vector({options.queue_us})"),
        ),
    )
    yield Panel(
        "Batch size achieved",
        "short",
        "Inferences an execution. At 1 under load, requests differ in shape or no instance is ever busy.",
        (
            ("{{model}}", f"{_rate('nv_inference_count')} / ({_rate('nv_inference_exec_count')} > 0)"),
            *([("as tuned", f"vector({options.batch:.3g})")] if options.batch else []),
        ),
    )
    yield Panel("Waiting requests", "short", "In the queue now.", (("{{model}}", _WAITING),))
    yield Panel(
        "Failures by reason",
        "reqps",
        "Refusals of a full queue are counted by no metric of Triton's.",
        (("{{model}} {{reason}}", "sum by (model, reason) (rate(nv_inference_request_failure[2m]))"),),
    )


def _on_the_host(options: MonitoringOptions, *, cache: bool) -> Iterator[Panel]:
    memory = "nv_cpu_memory_used_bytes / nv_cpu_memory_total_bytes"
    yield Panel(
        "CPU and memory", "percentunit", "Of the whole host.", (("cpu", "nv_cpu_utilization"), ("memory", memory))
    )
    if options.gpu:
        memory = "nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes"
        busy = ("busy {{gpu_uuid}}", "nv_gpu_utilization")
        yield Panel("GPU", "percentunit", "Of each GPU.", (busy, ("memory {{gpu_uuid}}", memory)))
    if cache:
        hits, misses = (_rate(f"nv_cache_num_{what}_per_model") for what in ("hits", "misses"))
        share = ("{{model}}", f"{hits} / ({hits} + {misses} > 0)")
        yield Panel("Cache hits", "percentunit", "Share of requests answered from the cache.", (share,))


def alerts(options: MonitoringOptions) -> list[dict[str, Any]]:
    """Alerting rules; each names its owner and the section of the runbook."""
    burn = 14.4 * (1 - options.availability)  # spends a thirty-day budget in two days
    rules = [
        ("TritonDown", "up == 0", "1m", "critical", "Triton answers no scrape"),
        (
            "TritonErrorBudgetBurns",
            f"({_failing('5m')}) > {burn:.6g} and ({_failing('1h')}) > {burn:.6g}",
            "2m",
            "critical",
            "{{ $value | humanizePercentage }} of requests fail",
        ),
        (
            "TritonSlow",
            f"{_p('0.99')} > {options.p99_us}",
            "5m",
            "warning",
            f"p99 of {{{{ $labels.model }}}} is {{{{ $value }}}} µs, above {options.p99_us}",
        ),
        (
            "TritonQueues",
            f"{_each('nv_inference_queue_duration_us')} > {options.queue_us}",
            "5m",
            "warning",
            f"requests of {{{{ $labels.model }}}} wait {{{{ $value }}}} µs, above {options.queue_us}",
        ),
        (
            "TritonStalled",
            f"{_WAITING} > 0 and {_rate('nv_inference_request_success')} == 0",
            "1m",
            "critical",
            "{{ $labels.model }} has waiting requests and answers none",
        ),
    ]
    if options.gpu:
        full = "nv_gpu_memory_used_bytes / nv_gpu_memory_total_bytes > 0.95"
        rules.append(("TritonGpuMemoryFull", full, "5m", "warning", "memory of {{ $labels.gpu_uuid }} is nearly full"))
    return [
        {
            "alert": name,
            "expr": expr,
            "for": lasting,
            "labels": {"severity": severity, "owner": options.owner.replace("{{", '{{ "{{" }}')},
            "annotations": {"summary": summary, "runbook": f"{_RUNBOOK}#{name.lower()}"},
        }
        for name, expr, lasting, severity, summary in rules
    ]


def render_monitoring(options: MonitoringOptions, *, cache: bool) -> Mapping[str, str]:
    """The files by their path below the deployment's `monitoring/`."""
    scrape: dict[str, Any] = {
        "global": {"scrape_interval": f"{options.interval_s}s", "evaluation_interval": f"{options.interval_s}s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "triton", "static_configs": [{"targets": [options.target]}]}],
    }
    source = {"name": "Prometheus", "type": "prometheus", "uid": "prometheus", "url": "http://prometheus:9090"}
    provider = {"name": "tritune", "type": "file", "options": {"path": "/etc/grafana/dashboards"}}
    return {
        "prometheus.yml": _yaml(scrape),
        "alerts.yml": _yaml({"groups": [{"name": "triton", "rules": alerts(options)}]}),
        "grafana/provisioning/datasources/prometheus.yml": _yaml({"apiVersion": 1, "datasources": [source]}),
        "grafana/provisioning/dashboards/tritune.yml": _yaml({"apiVersion": 1, "providers": [provider]}),
        "grafana/dashboards/triton.json": dashboard(options, cache=cache),
    }


def _yaml(content: object) -> str:
    import yaml

    return "# Written by `tritune deploy`.\n" + yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)


def dashboard(options: MonitoringOptions, *, cache: bool) -> str:
    """The JSON of Grafana's dashboard."""
    return json.dumps(_dashboard(panels(options, cache=cache)), indent=2, ensure_ascii=False) + "\n"


def _dashboard(shown: Sequence[Panel]) -> dict[str, Any]:
    """Two panels in a row, each half of Grafana's 24 columns wide."""
    return {
        "uid": "tritune-triton",
        "title": "Triton",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": [
            {
                "id": number + 1,
                "type": "timeseries",
                "title": panel.title,
                "description": panel.tells,
                "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
                "datasource": {"type": "prometheus", "uid": "prometheus"},
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + index), "legendFormat": legend, "expr": expr}
                    for index, (legend, expr) in enumerate(panel.lines)
                ],
            }
            for number, panel in enumerate(shown)
        ],
    }
