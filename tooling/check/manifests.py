"""Kubernetes manifests beside the models: the probes of their containers. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tooling.check.files import read_limited
from tooling.config.yaml_file import loader

SUFFIXES: Final = (".yaml", ".yml")
_LARGEST: Final = 2**17
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")


def probes(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Of every container: the kind of a probe, the path that it asks for, and whether there is a start-up probe.

    A file that is no YAML, or too large to be a manifest, has none.
    """
    import yaml

    try:
        source = read_limited(path, _LARGEST) or b""
        documents = list(yaml.load_all(source, loader()))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return
    for container in _containers(documents):
        for kind in _PROBES:
            asked = container.get(kind)
            get = asked.get("httpGet") if isinstance(asked, dict) else None
            url = get.get("path") if isinstance(get, dict) else None
            if isinstance(url, str):
                yield kind, url, "startupProbe" in container


def _containers(content: Any) -> Iterator[dict[str, Any]]:
    """Every mapping that has a probe; each is met once, however often aliases repeat it."""
    pending, seen = [content], set()
    while pending:
        part = pending.pop()
        if id(part) in seen or not isinstance(part, (dict, list)):
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            if any(kind in part for kind in _PROBES):
                yield part
            pending += part.values()
        else:
            pending += part
