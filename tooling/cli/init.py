"""`tritune init`: a commented project file, by options or by asking. Layer: cli."""

from __future__ import annotations

import json
import re
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from tooling.cli import build
from tooling.cli.app import console_of
from tooling.cli.options import CLIENTS, MOST, given
from tooling.cli.text_pipeline import Pipeline
from tooling.errors import Problem, UsageError


class Kind(str, Enum):
    """What `tritune deploy` writes."""

    COMPOSE = "compose"
    KUBERNETES = "kubernetes"


_REPOSITORY = "model_repository"
_TUNED_HERE = ("", "onnxruntime", "python")
"""Backends whose models are tuned on the embedded server, so on the CPU."""
TUNED = ("", "onnxruntime", "python", "vllm")
"""Backends whose settings are searched; "" is one that Triton finds out."""


def attach(app: typer.Typer) -> None:
    app.command()(init)


def init(
    context: typer.Context,
    file: Path = build.FILE,
    source: str | None = typer.Option(None, help="Hugging Face directory or hub id of a model to export."),
    llm: str | None = typer.Option(None, metavar="DIR", help="Hugging Face directory of a language model to serve."),
    name: str | None = typer.Option(None, help="Name of the model in the repository. Default: the source's."),
    pipeline: Pipeline | None = typer.Option(None, help="`text`: with --source, a service that takes texts."),
    repository: str | None = typer.Option(
        None, metavar="DIR", help=f"Model repository [{_REPOSITORY}]; the models in it are taken into the project."
    ),
    concurrency: int | None = typer.Option(
        None, min=1, max=MOST, help=f"Clients that each wait for an answer [{CLIENTS}]."
    ),
    request_rate: float | None = typer.Option(None, min=0.001, max=MOST, help="Requests a second instead."),
    slo: str | None = typer.Option(
        None,
        metavar="TERMS",
        help="Limits and goal, like `p99<50ms,throughput`; `ttft_p95<1s,tokens_per_s` for an LLM.",
    ),
    tune: bool = typer.Option(True, help="Measure, and choose the settings."),
    release: str | None = typer.Option(
        None, metavar="YY.MM", help="The Triton that will serve. Default: the tested one."
    ),
    owner: str | None = typer.Option(None, metavar="NAME", help="Who stands by it."),
    deploy: list[Kind] = typer.Option([], help="Write the files for a service too; may be repeated."),
    schema: bool = typer.Option(False, "--schema", help="Print the JSON schema of the project file; write nothing."),
    force: bool = typer.Option(False, "--force", help="Replace a project file that is there."),
) -> None:
    """Write a commented project file, tritune.yaml, for `tritune build`.

    What no option says is asked, on a terminal; elsewhere it has its default.
    """
    console = console_of(context)
    if schema:
        text = schema_text()
        console.result({"schema": json.loads(text)}, text)
        return
    _require_place(file, force=force)
    _refuse_unfit(given(context), tune=tune)
    place = repository or _REPOSITORY
    present = _models_in(file.parent / place)
    if name and present and not (source or llm):
        raise UsageError("the models of the repository have their names", where="--name", hint="leave it out")
    if not (source or llm or present):
        source = _ask("Model to serve (Hugging Face directory or hub id)", hint="name it with --source or --llm")
    if source and pipeline is None and _asks():
        pipeline = "text" if typer.confirm("Shall the service take texts?", default=True, err=True) else None
    if slo is None and tune and _asks():
        most = "tokens" if llm else "requests"
        slo = typer.prompt(f"Limits and goal (empty: most {most} a second)", default="", show_default=False, err=True)
    backend = "vllm" if llm else ""
    made = {"name": name or _name(source or str(llm)), "source": source, "llm": llm, "backend": backend}
    models = [made] if source or llm else present
    _require_slo(slo or "", models)
    text = _rendered(
        repository=place,
        release=release or _tested(),
        owner=owner,
        models=models,
        pipeline=pipeline,
        clients=concurrency or CLIENTS,
        rate=request_rate,
        slo=slo,
        measure=tune,
        on_cpu=tune and all(model["backend"] in _TUNED_HERE for model in models),
        tuned=TUNED,
        deploy=list(dict.fromkeys(kind.value for kind in deploy)),
    )
    _write(file, text, force=force)
    names = ", ".join(str(model["name"]) for model in models)
    console.result(
        {"file": str(file), "models": [model["name"] for model in models]},
        f"{file}  ({names})\n\nnext\n  tritune build --dry-run\n  tritune build\n  tritune serve",
    )


def _refuse_unfit(said: list[str], *, tune: bool) -> None:
    """Refuse options that exclude each other, or belong to another one."""
    if "--source" in said and "--llm" in said:
        raise UsageError("--source and --llm exclude each other", hint="give one; a second model is added in the file")
    traffic = [option for option in ("--concurrency", "--request-rate") if option in said]
    if len(traffic) > 1:
        raise UsageError("--concurrency and --request-rate exclude each other", hint="give one of them")
    if "--pipeline" in said and "--source" not in said:
        raise UsageError("belongs to a model that is exported", where="--pipeline", hint="name it with --source")
    if traffic and "--llm" in said and not tune:
        hint = f"leave {traffic[0]} out, or --no-tune"
        raise UsageError("a language model has traffic for its tuning alone", where=traffic[0], hint=hint)


def _require_slo(slo: str, models: list[dict[str, Any]]) -> None:
    """Refuse limits and goals that what is served is not judged by; they are written for each model that is tuned."""
    from perf.slo import REQUESTS, STREAMS, Slo

    where = "tritune init --slo"
    tuned = (model["backend"] for model in models if model["backend"] in TUNED)
    kinds = list(dict.fromkeys(STREAMS if backend == "vllm" else REQUESTS for backend in tuned))
    wrong: list[Problem] = []
    for kind in kinds:
        try:
            Slo.parse(slo, where, kind)
        except UsageError as error:
            wrong += error.problems
    if len(kinds) > 1 and wrong and {problem.what for problem in wrong} <= {kind.foreign for kind in kinds}:
        what, hint = "no limit or goal for all of these models", "leave it out, and write `slo` for each into the file"
        common = [metric for metric in REQUESTS.metrics if metric in STREAMS.metrics]
        raise UsageError(what, where=where, got=f"`{slo}`", expected=f"some of {', '.join(common)}", hint=hint)
    if wrong:
        raise UsageError(problems=list(dict.fromkeys(wrong)))


def schema_text() -> str:
    """The JSON schema of the project file."""
    from tooling.project.file import project_model

    found: dict[str, Any] = project_model(build.all_commands()).model_json_schema()
    return json.dumps(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}, indent=2, ensure_ascii=False
    )


def _asks() -> bool:
    """Whether somebody can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _ask(question: str, *, hint: str) -> str:
    if not _asks():
        raise UsageError(
            "what is to be served is not said, and nobody can be asked",
            where="tritune init",
            expected="a source, or a model repository",
            hint=hint,
        )
    return str(typer.prompt(question, err=True))


def _models_in(repository: Path) -> list[dict[str, Any]]:
    """The models that stand in a repository already, with their backends: by their configs, else by their files."""
    if not repository.is_dir():
        return []
    found = {path.name: _backend(path) for path in sorted(repository.iterdir()) if path.is_dir()}
    known = {name: backend for name, backend in found.items() if backend is not None}
    return [{"name": name, "source": None, "llm": None, "backend": backend} for name, backend in known.items()]


def _backend(model_dir: Path) -> str | None:
    """What serves a model; "" where its config leaves that to Triton, or cannot be read, as the build will say; None
    where a directory holds neither a config nor a model file."""
    from tooling.config.proto import backend_of
    from tooling.repository import config_path, locate_model, read_config

    present = config_path(model_dir).is_file()
    try:
        return backend_of(read_config(model_dir)) if present else locate_model(model_dir).format.backend
    except UsageError:
        return "" if present else None


def _name(source: str) -> str:
    """A model's name from its source: lower case, as Triton and file systems take it."""
    last = source.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    return re.sub(r"[^a-z0-9_.-]+", "-", last.lower()).strip("-.") or "model"


def _tested() -> str:
    from tooling.releases import current_release

    return current_release().tag


def _rendered(**values: Any) -> str:
    from tooling.config.templates import environment

    return environment().get_template("tritune.yaml.j2").render(quoted=_quoted, **values)


def _quoted(text: str) -> str:
    """A YAML string: JSON is one."""
    return json.dumps(text, ensure_ascii=False)


def _require_place(file: Path, *, force: bool) -> None:
    if file.exists() and not force:
        raise UsageError("there is a project file already", where=file, hint="edit it, or replace it with --force")


def _write(file: Path, text: str, *, force: bool) -> None:
    """Write the file, once it is known to be a right one. Raises UsageError with what is wrong with the answers."""
    import tempfile

    from tooling.repository import alone_in, directory_for, write_atomic, writing

    with tempfile.TemporaryDirectory() as scratch:
        draft = Path(scratch) / file.name
        write_atomic(draft, text)
        try:
            build.read(draft, root=file.absolute().parent)
        except UsageError as error:
            from dataclasses import replace

            raise UsageError(problems=[replace(p, where="tritune init") for p in error.problems]) from None
    with writing(file), directory_for(file.parent), alone_in(file.parent):
        _require_place(file, force=force)
        write_atomic(file, text)
