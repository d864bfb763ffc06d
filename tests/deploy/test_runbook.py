"""What whoever is called reads: a section for each alert, and the incident page, in words of the deployment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tooling.deploy.monitoring import MonitoringOptions, alerts
from tooling.deploy.runbook import render_runbook

from .conftest import PYTHON

DOCS = Path(__file__).parents[2] / "docs"
Run = Callable[..., Any]


def _sections(page: str) -> list[str]:
    return re.findall(r"^## (\w+)$", page, re.MULTILINE)


@pytest.mark.parametrize("page", ["runbook.md", "incident.md"])
def test_the_documentation_has_the_page_for_both_places(page: str, update_golden: bool) -> None:
    text = render_runbook(MonitoringOptions(""))[page]
    if update_golden:
        (DOCS / page).write_text(text, encoding="utf-8")
    assert (DOCS / page).read_text(encoding="utf-8") == text
    assert "docker compose" in text and "kubectl" in text


@pytest.mark.parametrize("gpus", ["0", "1"])
def test_a_cluster_has_them_with_its_own_figures(gpus: str, run_cli: Run, repository: Any, tmp_path: Path) -> None:
    out = tmp_path / "k8s"
    told = ("--owner", "search-team", "--p99", "250ms", "--queue-target", "5ms", "--gpus", gpus)
    done = run_cli("deploy", "kubernetes", repository(m=PYTHON), "-o", out, "--name", "enc", *told)
    assert done.code == 0, done.err
    runbook, incident = ((out / "base" / name).read_text() for name in ("runbook.md", "incident.md"))
    (group,) = yaml.safe_load((out / "base" / "alerts.yaml").read_text())["spec"]["groups"]
    assert _sections(runbook) == [rule["alert"] for rule in group["rules"]]
    assert all(rule["annotations"]["runbook"] == f"runbook.md#{rule['alert'].lower()}" for rule in group["rules"])
    for figure in (
        "search-team",
        "250ms",
        "0.10%",
        "5ms",
        'kubectl patch hpa enc --patch \'{"spec": {"minReplicas": N}}\'',
    ):
        assert figure in runbook, figure
    assert ("nvidia-smi" in incident) == (gpus == "1")
    assert "kubectl logs --selector app.kubernetes.io/name=enc" in incident
    assert "docker" not in runbook + incident


def test_a_compose_project_has_them(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_cli("deploy", "compose", repository(m=PYTHON), "-o", out, "--owner", 'a\n"b"').code == 0
    runbook, incident = ((out / "monitoring" / name).read_text() for name in ("runbook.md", "incident.md"))
    assert _sections(runbook) == [rule["alert"] for rule in alerts(MonitoringOptions(""))]
    assert '**a "b"**' in runbook
    assert "kubectl" not in runbook + incident
    assert "docker compose logs --no-color triton > server.log" in incident


def test_links_within_the_pages_lead_somewhere() -> None:
    """Beside alerts.yml there is no documentation: a deployment's pages lead to each other only."""
    for place in ("compose", "kubernetes"):
        pages = render_runbook(MonitoringOptions(""), place, "enc")
        for page, text in pages.items():
            for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
                there = pages[target or page]
                headings = re.findall(r"^#+ (.*)$", there, re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert not anchor or anchor in slugs, f"{page}: {target}#{anchor}"


def test_panels_that_a_page_speaks_of_are_on_the_dashboard(run_cli: Run, repository: Any, tmp_path: Path) -> None:
    assert run_cli("deploy", "compose", repository(m=PYTHON), "-o", tmp_path / "out").code == 0
    board = json.loads((tmp_path / "out/monitoring/grafana/dashboards/triton.json").read_text())
    titles = {panel["title"] for panel in board["panels"]}
    named = set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", (tmp_path / "out/monitoring/runbook.md").read_text()))
    assert named and named <= titles, named - titles
