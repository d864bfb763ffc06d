"""Names in a project file: each must stand in the file or on the disk, and none for two things. Layer: project, below
the file's schema.

They are looked up in the file as it stands, so that they are told together with whatever else is wrong in it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final, TypeAlias

from tooling.errors import Problem, UsageError, suggest
from tooling.project.problems import ORIGINS, Found, of_file
from tooling.repository import is_there

_AUTO: Final = "auto"
_DEPLOYMENTS: Final = ("compose", "kubernetes")
_Models: TypeAlias = Mapping[str, Mapping[Any, Any]]


def parts_of(ensemble: str, root: Path) -> tuple[str, ...]:
    """The models that an ensemble's words, or the graph file that they name, join; none for `auto`.

    Raises UsageError for a graph file that cannot be used.
    """
    from tooling.config.ensemble import is_graph_file, models_named, parse_graph
    from tooling.config.yaml_file import read_yaml

    if not is_graph_file(ensemble):
        return models_named(ensemble)
    return tuple(step.model for step in parse_graph(read_yaml(root / ensemble), ensemble).steps)


def made_after(joined: Mapping[str, Collection[str]]) -> list[str]:
    """Ensembles, given with the models they join, each after those of them that it joins. Raises CycleError."""
    before = {name: [part for part in parts if part in joined] for name, parts in joined.items()}
    return list(TopologicalSorter(before).static_order())


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What names are looked up in: the project's directory, its repository as the file has it, and the name of the
    configs that a tuning writes on this machine."""

    root: Path
    repository: str
    hardware: str

    def place(self, name: str) -> Path:
        """The directory of a model."""
        return self.root / self.repository / name

    def models(self) -> list[str]:
        """Models that stand in the repository already."""
        top = self.root / self.repository
        try:
            return sorted(path.name for path in top.iterdir() if path.is_dir())
        except OSError:
            return []


def wrong_names(data: Mapping[Any, Any], around: Surroundings, keys: Collection[str]) -> Iterator[Found]:
    """Names that stand for nothing, or for two things. `keys` are those that a model may have: one with others is not
    taken for a model that is there already."""
    models = {name: model for name, model in _mapping(data.get("models")).items() if isinstance(model, dict)}
    made = dict(_made(models))
    yield from _made_twice(models)
    yield from _not_there(models, made, around, keys)
    yield from _ensembles(models, made, around)
    yield from _served(data, models, made, around)


def _mapping(value: object) -> dict[str, Any]:
    """The entries of a mapping whose keys are words."""
    return {key: one for key, one in value.items() if isinstance(key, str)} if isinstance(value, dict) else {}


def _made(models: _Models) -> Iterator[tuple[str, str]]:
    """Names of the models that a build makes, each with the model of the file that it makes it for."""
    for name, model in models.items():
        if any(model.get(origin) for origin in ORIGINS):
            yield name, name
        if model.get("source") and _mapping(model.get("export")).get("pipeline"):
            yield from ((f"{name}_{part}", name) for part in ("tokenizer", "model"))
        quick = _mapping(model.get("config")).get("low_latency")
        if model.get("llm") and isinstance(quick, str):
            yield quick, name


def _is_made(name: str, made: Collection[str]) -> bool:
    """Whether a build makes such a model, or may: one for a length of a text pipeline."""
    model, _, edge = name.rpartition("_")
    return name in made or (edge.isdecimal() and model.endswith("_model") and model in made)


def _made_twice(models: _Models) -> Iterator[Found]:
    makers = {name: name for name in models}
    for name, by in _made(models):
        other = makers.setdefault(name, by)
        if other != by:
            also = "is in the file too" if other == name else f"is made for `{other}` too"
            what = f"a model `{name}` is made for it, which {also}"
            yield Found(("models", by), Problem(what, hint="leave one of them out, or give it another name"))


def _not_there(
    models: _Models, made: Mapping[str, str], around: Surroundings, keys: Collection[str]
) -> Iterator[Found]:
    """Models that nothing is made from, and that stand nowhere."""
    from tooling.config.names import name_problem

    there = around.models()
    for name, model in models.items():
        adopted = not any(origin in model for origin in ORIGINS) and set(model) <= set(keys)
        if not adopted or name_problem(name) or name in there or _is_made(name, made):
            continue
        problem = Problem(
            "it is not in the repository, and nothing says what it is made from",
            expected=f"a directory {around.repository}/{name}, or one of the keys {', '.join(ORIGINS)}",
            hint=suggest(name, there),
        )
        yield Found(("models", name), problem)


def _ensembles(models: _Models, made: Mapping[str, str], around: Surroundings) -> Iterator[Found]:
    from tooling.repository import config_path

    joined: dict[str, tuple[str, ...]] = {}
    configured = {path.parent.name for path in map(config_path, map(around.place, around.models())) if path.is_file()}
    ready = configured | {*models, *made}
    for name, model in models.items():
        words, loc = model.get("ensemble"), ("models", name, "ensemble")
        if not isinstance(words, str) or not words:
            continue
        try:
            joined[name] = parts_of(words, around.root)
        except UsageError as error:
            if is_there(around.root / words):  # else that is said of the key already
                yield from (Found(loc, of_file(problem)) for problem in error.problems)
            continue
        if joined[name] == (words.strip(),):
            expected = f"their names with commas between, `{_AUTO}`, or a graph file such as graph.yaml"
            what, hint = "an ensemble joins several models", suggest(words, [_AUTO])
            yield Found(loc, Problem(what, got=f"`{words}`", expected=expected, hint=hint))
            continue
        for part in dict.fromkeys(joined[name]):
            if part not in ready and not _is_made(part, made):
                yield Found(loc, _no_model(part, ready - {name}, around, "with a config.pbtxt"))
    try:
        made_after(joined)
    except CycleError as error:
        circle = list(dict.fromkeys(error.args[1]))
        what = "ensembles that are made of each other" if len(circle) > 1 else "an ensemble of itself"
        yield Found(("models", circle[0], "ensemble"), Problem(what, got=", ".join(f"`{name}`" for name in circle)))


def _served(data: Mapping[Any, Any], models: _Models, made: Mapping[str, str], around: Surroundings) -> Iterator[Found]:
    """What the check and the deployments name of the repository, and where these go."""
    deploy = _mapping(data.get("deploy"))
    sections: dict[tuple[str, ...], dict[str, Any]] = {("check",): _mapping(data.get("check"))}
    sections |= {("deploy", kind): _mapping(deploy.get(kind)) for kind in _DEPLOYMENTS}
    tuned = [name for name, model in models.items() if model.get("tune") is not False]
    known = {*around.models(), *models, *made}
    for loc, section in sections.items():
        config_name, swept = section.get("config_name"), section.get("sweep")
        if isinstance(config_name, str) and config_name and not (tuned and config_name == around.hardware):
            yield from (Found((*loc, "config_name"), problem) for problem in _no_config(config_name, around))
        if isinstance(swept, str) and swept and swept not in known and not _is_made(swept, made):
            yield Found((*loc, "sweep"), _no_model(swept, known, around))
    yield from _outputs({kind: deploy[kind] for kind in _DEPLOYMENTS if isinstance(deploy.get(kind), dict)}, around)
    if "rate" in sections["deploy", "kubernetes"] and len(tuned) != 1:
        problem = Problem(
            "what a server carries is known where one model is tuned",
            got=f"{len(tuned) or 'none'} of them",
            hint="say with `replicas` how many servers there are, and leave `rate` out",
        )
        yield Found(("deploy", "kubernetes", "rate"), problem)


def _outputs(deployments: Mapping[str, Mapping[Any, Any]], around: Surroundings) -> Iterator[Found]:
    from tooling.deploy.inputs import check_place

    seen: set[str] = set()
    for kind, section in deployments.items():
        output = section.get("output", f"deploy/{kind}")
        if not isinstance(output, str) or not output:
            continue
        loc = ("deploy", kind, "output")
        try:
            check_place(around.root / output, around.root / around.repository)
        except UsageError as error:
            yield from (Found(loc, replace(problem, where=None)) for problem in error.problems)
        if os.path.normpath(output) in seen:
            what, expected = "the files of the other deployment go there too", "a directory for each"
            yield Found(loc, Problem(what, got=f"`{output}`", expected=expected))
        seen.add(os.path.normpath(output))


def _no_config(name: str, around: Surroundings) -> Iterator[Problem]:
    from tooling.config.names import name_problem

    if problem := name_problem(name, "hardware name"):
        yield problem
        return
    there = {path.stem for model in around.models() for path in around.place(model).glob("configs/*.pbtxt")}
    if name not in there:
        expected = f"a file {around.repository}/NAME/configs/{name}.pbtxt"
        yield Problem(
            "no model has a config of this name", got=f"`{name}`", expected=expected, hint=suggest(name, there)
        )


def _no_model(name: str, known: Collection[str], around: Surroundings, such: str = "") -> Problem:
    expected = f"a model of the file, or one {f'{such} ' if such else ''}in {around.repository}"
    return Problem("no such model", got=f"`{name}`", expected=expected, hint=suggest(name, sorted(known)))
