"""The project file `tritune.yaml`: its keys, and reading it with every problem at its line and column. Layer: project.

The keys of a model's `export`, `config` and `tune`, of `check` and of what is under `deploy` are the options of the
commands with these names.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    create_model,
)

from tooling.errors import Problem, UsageError, suggest
from tooling.project.section import Section, existing, section_of
from tooling.project.yaml_places import Places, read_placed

FILE_NAME = "tritune.yaml"
_OF_THE_FILE = ("release", "owner")
_SECTIONS: Mapping[str, tuple[str, str]] = {
    "export": ("export", "repository name workload curve print_command force"),
    "config": (
        "gen-config",
        "name url model ensemble llm template hardware output stdout diff check client_sample force",
    ),
    "tune": ("tune", "workload slo study apply report url allow_reconfigure weight"),
    "check": ("check", "model from_release format request url fix explain for"),
    "compose": ("deploy compose", "force study"),
    "kubernetes": ("deploy kubernetes", "force study"),
}
"""The command of each section, and its options that the file says elsewhere or that make no sense in it."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _release(value: Any) -> Any:
    if value is not None and not isinstance(value, str):
        raise ValueError(f'YAML reads it as a number: put it in quotes, as in "{value:.2f}"')
    return value


def _traffic(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, (str, dict)) or not value:
        raise ValueError("expected the name of a workload file, or its keys, such as `{concurrency: 8}`")
    return existing(value, info) if isinstance(value, str) else value


def _terms(value: Any) -> Any:
    terms = value if isinstance(value, list) else [value]
    if not terms or not all(isinstance(term, str) and term for term in terms):
        raise ValueError("expected terms such as `p99<50ms`, in one line or as a list")
    return ",".join(terms)


Release = Annotated[
    Any, AfterValidator(_release), WithJsonSchema({"type": "string", "pattern": r"^[0-9]{2}\.[0-9]{2}$"})
]
Traffic = Annotated[Any, AfterValidator(_traffic), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})]
Terms = Annotated[
    Any,
    AfterValidator(_terms),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class Model(_Strict):
    """A model of the repository. One with none of `source`, `llm` and `ensemble` is there already: it is adopted."""

    source: str | None = Field(
        None,
        description="Hugging Face directory, hub id, or `bundled:minilm`: exported to ONNX with `tritune export`.",
    )
    llm: str | None = Field(
        None, description="Hugging Face directory of a language model, served by vLLM or TensorRT-LLM as it is."
    )
    ensemble: str | None = Field(
        None, description="Join models that stand beside it: a graph file, their names with commas, or `auto`."
    )
    owner: str | None = Field(None, description="Who stands by this model. Default: the owner of the project.")
    workload: Traffic | None = Field(
        None, description="Its traffic: a workload file, or the keys of one (docs/measuring.md). Default: 8 clients."
    )
    slo: Terms | None = Field(
        None,
        description="Limits and goal, such as `p99<50ms,throughput`: latency, cost and quality (docs/measuring.md).",
    )
    export: Section | None = None
    config: Section | None = None
    tune: Section | bool | None = None

    @property
    def origin(self) -> str:
        """Which of `source`, `llm` and `ensemble` it is made from; "" for a model that is there."""
        return next((name for name in ("source", "llm", "ensemble") if getattr(self, name)), "")


class Deploy(_Strict):
    """Where the repository is served."""

    compose: Section | None = None
    kubernetes: Section | None = None


class Project(_Strict):
    """A deployment: models, what is wanted of them, and where they are served."""

    version: Literal[1] = Field(1, description="Of this format.")
    repository: str = Field("model_repository", description="The model repository, made where it is not there.")
    release: Release | None = Field(
        None, description='The Triton that will serve it, in quotes: "24.10". Default: the tested one.'
    )
    owner: str | None = Field(None, description="Who stands by the decisions and is called by the alerts.")
    models: dict[str, Model] = Field(description="The models by their names in the repository.", min_length=1)
    check: Section | None = None
    deploy: Deploy | None = None

    def model_owner(self, name: str) -> str | None:
        return self.models[name].owner or self.owner


def project_model(commands: Mapping[str, Callable[..., Any]]) -> type[Project]:
    """`Project` with the options of `commands` (by name, `deploy compose` with its group) in the sections."""

    def section(key: str, description: str, extra: Mapping[str, Any] | None = None, also: Any = None) -> Any:
        command, hidden = _SECTIONS[key]
        made = section_of(key.capitalize(), commands[command], {*hidden.split(), *_OF_THE_FILE}, extra)
        kind = made | also if also is not None else made
        return (kind | None, Field(None, description=f"{description} Keys: options of `tritune {command}`."))

    output = {
        key: {"output": (str, Field(f"deploy/{key}", description="Where the files go.", validate_default=True))}
        for key in ("compose", "kubernetes")
    }
    model = create_model(
        "Model",
        __base__=Model,
        export=section("export", "How the source becomes ONNX or a TensorRT engine."),
        config=section("config", "Settings fixed by hand."),
        tune=section("tune", "The search for the best settings; `false`: none.", also=bool),
    )
    deploy = create_model(
        "Deploy",
        __base__=Deploy,
        compose=section("compose", "Docker compose.", output["compose"]),
        kubernetes=section("kubernetes", "Kubernetes.", output["kubernetes"]),
    )
    return create_model(
        "Project",
        __base__=Project,
        models=(dict[str, model], Field(description=Project.model_fields["models"].description, min_length=1)),  # type: ignore[valid-type]
        check=section("check", "The verdict before anything is measured or deployed."),
        deploy=(cast(Any, deploy | None), Field(None, description="The files that put the repository into service.")),
    )


def read_project(path: Path, kind: type[Project]) -> Project:
    """The project in a file. Raises UsageError with all its problems, each with its line and column."""
    data, places = read_placed(path)
    try:
        if isinstance(data.get("models"), dict):  # a model of which nothing is said is there already
            data["models"] = {name: {} if model is None else model for name, model in data["models"].items()}
        repository = data.get("repository", kind.model_fields["repository"].default)
        context = {"root": path.absolute().parent, "repository": str(repository)}
        project = kind.model_validate(data, context=context)
    except ValidationError as error:
        raise UsageError(problems=list(_problems(error, path, places, kind))) from None
    problems = list(_contradictions(project, path, places))
    if problems:
        raise UsageError(problems=problems)
    return project


def _problems(error: ValidationError, path: Path, places: Places, kind: type[Project]) -> list[Problem]:
    found: dict[tuple[Any, ...], Problem] = {}
    for one in error.errors():
        loc = places.known(one["loc"])
        unknown = one["type"] == "extra_forbidden"
        missing = one["type"] == "missing"
        key = str(one["loc"][-1])
        what = f"unknown key `{key}`" if unknown else f"`{key}` is missing" if missing else _said(one["msg"])
        if not (unknown or missing):
            what = f"`{'.'.join(map(str, loc))}`: {what}" if loc else what
        found.setdefault(
            (loc, what),
            Problem(
                what,
                where=f"{path}:{places.mark(loc)}",
                got=None if unknown or missing else repr(one["input"])[:60],
                hint=suggest(key, _keys_at(kind, one["loc"][:-1])) if unknown else None,
            ),
        )
    return list(found.values())


def _keys_at(kind: Any, loc: tuple[Any, ...]) -> list[str]:
    """The keys that a place of the file may have."""
    for part in loc:
        fields = {field.alias or name: field for name, field in kind.model_fields.items()} if _is_model(kind) else {}
        if part in fields:
            kind = fields[part].annotation
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        models = [arg for arg in typing.get_args(kind) if _is_model(arg)]
        kind = models[0] if models and typing.get_origin(kind) is not dict else kind
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _said(message: str) -> str:
    told = message.removeprefix("Value error, ").replace("Input should be", "expected")
    told = re.sub(
        r"\w+ should have at least (\d+) items? after validation, not \d+", r"expected at least \1 entry", told
    )
    return re.sub(r"a valid dictionary( or instance of \w+)?", "keys with values", told)


def _contradictions(project: Project, path: Path, places: Places) -> list[Problem]:
    """What the types of the values do not show: names, terms and traffic that mean nothing, keys that disagree."""
    from perf.slo import Slo
    from perf.validation import validated
    from perf.workload import Workload
    from tooling.releases import release_named
    from tooling.repository import check_model_name

    problems: list[Problem] = []

    def place(loc: tuple[Any, ...]) -> str:
        return f"{path}:{places.mark(places.known(loc))}"

    def problem(loc: tuple[Any, ...], what: str, hint: str) -> None:
        problems.append(Problem(what, where=place(loc), hint=hint))

    def attempt(loc: tuple[Any, ...], check: Callable[[], object]) -> None:
        try:
            check()
        except UsageError as error:
            problems.extend(replace(found, where=place(loc)) for found in error.problems)

    if project.release:
        attempt(("release",), partial(release_named, project.release))
    for name, model in project.models.items():
        loc = ("models", name)
        attempt(loc, partial(check_model_name, name))
        if model.slo:
            attempt((*loc, "slo"), partial(Slo.parse, [model.slo], "slo"))
        if isinstance(model.workload, dict):
            keys = {**model.workload, **({"texts": ["a"]} if isinstance(model.workload.get("texts"), str) else {})}
            attempt((*loc, "workload"), partial(validated, Workload, keys, "workload"))
        origins = [key for key in ("source", "llm", "ensemble") if getattr(model, key)]
        if len(origins) > 1:
            problem((*loc, origins[1]), f"`{origins[0]}` and `{origins[1]}` exclude each other", "keep one of them")
        if model.export and model.origin != "source":
            problem((*loc, "export"), "nothing is exported without `source`", "name the source, or leave `export` out")
        if model.tune is False and model.slo:
            problem((*loc, "slo"), "nothing is measured for it with `tune: false`", "leave one of them out")
    return problems
