"""Renders what whoever is called reads: a section for each alert, and what to do in an incident. Layer: deploy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tooling.config.templates import environment
from tooling.deploy.monitoring import MonitoringOptions
from tooling.units import format_duration_us


def render_runbook(
    options: MonitoringOptions, place: Literal["compose", "kubernetes"] | None = None, name: str = ""
) -> Mapping[str, str]:
    """The pages by name, with the figures of the deployment `name`; without a place they tell of both."""
    label = f" --selector app.kubernetes.io/name={name}" if name else ""
    logs = {
        "compose": "`docker compose logs triton`",
        "kubernetes": f"`kubectl logs deployment/{name or 'NAME'} --previous`",
    }
    stacks = {
        "compose": "docker compose exec triton sh -c 'kill -ABRT 1'",
        "kubernetes": "kubectl exec POD -- sh -c 'kill -ABRT 1'",
    }
    restart = {"compose": "`docker compose up --detach`", "kubernetes": "`kubectl apply -k` of its overlay"}
    facts = {
        "name": name,
        "place": place,
        "owner": " ".join(options.owner.split()),
        "p99": format_duration_us(options.p99_us),
        "p99_term": f"{options.p99_us / 1_000:g}ms",
        "queue": format_duration_us(options.queue_us),
        "may_fail": f"{1 - options.availability:.2%}",
        "gpu": options.gpu,
        "label": label,
        "logs": logs[place] if place else ", ".join(logs.values()),
        "stacks": stacks[place or "compose"],
        "restart": restart[place] if place else " or ".join(restart.values()),
    }
    pages = ("runbook.md", "incident.md")
    return {page: environment().get_template(f"{page}.j2").render(facts) for page in pages}
