"""Runs every check over what a path names, and marks what the server itself would say. Layer: check."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from tooling.check import compose, manifests
from tooling.check.files import is_file
from tooling.check.finding import Finding, Place, Severity, Stage
from tooling.check.model import Model, OnnxFile, read_file
from tooling.check.registry import checks_of, rules
from tooling.check.repository import Repository, read_repository
from tooling.check.request import read_requests
from tooling.check.rules import comments, instances, onnx_file, pytorch, requests, serving, text, vllm
from tooling.check.target import Target
from tooling.errors import UsageError


@dataclass(frozen=True, slots=True)
class Report:
    """What was judged, for which server, and what was found; `silenced` counts findings that comments took away."""

    target: Target
    models: tuple[str, ...]
    findings: tuple[Finding, ...]
    silenced: int = 0

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def fails(self, level: Severity) -> bool:
        """Whether there are findings as bad as `level`, or worse."""
        levels = list(Severity)
        return any(levels.index(finding.severity) <= levels.index(level) for finding in self.findings)


def check(
    path: Path,
    target: Target,
    names: Collection[str] = (),
    *,
    compose_file: Path | None = None,
) -> Report:
    """Judge a repository, a model directory, a config or an ONNX file.

    A compose file in the repository, or `compose_file`, says more of the server; the release it names counts where the
    target's is a default. Raises UsageError when there is nothing to judge.
    """
    serving_findings: list[Finding] = []
    for file in [compose_file] if compose_file else _compose_files(path):
        services = compose.services_of(file) if compose_file else _services(file, serving_findings)
        target = compose.with_services(target, services)
        serving_findings += serving.compose_health(str(file), services)
    repository = read_repository(path, target, names)
    if repository.onnx is not None:
        return Report(target, (), tuple(_bare_file(repository, target)))
    found = _judge(repository)
    shared = [*vllm.memory(repository.models), *pytorch.threads(repository.models)]
    shared += instances.rate_limits(repository.models) if target.rate_limit is not None else ()
    for finding in shared:
        found[finding.model or ""].append(finding)
    left = {name: _silence(repository.models[name], found[name]) for name in repository.judged}
    silenced = sum(len(found[name]) - len(left[name]) for name in repository.judged)
    kept = [*serving_findings, *_of_repository(repository, target, left)]
    for name in repository.judged:
        kept += _mark_first(left[name])
        kept += comments.comments(repository.models[name], rules())
    return Report(target, repository.judged, tuple(kept), silenced)


_MOST = 200
"""Findings of one model that are told: more help nobody, and a hostile config could hold a million."""


def check_request(file: Path, path: Path, target: Target, names: Collection[str] = ()) -> Report:
    """Judge the requests of a file for one model of a repository, or for a model directory.

    Raises UsageError when the model is not told, its config cannot be read, or the file holds no request.
    """
    repository = read_repository(path, target, names)
    model = next((repository.models[name] for name in repository.judged), Model(path, str(path), target))
    if not model.readable:
        raise UsageError("the model's config cannot be read", where=model.config_name, hint="check it first")
    listed = read_requests(file, model.completed)
    # What a server answered can be explained without its model.
    if len(repository.judged) != 1 and not (all(sent.answer is not None for sent in listed) and not repository.judged):
        raise UsageError(
            "a request is for one model",
            where=path,
            got=", ".join(repository.judged) or "no model",
            hint="name it with --model",
        )
    place = Place(str(file))
    found: list[Finding] = []
    for sent in listed:
        judged = list(requests.judge(model, sent, place))
        first = next((finding for finding in judged if finding.severity is Severity.ERROR), None)
        found += [replace(finding, first=finding is first) for finding in judged]
    found += requests.sequences(model, listed, place)
    return Report(target, repository.judged, tuple(found))


def merged(reports: Sequence[Report]) -> Report:
    """The reports of several paths as one; there is at least one."""
    return Report(
        reports[0].target,
        tuple(name for report in reports for name in report.models),
        tuple(finding for report in reports for finding in report.findings),
        sum(report.silenced for report in reports),
    )


def newer(report: Report, before: Report) -> Report:
    """The report with only those findings that another one, such as that of an earlier release, has not."""
    known = {(finding.rule.id, finding.place) for finding in before.findings}
    fresh = tuple(finding for finding in report.findings if (finding.rule.id, finding.place) not in known)
    return replace(report, findings=fresh)


def _compose_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return [path / name for name in compose.NAMES if is_file(path / name)][:1]


def _services(file: Path, findings: list[Finding]) -> dict[str, object]:
    try:
        return dict(compose.services_of(file))
    except UsageError as error:
        findings.append(Finding(serving.UNREADABLE, Place(str(file)), str(error.problems[0])))
        return {}


def _judge(repository: Repository) -> dict[str, list[Finding]]:
    """The findings of every model, those an ensemble is made of before the ensemble."""
    found: dict[str, list[Finding]] = {}
    refusals: dict[str, Finding] = {}
    for name in _steps_first(repository.models):
        model = repository.models[name]
        model.refusals = refusals
        found[name] = _of_model(model)
        refusal = next((f for f in found[name] if _refuses(f)), None)
        if refusal is not None:
            refusals[name] = refusal
    return found


def _steps_first(models: Mapping[str, Model]) -> list[str]:
    """Names in an order in which every model comes behind the models of its steps, circles aside."""
    order: dict[str, None] = {}
    pending = [(name, False) for name in reversed(list(models))]
    seen: set[str] = set()
    while pending:
        name, done = pending.pop()
        if done:
            order[name] = None
        elif name in models and name not in seen:
            seen.add(name)
            steps = models[name].config.ensemble_scheduling.step
            pending += [(name, True), *((step.model_name, False) for step in steps)]
    return list(order)


def _refuses(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR and finding.rule.stage is not Stage.REQUEST


def _of_model(model: Model) -> list[Finding]:
    findings = text.text(model)
    if model.readable:
        findings = chain(findings, *(check_(model) for check_ in checks_of(model)))
    tag = model.target.release.tag
    return list(islice((finding for finding in findings if finding.rule.holds_for(tag)), _MOST))


def _of_repository(repository: Repository, target: Target, found: Mapping[str, list[Finding]]) -> Iterator[Finding]:
    place = Place(repository.shown)
    if repository.is_model:
        name, parent = next(iter(repository.judged)), shlex.quote(str(repository.root.absolute().parent))
        yield Finding(
            serving.IS_A_MODEL,
            place,
            "this looks like a model directory, not a model repository",
            hint=f"use its parent: `tritune check {parent} --model {name}`",
        )
    elif not repository.models:
        yield Finding(serving.EMPTY, place, "no models: a repository holds one directory per model")
    wanted = f"configs/{target.config_name}.pbtxt"
    if target.config_name and not any(is_file(model.directory / wanted) for model in repository.models.values()):
        yield Finding(
            serving.CONFIG_NAME, place, f"no model has {wanted}: each is judged, and served, with its config.pbtxt"
        )
    if len(target.caches) > 1:
        yield Finding(
            serving.SEVERAL_CACHES,
            place,
            f"--cache-config for {' and '.join(target.caches)}",
            says="found multiple cache configurations, but only a single cache is currently supported",
        )
    if "Dockerfile" in repository.entries:
        yield from serving.dockerfile(repository.root / "Dockerfile", f"{repository.shown}/Dockerfile")
    for name in sorted(n for n, is_dir in repository.entries.items() if not is_dir and n.endswith(manifests.SUFFIXES)):
        if name not in compose.NAMES:
            yield from serving.manifest_health(repository.root / name, f"{repository.shown}/{name}")
    refused = [name for name in repository.judged if any(_refuses(finding) for finding in found[name])]
    if refused and len(repository.models) > 1:
        yield Finding(
            serving.EXIT_ON_ERROR,
            place,
            f"{', '.join(refused)}: the server would exit because --exit-on-error is true",
            hint="mend it, or start the server with --exit-on-error=false",
        )


def _bare_file(repository: Repository, target: Target) -> Iterator[Finding]:
    """An ONNX file that stands in no repository."""
    assert repository.onnx is not None
    model = Model(repository.root, str(repository.root), target)
    file: OnnxFile = read_file(repository.onnx)
    yield from onnx_file.onnx_file(model, file)


def _silence(model: Model, findings: list[Finding]) -> list[Finding]:
    """The findings that no comment of the config takes away: by line, or anywhere for those without a line."""
    if model.text is None:
        return findings
    ignores = model.text.ignores()

    def silenced(finding: Finding) -> bool:
        for ignore in ignores:
            here = finding.place.file == model.text.name if model.text else False
            if finding.rule.id in ignore.rules and (
                not here or finding.place.line is None or finding.place.line in ignore.lines
            ):
                return True
        return False

    return [finding for finding in findings if not silenced(finding)]


def _mark_first(findings: list[Finding]) -> list[Finding]:
    """The findings with the one marked that the server stops at."""
    for index, finding in enumerate(findings):
        if _refuses(finding):
            return [*findings[:index], replace(finding, first=True), *findings[index + 1 :]]
    return findings
