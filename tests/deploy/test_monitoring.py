"""Dashboard and alerts: read by the real promtool, answered by a real Prometheus that scrapes a server under load."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tooling.deploy.monitoring import MonitoringOptions, alerts, panels, render_monitoring
from tooling.server import EmbeddedServer, ServerFlags, ServerOptions

from .conftest import PYTHON

ROOT = Path(__file__).parents[2]
OPTIONS = MonitoringOptions("127.0.0.1:8002", owner="search-team", p99_us=50_000, queue_us=5_000)


def write(directory: Path, options: MonitoringOptions = OPTIONS, *, cache: bool = True) -> Path:
    for name, text in render_monitoring(options, cache=cache).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


@pytest.fixture(autouse=True)
def _prometheus_is_there() -> None:
    if shutil.which("promtool") is None or shutil.which("prometheus") is None:
        pytest.fail("these tests need Prometheus: install Debian's package `prometheus`", pytrace=False)


def promtool(*argv: object) -> str:
    done = subprocess.run(["promtool", *map(str, argv)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_config_and_rules(tmp_path: Path) -> None:
    said = promtool("check", "config", write(tmp_path) / "prometheus.yml")
    assert f"{len(alerts(OPTIONS))} rules found" in said


def test_an_owner_is_taken_as_it_is_written(tmp_path: Path) -> None:
    """Labels of alerts are templates."""
    owner = 'the "{{ models }}" team, on call'
    write(tmp_path, replace(OPTIONS, owner=owner))
    promtool("check", "rules", tmp_path / "alerts.yml")
    label = yaml.safe_load((tmp_path / "alerts.yml").read_text())["groups"][0]["rules"][0]["labels"]["owner"]
    assert label == 'the "{{ "{{" }} models }}" team, on call'


def test_dashboard_holds_every_panel(tmp_path: Path) -> None:
    board = json.loads((write(tmp_path) / "grafana/dashboards/triton.json").read_text())
    assert [panel["title"] for panel in board["panels"]] == [panel.title for panel in panels(OPTIONS, cache=True)]
    source = yaml.safe_load((tmp_path / "grafana/provisioning/datasources/prometheus.yml").read_text())
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["datasources"][0]["uid"]}


def test_every_alert_has_an_owner_and_a_section_of_the_runbook() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.M)
    for rule in alerts(OPTIONS):
        assert rule["labels"]["owner"] == "search-team"
        assert rule["alert"] in sections
        assert rule["annotations"]["runbook"] == f"runbook.md#{rule['alert'].lower()}"


SERIES = "nv_inference_{}{{job='triton',model='m',version='1'}}"
GPU = "nv_gpu_memory_{}_bytes{{job='triton',gpu_uuid='g'}}"
FIRES = {
    # alert: series by name and values that it fires for, and the same series at rest.
    "TritonDown": ({"up{job='triton'}": "0x20"}, {"up{job='triton'}": "1x20"}),
    "TritonSlow": (
        {"nv_inference_request_summary_us{job='triton',model='m',version='1',quantile='0.99'}": "60000x20"},
        {"nv_inference_request_summary_us{job='triton',model='m',version='1',quantile='0.99'}": "40000x20"},
    ),
    "TritonQueues": (
        {SERIES.format("queue_duration_us"): "0+6000000x20", SERIES.format("request_success"): "0+1000x20"},
        {SERIES.format("queue_duration_us"): "0+4000000x20", SERIES.format("request_success"): "0+1000x20"},
    ),
    "TritonStalled": (
        {SERIES.format("pending_request_count"): "3x20", SERIES.format("request_success"): "9x20"},
        {SERIES.format("pending_request_count"): "3x20", SERIES.format("request_success"): "0+9x20"},
    ),
    "TritonErrorBudgetBurns": (
        {
            "nv_inference_request_failure{job='triton',model='m',version='1',reason='BACKEND'}": "0+20x80",
            SERIES.format("request_success"): "0+980x80",
        },
        {
            "nv_inference_request_failure{job='triton',model='m',version='1',reason='CANCELED'}": "0+20x80",
            "nv_inference_request_failure{job='triton',model='m',version='1',reason='BACKEND'}": "0+1x80",
            SERIES.format("request_success"): "0+980x80",
        },
    ),
    "TritonGpuMemoryFull": (
        {GPU.format("used"): "97x20", GPU.format("total"): "100x20"},
        {GPU.format("used"): "90x20", GPU.format("total"): "100x20"},
    ),
}


def evaluated(directory: Path, options: MonitoringOptions, series: dict[str, str], minute: int, asked: str) -> None:
    """Ask promtool whether `asked` is true for these series at that minute, under the alerts in `directory`."""
    content: dict[str, Any] = {
        "rule_files": ["alerts.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f"count({asked}) or vector(0)",
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            }
        ],
    }
    write(directory, options)
    (directory / "test.yml").write_text(yaml.safe_dump(content))
    promtool("test", "rules", directory / "test.yml")


@pytest.mark.parametrize("job", ["triton", "enc"])
@pytest.mark.parametrize("name", [rule["alert"] for rule in alerts(OPTIONS)])
def test_alert_fires_when_it_should_and_not_before(name: str, job: str, tmp_path: Path) -> None:
    """And only for what is scraped as its job: a cluster has other servers."""
    minute = 75 if name == "TritonErrorBudgetBurns" else 15
    firing, rest = ({key.replace("'triton'", f"'{job}'"): v for key, v in case.items()} for case in FIRES[name])
    others = {key.replace("'triton'", "'other'"): values for key, values in FIRES[name][0].items()}
    options = replace(OPTIONS, job=job)
    fires = f"ALERTS{{alertname='{name}',alertstate='firing'}}"
    evaluated(tmp_path, options, firing, minute, fires)
    evaluated(tmp_path, options, rest | others, minute, f"vector(0) unless on() {fires}")
    assert all(rule["for"] for rule in alerts(options))


def test_no_server_left_is_down(tmp_path: Path) -> None:
    """One of two that answers is enough; with none there is nothing to scrape."""
    fires = "ALERTS{alertname='TritonDown',alertstate='firing'}"
    evaluated(tmp_path, OPTIONS, {"up{job='other'}": "1x20"}, 15, fires)
    both = {"up{job='triton',instance='a'}": "0x20", "up{job='triton',instance='b'}": "1x20"}
    evaluated(tmp_path, OPTIONS, both, 15, f"vector(0) unless on() {fires}")


def test_minutes_without_a_request_do_not_count_against_the_slo(tmp_path: Path) -> None:
    """Triton's summaries are NaN then: ten minutes within the limit of 50 ms, ten above it, and forty of rest."""
    [(_, attained)] = [panel.lines[0] for panel in panels(OPTIONS, cache=False) if panel.title == "Slo attainment"]
    series = "nv_inference_request_summary_us{job='triton',model='m',version='1',quantile='0.99'}"
    values = " ".join(["40000x9", "60000x9", *["NaN"] * 41])
    evaluated(tmp_path, OPTIONS, {series: values}, 60, f"({attained} > 0.49) < 0.51")


def test_the_autoscaler_gets_the_queue_time_of_a_request(run_cli: Any, repository: Any, tmp_path: Path) -> None:
    """The query of the Prometheus adapter, filled in as it does: it is that of the model that waits longest, of two in
    one pod and an ensemble of them; a second pod is at rest."""
    assert run_cli("deploy", "kubernetes", repository(m=PYTHON), "-o", tmp_path / "k8s").code == 0
    [rule] = yaml.safe_load((tmp_path / "k8s" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    query = rule["metricsQuery"]
    filled = {"Series": "nv_inference_queue_duration_us", "LabelMatchers": 'namespace="n"', "GroupBy": "pod"}
    for name, text in filled.items():
        query = query.replace(f"<<.{name}>>", text)
    series = {}
    for pod, model, queue_us in (("a", "m", 5_000), ("a", "n", 1_000), ("a", "both", 0), ("b", "m", 0)):
        labels = f"{{namespace='n',pod='{pod}',model='{model}',version='1'}}"
        series[f"nv_inference_queue_duration_us{labels}"] = f"0+{1_000 * queue_us}x20"
        series[f"nv_inference_request_success{labels}"] = f"0+{1_000 if pod == 'a' else 0}x20"
    evaluated(tmp_path, OPTIONS, series, 15, f"({query} > 4999.9) < 5000.1")
    evaluated(tmp_path, OPTIONS, series, 15, f"({query}) == 0")


@pytest.fixture
def prometheus(minilm_repository: Path, runtime: Any, tmp_path: Path) -> Iterator[str]:
    """A Prometheus that has scraped a server under load, by its address: two models, one of them with the cache."""
    models = tmp_path / "models"
    config = (minilm_repository / "minilm" / "config.pbtxt").read_text()
    for name, more in (("minilm", ""), ("cached", "\nresponse_cache { enable: true }\n")):
        (models / name).mkdir(parents=True)
        (models / name / "1").symlink_to(minilm_repository / "minilm" / "1")
        (models / name / "config.pbtxt").write_text(config.replace('name: "minilm"', f'name: "{name}"') + more)
    options = ServerOptions(flags=ServerFlags(cache_bytes=2**24))
    with EmbeddedServer(models, runtime, options) as server:
        server.load("minilm")
        server.load("cached")
        write(tmp_path, MonitoringOptions(server.metrics_url, gpu=False, interval_s=1))
        with socket.create_server(("127.0.0.1", 0)) as chosen:
            port = chosen.getsockname()[1]
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={tmp_path / 'prometheus.yml'}"),
                *(f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _load(server, until_s=12)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def _load(server: EmbeddedServer, until_s: float) -> None:
    """Requests one after the other, while Prometheus takes its samples."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    tensors = [{"name": name, "datatype": "INT64", "shape": [1, 16], "data": [1] * 16} for name in names]
    urls = [f"http://{server.http_url}/v2/models/{name}/infer" for name in ("minilm", "cached")]
    body = json.dumps({"inputs": tensors}).encode()
    end = time.monotonic() + until_s
    while time.monotonic() < end:
        for url in urls:
            urllib.request.urlopen(url, body, timeout=10).close()


def _ask(address: str, expression: str) -> list[Any]:
    url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(url, timeout=10) as answer:
        body = json.load(answer)
    assert body["status"] == "success", expression
    return list(body["data"]["result"])


@pytest.mark.live
@pytest.mark.long
def test_a_real_prometheus_answers_every_expression(prometheus: str) -> None:
    options = MonitoringOptions("unused", gpu=False, interval_s=1)
    for panel in panels(options, cache=True):
        for legend, expression in panel.lines:
            assert _ask(prometheus, expression), f"{panel.title}, {legend}: {expression}"
    for rule in alerts(options):
        # An alert has no result while all is well; what it compares must have one.
        for part in re.split(r" and ", rule["expr"]):
            compared = re.sub(r" (>|==|<) [\d.e-]+$", "", part)
            assert _ask(prometheus, compared), f"{rule['alert']}: {compared}"
