"""Prometheus rules, Grafana dashboard and runbook links for one server. Layer: deploy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from tooling.deploy.output import yaml_text

_WINDOW: Final = "2m"
_MODEL: Final = "model, version"
_SERVER: Final = f"{_MODEL}, instance"
_RUNBOOK: Final = "runbook.md"
_JOB: Final = "triton"
_LONGEST_UID: Final = 40  # that Grafana takes


@dataclass(frozen=True, slots=True)
class MonitoringOptions:
    """What to watch for. `target` is HOST:PORT of the metrics, `job` the name that they are scraped under, `owner`
    who is called.

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
    job: str = _JOB


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: its Grafana unit, what it tells, and for each line a legend and an expression."""

    title: str
    unit: str
    tells: str
    lines: tuple[tuple[str, str], ...]


class _Queries:
    """PromQL over what Prometheus scrapes under one job."""

    def __init__(self, job: str) -> None:
        self._job = job

    def series(self, metric: str, *matchers: str) -> str:
        inner = ",".join((f'job="{self._job}"', *matchers))
        return f"{metric}{{{inner}}}"

    def rate(self, metric: str, by: str = _MODEL) -> str:
        return f"sum by ({by}) (rate({self.series(metric)}[{_WINDOW}]))"

    def each(self, metric: str) -> str:
        """The mean of a summed duration over the requests that ended."""
        return f"{self.rate(metric)} / ({self.rate('nv_inference_request_success')} > 0)"

    def failing(self, window: str) -> str:
        """The share of requests that failed; a client that cancels is no failure."""
        failures = self.series("nv_inference_request_failure", 'reason!="CANCELED"')
        failed = f"sum(rate({failures}[{window}]))"
        return f"{failed} / ({failed} + sum(rate({self.series('nv_inference_request_success')}[{window}])) > 0)"

    def quantile(self, quantile: str) -> str:
        """Of the last minute; NaN while no request ended in it."""
        series = self.series("nv_inference_request_summary_us", f'quantile="{quantile}"')
        return f"max by ({_MODEL}) ({series})"

    def waiting(self, by: str = _MODEL) -> str:
        return f"sum by ({by}) ({self.series('nv_inference_pending_request_count')})"

    def share_used(self, kind: str) -> str:
        """Of the memory of each GPU, or of the host."""
        return f"{self.series(f'nv_{kind}_memory_used_bytes')} / {self.series(f'nv_{kind}_memory_total_bytes')}"


def panels(options: MonitoringOptions, *, cache: bool) -> list[Panel]:
    """What the dashboard shows, in the order in which one asks."""
    return [*_for_clients(options), *_in_the_server(options), *_on_the_host(options, cache=cache)]


def _for_clients(options: MonitoringOptions) -> Iterator[Panel]:
    """What clients see, and how much of what was promised them is left."""
    p99_ms, may_fail = options.p99_us / 1_000, 1 - options.availability
    q = _Queries(options.job)
    idle_left_out = f"({q.quantile('0.99')} >= 0)"
    yield Panel("Requests", "reqps", "Answered requests.", (("{{model}}", q.rate("nv_inference_request_success")),))
    yield Panel(
        "Latency",
        "µs",
        f"From the server's own summaries. The Slo is p99 of at most {p99_ms:g} ms.",
        tuple((f"p{100 * float(share):g} {{{{model}}}}", q.quantile(share)) for share in ("0.5", "0.95", "0.99")),
    )
    yield Panel(
        "Slo attainment",
        "percentunit",
        f"Share of the last day in which p99 was at most {p99_ms:g} ms; minutes without a request do not count.",
        (("{{model}}", f"avg_over_time(({idle_left_out} <= bool {options.p99_us})[1d:{options.interval_s}s])"),),
    )
    yield Panel(
        "Error budget left",
        "percentunit",
        f"Of the {may_fail:.2%} of requests that may fail, over the last day; below 0 it is spent.",
        (("budget", f"1 - ({q.failing('1d')}) / {may_fail:.6g}"),),
    )


def _in_the_server(options: MonitoringOptions) -> Iterator[Panel]:
    """What requests wait for, and whether the setting still does what it was chosen for."""
    q = _Queries(options.job)
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    yield Panel(
        "Where the time goes",
        "µs",
        f"Mean of a request. Queue time is as tuned up to {options.queue_us / 1_000:g} ms.",
        (
            *((f"{part} {{{{model}}}}", q.each(f"nv_inference_{part}_duration_us")) for part in parts),
            ("queue as tuned", f"vector({options.queue_us})"),
        ),
    )
    yield Panel(
        "Batch size achieved",
        "short",
        "Inferences an execution. At 1 under load, requests differ in shape or no instance is ever busy.",
        (
            ("{{model}}", f"{q.rate('nv_inference_count')} / ({q.rate('nv_inference_exec_count')} > 0)"),
            *([("as tuned", f"vector({options.batch:.3g})")] if options.batch else []),
        ),
    )
    yield Panel("Waiting requests", "short", "In the queue now.", (("{{model}}", q.waiting()),))
    yield Panel(
        "Failures by reason",
        "reqps",
        "Refusals of a full queue are counted by no metric of Triton's.",
        (
            (
                "{{model}} {{reason}}",
                f"sum by (model, reason) (rate({q.series('nv_inference_request_failure')}[{_WINDOW}]))",
            ),
        ),
    )


def _on_the_host(options: MonitoringOptions, *, cache: bool) -> Iterator[Panel]:
    q = _Queries(options.job)
    yield Panel(
        "CPU and memory",
        "percentunit",
        "Of the whole host.",
        (("cpu {{instance}}", q.series("nv_cpu_utilization")), ("memory {{instance}}", q.share_used("cpu"))),
    )
    if options.gpu:
        busy = ("busy {{gpu_uuid}}", q.series("nv_gpu_utilization"))
        yield Panel("GPU", "percentunit", "Of each GPU.", (busy, ("memory {{gpu_uuid}}", q.share_used("gpu"))))
    if cache:
        hits, misses = (q.rate(f"nv_cache_num_{what}_per_model") for what in ("hits", "misses"))
        share = ("{{model}}", f"{hits} / ({hits} + {misses} > 0)")
        yield Panel("Cache hits", "percentunit", "Share of requests answered from the cache.", (share,))


def alerts(options: MonitoringOptions) -> list[dict[str, Any]]:
    """Alerting rules; each names its owner and the section of the runbook."""
    burn = 14.4 * (1 - options.availability)  # spends a thirty-day budget in two days
    q = _Queries(options.job)
    rules = [
        ("TritonDown", f"(sum({q.series('up')}) or vector(0)) == 0", "1m", "critical", "no Triton answers a scrape"),
        (
            "TritonErrorBudgetBurns",
            f"({q.failing('5m')}) > {burn:.6g} and ({q.failing('1h')}) > {burn:.6g}",
            "2m",
            "critical",
            "{{ $value | humanizePercentage }} of requests fail",
        ),
        (
            "TritonSlow",
            f"{q.quantile('0.99')} > {options.p99_us}",
            "5m",
            "warning",
            f"p99 of {{{{ $labels.model }}}} is {{{{ $value }}}} µs, above {options.p99_us}",
        ),
        (
            "TritonQueues",
            f"{q.each('nv_inference_queue_duration_us')} > {options.queue_us}",
            "5m",
            "warning",
            f"requests of {{{{ $labels.model }}}} wait {{{{ $value }}}} µs, above {options.queue_us}",
        ),
        (
            "TritonStalled",
            f"{q.waiting(_SERVER)} > 0 and {q.rate('nv_inference_request_success', _SERVER)} == 0",
            "1m",
            "critical",
            "{{ $labels.model }} of {{ $labels.instance }} has waiting requests and answers none",
        ),
    ]
    if options.gpu:
        full = f"{q.share_used('gpu')} > 0.95"
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
        "scrape_configs": [{"job_name": options.job, "static_configs": [{"targets": [options.target]}]}],
    }
    source = {"name": "Prometheus", "type": "prometheus", "uid": "prometheus", "url": "http://prometheus:9090"}
    provider = {"name": "tritune", "type": "file", "options": {"path": "/etc/grafana/dashboards"}}
    sources, providers = {"apiVersion": 1, "datasources": [source]}, {"apiVersion": 1, "providers": [provider]}
    return {
        "prometheus.yml": yaml_text("deploy", [scrape]),
        "alerts.yml": yaml_text("deploy", [{"groups": [{"name": "triton", "rules": alerts(options)}]}]),
        "grafana/provisioning/datasources/prometheus.yml": yaml_text("deploy", [sources]),
        "grafana/provisioning/dashboards/tritune.yml": yaml_text("deploy", [providers]),
        "grafana/dashboards/triton.json": dashboard(options, cache=cache),
    }


def dashboard(options: MonitoringOptions, *, cache: bool) -> str:
    """The JSON of Grafana's dashboard."""
    return json.dumps(_dashboard(options.job, panels(options, cache=cache)), indent=2, ensure_ascii=False) + "\n"


def _dashboard(job: str, shown: Sequence[Panel]) -> dict[str, Any]:
    """Two panels in a row, each half of Grafana's 24 columns wide."""
    return {
        "uid": _uid(job),
        "title": "Triton" if job == _JOB else f"Triton: {job}",
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


def _uid(job: str) -> str:
    """What tells the dashboards of a Grafana apart."""
    uid = f"tritune-{job}"
    return uid if len(uid) <= _LONGEST_UID else f"tritune-{sha256(job.encode()).hexdigest()[:16]}"
