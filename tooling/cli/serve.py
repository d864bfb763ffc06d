"""`tritune serve`: a real Triton over a repository, on this machine, until it is stopped. Layer: cli."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tooling.cli.app import console_of
from tooling.console import Console
from tooling.errors import Problem, Refused, UsageError

if TYPE_CHECKING:
    from tooling.server import EmbeddedServer

_AUTO = "auto"
_NO_BACKEND = re.compile(r"unable to find backend library for backend '(\w+)'")


def attach(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    context: typer.Context,
    repository: Path | None = typer.Argument(
        None, metavar="REPO", help="Model repository: one directory per model. Default: that of tritune.yaml, as tuned."
    ),
    model: list[str] = typer.Option([], "--model", metavar="NAME", help="Load this model only; may be repeated."),
    config_name: str = typer.Option(
        "", "--config-name", metavar="NAME|auto", help="Take configs/NAME.pbtxt where it exists; auto: this hardware's."
    ),
    http_port: int = typer.Option(8000, "--http-port", min=0, max=65535, help="Port of HTTP; 0 takes any free one."),
    grpc_port: int = typer.Option(8001, "--grpc-port", min=0, max=65535, help="Port of gRPC; 0 takes any free one."),
    metrics_port: int = typer.Option(
        8002, "--metrics-port", min=0, max=65535, help="Port of the metrics; 0 takes any free one."
    ),
    strict: bool = typer.Option(
        False, "--strict", help="Complete no config (--disable-auto-complete-config): every load is a second faster."
    ),
    keep_going: bool = typer.Option(False, "--keep-going", help="Serve the other models when some are refused."),
) -> None:
    """Serve a model repository with the embedded Triton on 127.0.0.1 until Ctrl-C.

    Exit 1 when Triton refuses a model (its reason is shown), 2 when a port is taken, 4 when the server dies.
    """
    from tooling.runtime import find_runtime
    from tooling.server import EmbeddedServer, ServerOptions
    from tooling.server.flags import flags_of

    console = console_of(context)
    if repository is None:
        repository, config_name = _of_project(), config_name or _AUTO
    flags = flags_of(repository, _config_name(repository, config_name))
    _require_files(repository, model, flags.config_name)
    options = ServerOptions(http_port, grpc_port, metrics_port, strict_config=strict, flags=flags)
    with EmbeddedServer(repository, find_runtime(), options) as server:
        refusals = _load(server, model or _all_models(server, repository), console)
        loaded = [name for name, reason in refusals.items() if reason is None]
        refused = {name: reason for name, reason in refusals.items() if reason is not None}
        if refused and not (keep_going and loaded):
            hints = {n: _hint(repository / n, r, flags.config_name, strict, keep_going) for n, r in refused.items()}
            raise Refused(
                problems=[Problem(r, where=f"Triton refused `{n}`", hint=hints[n]) for n, r in refused.items()]
            )
        for name, reason in refused.items():
            console.warning(f"Triton refused `{name}`: {reason}")
        data, text = _described(server, repository, flags.config_name, loaded)
        console.result({**data, "refused": refused}, text)
        if console.json:  # the object comes at the end; this says that the server is ready
            console.info(text)
        server.watch()


def _require_files(repository: Path, names: list[str], config_name: str | None) -> None:
    """Raise UsageError for a config that is a directory or a device: tritonserver dies of it."""
    from tooling.repository import config_path, is_there

    if not repository.is_dir():  # the server's start says so
        return
    asked = [repository / name for name in names] or sorted(repository.iterdir())
    wrong = [
        path
        for model_dir in asked
        for path in {config_path(model_dir), config_path(model_dir, config_name)}
        if is_there(path) and not path.is_file()
    ]
    if wrong:
        raise UsageError(
            problems=[
                Problem("not a regular file", where=str(path), expected="a config", hint="put a text file in its place")
                for path in wrong
            ]
        )


def _of_project() -> Path:
    """The repository of the project here. Raises UsageError where there is none."""
    from tooling.cli import build

    file = Path(build.FILE.default)
    if not file.exists():
        raise UsageError(
            "no repository is named, and there is no project here",
            where="REPO",
            expected=f"a model repository, or a {file} in this directory",
            hint="name the repository, or write a project with `tritune init`",
        )
    return Path(build.read(file, files=False).repository)


def _hint(model_dir: Path, reason: str, config_name: str | None, strict: bool, keep_going: bool) -> str | None:
    """What to do about a refused model: make its weights where there is no version of it at all, name them where its
    engine looks for them, complete its config where Triton is not to, serve it in the container that has its backend.
    """
    if not any(entry.name.isdecimal() for entry in model_dir.iterdir()):
        where = shlex.quote(str(model_dir.parent))
        return f"the model has no version yet: `tritune export SOURCE --repository {where} --name {model_dir.name}`"
    if strict and _incomplete(model_dir, config_name):
        return "list every input and output in its config, or leave --strict out"
    return (
        _in_container(model_dir, reason)
        or _elsewhere(model_dir)
        or (None if keep_going else "correct the model, or serve the others with `--keep-going`")
    )


def _in_container(model_dir: Path, reason: str) -> str | None:
    """Where a model runs whose backend the embedded server has not."""
    from tooling.cli.llm_source import serving
    from tooling.deploy.image import image_of
    from tooling.deploy.needs import ON_GPU, VARIANTS
    from tooling.releases import current_release

    if any(model_dir.glob("*/model.yaml")) and "without its code" in reason:
        return (
            "it is TensorRT-LLM's LLM API, which needs an NVIDIA GPU: the commands that `tritune gen-config` printed "
            "copy its code from the container's image, and serve it"
        )
    found = _NO_BACKEND.search(reason)
    if found is None:
        return None
    image = image_of(current_release(), VARIANTS.get(found[1], "py3"))
    needs = "an NVIDIA GPU" if found[1] in ON_GPU else "a container"
    engines = [Path(text) for text in _engine_paths(model_dir)]
    command = serving(model_dir.parent.absolute(), image, *engines, gpus=found[1] in ON_GPU)
    return f"the embedded server has no {found[1]} backend, which needs {needs}: `{command}`"


def _engine_paths(model_dir: Path) -> list[str]:
    """The absolute paths that the config of a TensorRT-LLM engine names."""
    from tooling.repository import read_config

    given = read_config(model_dir).parameters
    named = (given[key].string_value for key in ("gpt_model_path", "encoder_model_path") if key in given)
    return [text for text in named if text.startswith("/")]


def _elsewhere(model_dir: Path) -> str | None:
    """What the arguments of a vLLM model should say in place of a directory's name that they take for an id."""
    from tooling.check.files import json_object
    from tooling.llm.model_place import misread

    files = [entry / "model.json" for entry in model_dir.iterdir() if entry.name.isdecimal()]
    found = (misread(json_object(file) or {}, file) for file in files)
    return next((f"in {file}: {hint}" for file, hint in zip(files, found, strict=True) if hint), None)


def _incomplete(model_dir: Path, config_name: str | None) -> bool:
    """Whether there is no config, or one that leaves something to Triton."""
    from tooling.check.completion import leaves_out
    from tooling.repository import config_path, read_config

    try:
        config = read_config(model_dir, config_name)
    except UsageError:
        return not config_path(model_dir).exists()
    return leaves_out(config) or not (config.backend or config.platform)


def _config_name(repository: Path, asked: str) -> str | None:
    from tooling.repository import config_path, cpu_name
    from tooling.server.flags import require_config_name

    if asked != _AUTO:
        require_config_name(repository, asked or None)
        return asked or None
    hardware = cpu_name()
    there = repository.is_dir() and any(config_path(model, hardware).is_file() for model in repository.iterdir())
    return hardware if there else None


def _all_models(server: EmbeddedServer, repository: Path) -> list[str]:
    if names := server.models():
        return names
    raise UsageError(
        "no model in this repository",
        where=repository,
        expected="directories with a `config.pbtxt` or a model file such as `1/model.onnx`",
        hint="make one with `tritune export SOURCE --repository REPO --name NAME`",
    )


def _load(server: EmbeddedServer, names: list[str], console: Console) -> dict[str, str | None]:
    """Load every model; for each Triton's reason when it was refused, else None."""
    reasons: dict[str, str | None] = {}
    with console.progress("loading", len(names)) as progress:
        for name in names:
            try:
                server.load(name)
            except Refused as error:
                reasons[name] = error.problems[0].what
                progress.step(f"{name} refused")
            else:
                reasons[name] = None
                progress.step(f"{name} loaded")
    return reasons


def _described(
    server: EmbeddedServer, repository: Path, config_name: str | None, loaded: list[str]
) -> tuple[dict[str, Any], str]:
    from tooling.server.example import curl_example

    curl = curl_example(server.http_url, loaded[0], server.model_config(loaded[0]))
    data = {
        "repository": str(repository),
        "config_name": config_name,
        "http_url": server.http_url,
        "grpc_url": server.grpc_url,
        "metrics_url": server.metrics_url,
        "log": str(server.log_path),
        "models": loaded,
        "curl": curl,
    }
    configs = f"configs/{config_name}.pbtxt where it exists, else config.pbtxt" if config_name else "config.pbtxt"
    tuned = None if config_name else _config_name(repository, _AUTO)
    if tuned:
        configs += f"; configs/{tuned}.pbtxt, made for this hardware, is left aside: take it with --config-name auto"
    lines = [
        f"serving {repository} until Ctrl-C",
        f"  HTTP     http://{server.http_url}",
        f"  gRPC     {server.grpc_url}",
        f"  metrics  http://{server.metrics_url}/metrics",
        f"  log      {server.log_path}",
        f"  models   {', '.join(loaded)}",
        f"  config   {configs}",
        "try it:",
        f"  {curl}",
    ]
    return data, "\n".join(lines)
