"""The project file `tritune.yaml`: its keys, and reading it with every problem at its line and column. Layer: project.

The keys of a model's `export`, `config` and `tune`, of `check` and of what is under `deploy` are the options of the
commands with these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    create_model,
)

from tooling.errors import Problem, UsageError
from tooling.project.names import Surroundings, wrong_names
from tooling.project.problems import ORIGINS, Found, Wrong, contradictions, found_in, of_file, told
from tooling.project.section import Section, existing, section_of, values_of
from tooling.project.yaml_places import read_placed
from tooling.repository import is_there

FILE_NAME = "tritune.yaml"
_FORMAT = 1
_OF_THE_FILE = ("release", "owner")
SECTIONS: Mapping[str, tuple[str, str]] = {
    "export": ("export", "repository name workload curve print_command force"),
    "config": (
        "gen-config",
        "name url model ensemble llm template hardware output stdout diff check client_sample force",
    ),
    "tune": ("tune", "workload slo study apply report url allow_reconfigure weight hardware"),
    "check": ("check", "model from_release format request url fix explain for"),
    "compose": ("deploy compose", "force study"),
    "kubernetes": ("deploy kubernetes", "force study"),
}
"""The command of each section, and its options that the file says elsewhere or that make no sense in it."""
_OF_VLLM = ("concurrency", "request_rate", "lengths", "output_lengths", "speculate", "seed")
"""The keys of `tune` for a model whose engine batches by itself."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _version(value: Any) -> Any:
    if type(value) is int and value == _FORMAT:
        return value
    newer = type(value) is int and value > _FORMAT
    what = "the file is for a newer tritune" if newer else "no format of this file"
    hint = f"update tritune, or write the keys that `tritune init` writes and `version: {_FORMAT}`"
    problem = Problem(what, got=repr(value)[:60], expected=str(_FORMAT), hint=hint if newer else "write `version: 1`")
    raise Wrong.of([problem])


def _release(value: Any) -> Any:
    from tooling.releases import release_named

    if not isinstance(value, str):
        number = isinstance(value, float)
        raise ValueError(
            f'YAML reads it as a number: put it in quotes, as in "{value:.2f}"'
            if number
            else 'expected a release in quotes, as in "24.10"'
        )
    try:
        release_named(value)
    except UsageError as error:
        raise Wrong.of(error.problems) from None
    return value


def _name(value: str) -> str:
    from tooling.config.names import name_problem

    if problem := name_problem(value):
        raise Wrong.of([problem])
    return value


def _source(value: str, info: ValidationInfo) -> str:
    from export.source import require_source

    root = (info.context or {}).get("root")
    if root is not None:
        try:
            require_source(value, root)
        except UsageError as error:
            raise Wrong.of(error.problems) from None
    return value


def _graph(value: str, info: ValidationInfo) -> str:
    """A file of a graph must be there; names of models are looked up with all other names."""
    from tooling.config.ensemble import is_graph_file

    return existing(value, info) if is_graph_file(value) else value


def _from_root(value: str, info: ValidationInfo) -> Path | None:
    """A path of the file, seen from the project's directory; None where that is not asked."""
    root = (info.context or {}).get("root")
    return None if root is None else Path(root, value)


def _directory(value: str, info: ValidationInfo) -> str:
    path = _from_root(value, info)
    if path and is_there(path) and not path.is_dir():
        raise Wrong.of([Problem("not a directory", got=value, expected="a model repository, there or to be made")])
    return value


def _traffic(value: Any, info: ValidationInfo) -> Any:
    from perf.workload import Workload
    from perf.workload_file import require_workload

    if isinstance(value, str) and value:
        existing(value, info)
        path = _from_root(value, info)
        try:
            if path and is_there(path):
                require_workload(path)
        except UsageError as error:
            raise Wrong.of(map(of_file, error.problems)) from None
        return value
    if not isinstance(value, dict) or not value:
        raise ValueError("expected the name of a workload file, or its keys, such as `{concurrency: 8}`")
    found: list[Found] = []
    texts = value.get("texts")
    try:
        Workload.model_validate({**value, "texts": ["a"]} if isinstance(texts, str) else value)
    except ValidationError as error:
        found += found_in(error, Workload)
    try:
        if isinstance(texts, str):
            existing(texts, info)
    except Wrong as error:
        found += (replace(one, loc=("texts",)) for one in error.found)
    if found:
        raise Wrong(found)
    return value


def _terms(value: Any) -> Any:
    from perf.slo import Slo

    terms = value if isinstance(value, list) else [value]
    if not terms or not all(isinstance(term, str) and term for term in terms):
        raise ValueError("expected terms such as `p99<50ms`, in one line or as a list")
    try:
        Slo.parse(terms)
    except UsageError as error:
        raise Wrong.of(error.problems) from None
    return ",".join(terms)


class _TrafficSchema:
    """For editors: the name of a file, or the keys of a workload with their ranges."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        from perf.workload import keys_schema

        return {"anyOf": [{"type": "string", "minLength": 1}, keys_schema()]}


Version = Annotated[Literal[1], BeforeValidator(_version)]
Name = Annotated[str, AfterValidator(_name)]
Place = Annotated[str, Field(min_length=1), AfterValidator(existing)]
Release = Annotated[
    Any, AfterValidator(_release), WithJsonSchema({"type": "string", "pattern": r"^[0-9]{2}\.[0-9]{2}$"})
]
Traffic = Annotated[Any, AfterValidator(_traffic), _TrafficSchema()]
Terms = Annotated[
    Any,
    AfterValidator(_terms),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            ]
        }
    ),
]


class Model(_Strict):
    """A model of the repository. One with none of `source`, `llm` and `ensemble` is there already: it is adopted."""

    source: Annotated[str, Field(min_length=1), AfterValidator(_source)] | None = Field(
        None,
        description="Hugging Face directory, hub id, or `bundled:minilm`: exported to ONNX with `tritune export`.",
    )
    llm: Place | None = Field(
        None, description="Hugging Face directory of a language model, served by vLLM or TensorRT-LLM as it is."
    )
    ensemble: Annotated[str, Field(min_length=1), AfterValidator(_graph)] | None = Field(
        None, description="Join models that stand beside it: a graph file, their names with commas, or `auto`."
    )
    owner: str | None = Field(
        None, min_length=1, description="Who stands by this model. Default: the owner of the project."
    )
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
        return next((name for name in ORIGINS if getattr(self, name)), "")


class Deploy(_Strict):
    """Where the repository is served."""

    compose: Section | None = None
    kubernetes: Section | None = None


class Project(_Strict):
    """A deployment: models, what is wanted of them, and where they are served."""

    version: Version = Field(1, description="Of this format.")
    repository: Annotated[str, Field(min_length=1), AfterValidator(_directory)] = Field(
        "model_repository", description="The model repository, made where it is not there."
    )
    release: Release | None = Field(
        None, description='The Triton that will serve it, in quotes: "24.10". Default: the tested one.'
    )
    owner: str | None = Field(
        None, min_length=1, description="Who stands by the decisions and is called by the alerts."
    )
    models: dict[Name, Model] = Field(description="The models by their names in the repository.", min_length=1)
    check: Section | None = None
    deploy: Deploy | None = None

    def model_owner(self, name: str) -> str | None:
        return self.models[name].owner or self.owner


def is_vllm(model: Model, model_dir: Path) -> bool:
    """Whether `tune` takes it for a vLLM model, which has another search."""
    if model.origin == "llm":
        return values_of(model.config).get("backend") in (None, "vllm")
    if model.origin or not (model_dir / "config.pbtxt").is_file():
        return False
    from tooling.config.proto import backend_of
    from tooling.repository import read_config

    return backend_of(read_config(model_dir)) == "vllm"


def _unused(project: Project, root: Path) -> Iterator[Found]:
    """Keys that say how a model is tuned, where its engine batches by itself and its tuning reads others."""
    hint = "say it in `tune`, as in {concurrency: 8, lengths: [16, 256], output_lengths: 64}"
    for name, model in project.models.items():
        tuned = values_of(model.tune).keys()
        if values_of(model.config).get("backend") == "tensorrtllm" and model.origin == "llm":
            if model.tune is not False:
                yield Found(("models", name), Problem("a TensorRT-LLM model is not tuned", hint="say `tune: false`"))
        elif (model.workload is not None or tuned) and _surely_vllm(model, root / project.repository / name):
            if model.workload is not None:
                yield Found(("models", name, "workload"), Problem("not for a vLLM model", hint=hint))
            for key in tuned - set(_OF_VLLM):
                what = Problem("not for a vLLM model", expected=", ".join(_OF_VLLM), hint="leave it out")
                yield Found(("models", name, "tune", key), what)


def _foreign(project: Project, root: Path) -> Iterator[Found]:
    """Limits and goals of figures that the model's tuning does not measure."""
    from perf.slo import FORMS, REQUESTS, STREAMS, Slo

    for name, model in project.models.items():
        if model.slo is None:
            continue
        requests = FORMS if values_of(model.tune).get("also") else REQUESTS
        engine = _surely_vllm(model, root / project.repository / name)
        try:
            Slo.parse(model.slo, of=STREAMS if engine else requests)
        except UsageError as error:
            yield from (Found(("models", name, "slo"), problem) for problem in error.problems)


def _surely_vllm(model: Model, model_dir: Path) -> bool:
    try:
        return is_vllm(model, model_dir)
    except UsageError:  # whatever is wrong with its config is for the commands to say
        return False


def project_model(commands: Mapping[str, Callable[..., Any]]) -> type[Project]:
    """`Project` with the options of `commands` (by name, `deploy compose` with its group) in the sections."""

    def section(key: str, description: str, extra: Mapping[str, Any] | None = None, also: Any = None) -> Any:
        command, hidden = SECTIONS[key]
        made = section_of(key.capitalize(), commands[command], {*hidden.split(), *_OF_THE_FILE}, extra)
        kind = made | also if also is not None else made
        return (kind | None, Field(None, description=f"{description} Keys: options of `tritune {command}`."))

    output = {
        key: {
            "output": (
                str,
                Field(f"deploy/{key}", description="Where the files go.", validate_default=True, min_length=1),
            )
        }
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
        models=(dict[Name, model], Field(description=Project.model_fields["models"].description, min_length=1)),  # type: ignore[valid-type]
        check=section("check", "The verdict before anything is measured or deployed."),
        deploy=(cast(Any, deploy | None), Field(None, description="The files that put the repository into service.")),
    )


def read_project(path: Path, kind: type[Project], root: Path | None) -> Project:
    """The project in a file. What it names must be there, seen from `root`; with None that is not asked.

    Raises UsageError with all its problems, each with its line and column.
    """
    data, places = read_placed(path)
    models = data.get("models")
    if isinstance(models, dict):  # a model of which nothing is said is there already
        data["models"] = {name: {} if model is None else model for name, model in models.items()}
    repository = data.get("repository", kind.model_fields["repository"].default)
    found = list(contradictions(models))
    if root is not None:
        from tooling.repository import cpu_name

        found += wrong_names(data, Surroundings(root, str(repository), cpu_name()), Model.model_fields)
    try:
        project = kind.model_validate(data, context={"root": root, "repository": str(repository)})
    except ValidationError as error:
        found += found_in(error, kind)
    else:
        if root is not None and not found:
            found += [*_unused(project, root), *_foreign(project, root)]
        if not found:
            return project
    raise UsageError(problems=told(found, path, places))
