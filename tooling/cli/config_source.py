"""What a config is made from: a model file, a running server, a template, other models, or a config. Layer: cli."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.errors import UsageError

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig
    from tooling.repository import ModelFile
    from tooling.signature.declared import Declared
    from tooling.signature.spec import ModelSignature

_TEMPLATE_BATCH = 8


@dataclass(frozen=True, slots=True)
class Source:
    """The name and the directory of a model, its signature or else its config, and files to write beside that.

    `file` is what `default_model_filename` must say; `model_dir` is None for a model that stands in no repository. A
    `joined` config is an ensemble that was asked for; any other is the one that stands in the directory. `notes` are to
    be told, `commands` to be run where there is a GPU.
    """

    name: str
    model_dir: Path | None
    signature: ModelSignature | None = None
    config: ModelConfig | None = None
    joined: bool = False
    file: str = ""
    files: Mapping[Path, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    @property
    def where(self) -> Path | None:
        """The model's file, else its directory: what messages name."""
        return self.signature.path if self.signature else self.model_dir


def from_file(model: Path, backend: str | None, declared: Declared) -> Source:
    """A model directory, a version directory or a model file.

    A directory whose config names an ensemble, or a backend whose files nobody here can read, is its config.
    """
    from tooling.repository import absolute, locate_model

    config = _config_alone(model) if backend is None else None
    if config is not None:
        if declared:
            raise UsageError(
                "the config says itself what the model takes and gives",
                where=model,
                hint="leave --input and --output-tensor out, or change what stands there with --set",
            )
        model_dir = absolute(model)
        return Source(model_dir.name, model_dir, config=config)
    found = locate_model(model, backend, ensembles=True)
    return Source(found.name, found.model_dir, _signature(found, declared), file=found.default_filename)


def _config_alone(model: Path) -> ModelConfig | None:
    """The config of a directory that holds no model file of a known format, by its own word."""
    from tooling.config.proto import backend_of
    from tooling.signature.formats import FORMATS

    config = _readable_config(model)
    if config is None:
        return None
    known = ("", *(known.backend for known in FORMATS))
    return config if config.platform == "ensemble" or backend_of(config) not in known else None


def _readable_config(model_dir: Path) -> ModelConfig | None:
    """The `config.pbtxt` of a model directory; None where there is none, or one that cannot be used."""
    from tooling.config.proto import nameless
    from tooling.repository import config_path, read_config

    try:
        config = read_config(model_dir) if config_path(model_dir).is_file() else None
    except UsageError:
        return None
    return None if config is None or any(nameless(config)) else config


def _signature(found: ModelFile, declared: Declared) -> ModelSignature:
    """The signature of a model file; where it does not say its tensors, those of the config that stands there."""
    from tooling.config.tensors import tensor_spec
    from tooling.signature.declared import Declared, TensorsMissing
    from tooling.signature.formats import read_signature

    try:
        return read_signature(found.file, found.format.backend, declared)
    except TensorsMissing:
        config = _readable_config(found.model_dir) if found.model_dir else None
        if declared or config is None or not (config.input and config.output):
            raise
        batching = config.max_batch_size > 0
        present = Declared(
            tuple(tensor_spec(tensor, batching=batching) for tensor in config.input),
            tuple(tensor_spec(tensor, batching=batching) for tensor in config.output),
        )
        return read_signature(found.file, found.format.backend, present)


def from_server(url: str, remote_name: str | None, model_dir: Path | None) -> Source:
    """A model that a server has loaded; its config goes to `model_dir`."""
    from tooling.repository import absolute
    from tooling.server.client import address
    from tooling.server.remote_signature import read_remote

    model_dir = absolute(model_dir) if model_dir else None
    name = remote_name or (model_dir.name if model_dir else None)
    if name is None:
        raise UsageError(
            "the model is not named", where="--url", hint="give --model NAME, or the directory to write to"
        )
    return Source(name, model_dir, read_remote(address(url), name))


def from_template(
    model_dir: Path, declared: Declared, max_batch_size: int | None, *, decoupled: bool, force: bool
) -> Source:
    """A Python model that does not exist yet: its text from the template, its signature from that text."""
    from tooling.config.samples import python_model
    from tooling.repository import absolute
    from tooling.signature.declared import Declared
    from tooling.signature.python_model import read_python_text

    model_dir = absolute(model_dir)
    path = model_dir / "1" / "model.py"
    if path.exists() and not force:
        raise UsageError(
            "the model is there already", where=path, hint="leave --template out, or overwrite with --force"
        )
    batchable = all(tensor.can_batch for tensor in (*declared.inputs, *declared.outputs))
    batch = max_batch_size if max_batch_size is not None else _TEMPLATE_BATCH if batchable else 0
    text = python_model(model_dir.name, declared, batch, decoupled=decoupled).encode()
    return Source(model_dir.name, model_dir, read_python_text(text, path, Declared()), files={path: text})


def from_models(model_dir: Path, what: str) -> Source:
    """An ensemble of models that stand beside `model_dir`, and the files of its empty version.

    `what` is a graph file, the models' names with commas between, or `auto` for all models beside it.
    """
    from tooling.config.ensemble import build_ensemble, infer_graph, is_graph_file, models_named, parse_graph
    from tooling.config.yaml_file import read_yaml
    from tooling.repository import absolute

    model_dir = absolute(model_dir)
    if is_graph_file(what):
        graph = parse_graph(read_yaml(Path(what)), what)
        models = _configs(model_dir, [step.model for step in graph.steps])
    else:
        names = list(models_named(what))
        models = _configs(model_dir, names or None)
        graph = infer_graph(models, names)
    files = {} if any(_versions(model_dir)) else {model_dir / "1" / ".gitkeep": b""}  # Git drops empty directories
    config = build_ensemble(model_dir.name, graph, models)
    return Source(model_dir.name, model_dir, config=config, joined=True, files=files)


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
