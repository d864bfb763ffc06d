"""Compares what a running server has loaded with a repository. Layer: check."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tooling.check.finding import Finding, Place
from tooling.check.repository import Repository, read_repository
from tooling.check.rules import served as rules
from tooling.check.rules import text
from tooling.check.runner import Report
from tooling.check.target import Target
from tooling.errors import UsageError
from tooling.releases import releases


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address, the version it says it is, and its models by name."""

    url: str
    version: str
    models: Mapping[str, rules.Served]


def compare(server: Server, path: Path, target: Target, names: Collection[str] = ()) -> Report:
    """Where the server's models and those of a repository differ: loaded or not, versions, configs field by field.

    The release is that of the server unless the target names one. Raises UsageError when there is no model to compare.
    """
    known = next((release for release in releases() if release.tritonserver == server.version), None)
    if known is not None and not target.release_named:
        target = replace(target, release=known)
    repository = read_repository(path, target, names)
    if not repository.judged:
        raise UsageError("no model to compare", where=path, expected="a model repository")
    findings = [*_release(server, target), *_unknown(server, repository, names)]
    for name in repository.judged:
        model, served = repository.models[name], server.models.get(name, rules.Served())
        findings += rules.versions(model, served)
        if not model.readable:
            findings += text.text(model)
        elif served.config is not None:
            findings += rules.config(model, served.config)
    return Report(target, repository.judged, tuple(findings))


def _release(server: Server, target: Target) -> Iterator[Finding]:
    if server.version != target.release.tritonserver:
        yield Finding(
            rules.RELEASE,
            Place(server.url),
            f"the server is {server.version}, and Triton {target.release.tag} is {target.release.tritonserver}",
            hint="name the release with --release",
        )


def _unknown(server: Server, repository: Repository, names: Collection[str]) -> Iterator[Finding]:
    """Models that only the server has; not asked for where single models are compared."""
    if names or repository.is_model:
        return
    for name, served in sorted(server.models.items()):
        if name not in repository.models and served.ready:
            yield Finding(
                rules.UNKNOWN, Place(server.url), f"{name} is served, and {repository.shown} has no such model", name
            )
