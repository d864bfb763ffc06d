"""Renders a compose project that serves a model repository. Layer: deploy."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tooling.config.templates import environment
from tooling.deploy.image import IMAGE, dockerfile
from tooling.deploy.inputs import check_host, check_ports, is_loopback, monitoring_ports
from tooling.deploy.monitoring import MonitoringOptions, render_monitoring
from tooling.deploy.needs import Needs
from tooling.deploy.runbook import render_runbook
from tooling.deploy.store import S3_VARIABLES, check_bucket, is_s3
from tooling.releases import Release
from tooling.server.flags import ServerFlags, require_release

COMPOSE_FILE: Final = "docker-compose.yml"
_CONTROL_KEY: Final = "${TRITON_CONTROL_KEY:?is not set - what callers of the load API send as triton-control-key}"
_RELEASE: Final = "${TRITON_RELEASE:?is not set - see .env}"


@dataclass(frozen=True, slots=True)
class ComposeOptions:
    """`gpus` are the ids to reserve, None for all, none at all for a server without GPU.

    Ports listen on `host`; `shm_bytes` is shared with the processes of Python models. `sweep` is the model that the
    service `tune` measures, by `requests/NAME.json`. With `bucket`, an s3:// or gs:// URL, Triton reads the repository
    there.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    gpus: tuple[str, ...] | None = None
    shm_bytes: int = 2**30
    sweep: str | None = None
    monitoring: MonitoringOptions = field(default_factory=lambda: MonitoringOptions("triton:8002"))
    bucket: str | None = None

    @property
    def ports(self) -> dict[str, int]:
        """The server's, by their options."""
        return {"--http-port": self.http_port, "--grpc-port": self.grpc_port, "--metrics-port": self.metrics_port}

    @property
    def on_gpu(self) -> bool:
        return self.gpus is None or len(self.gpus) > 0


def render_compose(
    repository: Path, output: Path, needs: Needs, flags: ServerFlags, release: Release, options: ComposeOptions
) -> Mapping[str, str]:
    """The files of the project by their names in `output`; the repository is named relative to it.

    Raises UsageError for a bucket or an address that is none, and for a port that is wanted twice.
    """
    check_host(options.host)
    check_ports(options.ports)
    if options.bucket is not None:
        check_bucket(options.bucket)
    if flags.control == "explicit" and not is_loopback(options.host):  # whoever loads models runs code
        flags = replace(flags, control_key=_CONTROL_KEY)
    require_release(flags, release)
    env = environment().overlay()
    env.filters["yaml"] = _quoted
    mounted = os.path.relpath(repository.resolve(), output.resolve())
    facts: dict[str, Any] = {
        "name": _project_name(repository),
        "needs": needs,
        "arguments": [
            _Setting(word) if word.endswith(_CONTROL_KEY) else word
            for word in flags.arguments(options.bucket or "/models")
        ],
        "variables": S3_VARIABLES if options.bucket and is_s3(options.bucket) else (),
        "key_file": options.bucket is not None and not is_s3(options.bucket),
        "release": release,
        "options": options,
        "sweep": options.sweep,
        "monitoring_ports": monitoring_ports(options.ports),
        "gpu": options.on_gpu,
        "guarded": flags.control_key is not None,
        "bound": flags.control == "explicit" and flags.control_key is None,
        "gpus": "count: all" if options.gpus is None else f"device_ids: {json.dumps(list(options.gpus))}",
        "repository": mounted if mounted.startswith(".") else f"./{mounted}",
        "packages": bool(needs.packages),
        "dockerfile": os.path.relpath(output.resolve() / "Dockerfile", repository.resolve()),
        "image_setting": _Setting(f"{IMAGE}:{_RELEASE}-{needs.variant}"),
        "sdk_setting": _Setting(f"{IMAGE}:{_RELEASE}-py3-sdk"),
        "tensorrt_setting": _Setting(f"nvcr.io/nvidia/tensorrt:{_RELEASE}-py3"),
    }
    names = {COMPOSE_FILE: "docker-compose.yml.j2", ".env": "env.j2"}
    files = {name: env.get_template(f"compose/{template}").render(facts) for name, template in names.items()}
    if needs.packages:
        files["Dockerfile"] = dockerfile(needs.packages)
    watch = replace(options.monitoring, gpu=options.on_gpu)
    watched = render_monitoring(watch, cache=flags.cache_bytes is not None)
    pages = render_runbook(watch, "compose", facts["name"])
    return {**files, **{f"monitoring/{name}": text for name, text in {**watched, **pages}.items()}}


class _Setting(str):
    """Text whose `${…}` compose is to fill in; any other `$` is meant as it is."""


def _quoted(text: str) -> str:
    """A YAML string that compose reads as it is."""
    return json.dumps(text if isinstance(text, _Setting) else text.replace("$", "$$"), ensure_ascii=False)


def _project_name(repository: Path) -> str:
    """Compose takes lower-case letters, digits, - and _, beginning with a letter or digit."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in repository.resolve().name.lower())
    return kept.strip("-_") or "triton"
