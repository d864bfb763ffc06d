"""What a config is made from: a model file, a running server, a template, or other models. Layer: cli."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.errors import UsageError

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig
    from tooling.signature.declared import Declared
    from tooling.signature.spec import ModelSignature

_TEMPLATE_BATCH = 8
_GRAPH_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Source:
    """A signature, the name and the directory of its model, and files to write beside its config.

    `file` is what `default_model_filename` must say; `model_dir` is None for a model that stands in no repository.
    """

    signature: ModelSignature
    name: str
    model_dir: Path | None
    file: str = ""
    files: Mapping[Path, bytes] = field(default_factory=dict)


def from_file(model: Path, backend: str | None, declared: Declared) -> Source:
    """A model directory, a version directory or a model file."""
    from tooling.repository import locate_model
    from tooling.signature.formats import read_signature

    found = locate_model(model, backend)
    signature = read_signature(found.file, found.format.backend, declared)
    return Source(signature, found.name, found.model_dir, found.default_filename)


def from_server(url: str, remote_name: str | None, model_dir: Path | None) -> Source:
    """A model that a server has loaded; its config goes to `model_dir`."""
    from tooling.server.remote_signature import read_remote

    name = remote_name or (model_dir.absolute().name if model_dir else None)
    if name is None:
        raise UsageError(
            "the model is not named", where="--url", hint="give --model NAME, or the directory to write to"
        )
    if not url.rpartition(":")[2].isdecimal():
        raise UsageError("not HOST:PORT", where="--url", got=f"`{url}`", expected="such as localhost:8000")
    return Source(read_remote(url, name), name, model_dir.absolute() if model_dir else None)


def from_template(model_dir: Path, declared: Declared, max_batch_size: int | None, *, force: bool) -> Source:
    """A Python model that does not exist yet: its text from the template, its signature from that text."""
    from tooling.config.samples import python_model
    from tooling.signature.declared import Declared
    from tooling.signature.python_model import read_python_text

    model_dir = model_dir.absolute()
    path = model_dir / "1" / "model.py"
    if path.exists() and not force:
        raise UsageError(
            "the model is there already", where=path, hint="leave --template out, or overwrite with --force"
        )
    batchable = all(tensor.can_batch for tensor in (*declared.inputs, *declared.outputs))
    batch = max_batch_size if max_batch_size is not None else _TEMPLATE_BATCH if batchable else 0
    text = python_model(model_dir.name, declared, batch).encode()
    return Source(read_python_text(text, path, Declared()), model_dir.name, model_dir, files={path: text})


def ensemble(model_dir: Path, what: str) -> tuple[ModelConfig, Mapping[Path, bytes]]:
    """The config of an ensemble of models that stand beside `model_dir`, and the files of its empty version.

    `what` is a graph file, the models' names with commas between, or `auto` for all models beside it.
    """
    from tooling.config.ensemble import build_ensemble, infer_graph, parse_graph
    from tooling.config.yaml_file import read_yaml

    if what.endswith(_GRAPH_SUFFIXES):
        graph = parse_graph(read_yaml(Path(what)), what)
        models = _configs(model_dir, [step.model for step in graph.steps])
    else:
        names = [] if what == "auto" else [name.strip() for name in what.split(",")]
        models = _configs(model_dir, names or None)
        graph = infer_graph(models, names)
    files = {} if any(_versions(model_dir)) else {model_dir / "1" / ".gitkeep": b""}  # Git drops empty directories
    return build_ensemble(model_dir.name, graph, models), files


def _versions(model_dir: Path) -> list[Path]:
    return [d for d in model_dir.iterdir() if d.name.isdecimal() and d.is_dir()] if model_dir.is_dir() else []


def _configs(model_dir: Path, names: list[str] | None) -> dict[str, ModelConfig]:
    """Configs of the models beside `model_dir`: those named, or all but ensembles."""
    from tooling.repository import config_path, read_config

    repository = model_dir.parent
    if not repository.is_dir():
        raise UsageError("not a model repository", where=repository, expected="a directory with a directory per model")
    found = {}
    for child in sorted(repository.iterdir()):
        if child == model_dir or not config_path(child).is_file() or (names is not None and child.name not in names):
            continue
        config = read_config(child)
        if names is None and config.platform == "ensemble":
            continue
        config.name = child.name
        found[child.name] = config
    return found
