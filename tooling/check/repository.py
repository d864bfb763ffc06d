"""What a path names: a repository, a model directory, a config or an ONNX file. Layer: check."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tooling.check.files import closed
from tooling.check.fill import MODEL_FILES
from tooling.check.model import Model, list_directory, read_model
from tooling.check.target import Target
from tooling.errors import UsageError, suggest
from tooling.repository import CONFIG_FILE, absolute

_CONFIG_SUFFIXES: Final = (".pbtxt", ".j2", ".jinja", ".jinja2", ".template", ".tmpl", ".tpl", ".in", ".txt", ".conf")


@dataclass(frozen=True, slots=True)
class Repository:
    """Models by name, and those of them that are to be judged. `is_model` when the path itself is a model directory."""

    root: Path
    shown: str
    models: dict[str, Model]
    judged: tuple[str, ...]
    is_model: bool = False
    onnx: Path | None = None
    entries: dict[str, bool] = field(default_factory=dict)


def read_repository(path: Path, target: Target, names: Collection[str] = ()) -> Repository:
    """What stands at a path; `names` choose models of a repository.

    Raises UsageError when there is nothing to judge, or a name is no model of it.
    """
    shown = os.fspath(path)
    if not path.exists():
        raise UsageError("does not exist", where=path, expected="a model repository, or a file of one")
    reason = closed(path)
    if reason is not None:
        raise UsageError("cannot be read", where=path, got=reason, expected="a directory that may be listed")
    if path.is_file():
        return _of_file(path, target)
    entries = list_directory(path)
    if _is_model(path, entries):
        return replace(_of_model(path, target, path / CONFIG_FILE), is_model=True)
    models = {name: read_model(path / name, f"{shown}/{name}", target) for name, is_dir in entries.items() if is_dir}
    for model in models.values():
        model.siblings = models
    for name in names:
        if name not in models:
            raise UsageError(
                "no such model in the repository",
                where=path,
                got=f"`{name}`",
                expected=", ".join(models) or "a directory per model",
                hint=suggest(name, models),
            )
    return Repository(path, shown, models, tuple(names) or tuple(models), entries=entries)


def _is_model(path: Path, entries: dict[str, bool]) -> bool:
    """A config of its own, or versions with model files, make a directory a model."""
    if CONFIG_FILE in entries:
        return True
    versions = [name for name, is_dir in entries.items() if is_dir and name.isdecimal()]
    return bool(versions) and all(_has_model_file(path / name) for name in versions)


def _has_model_file(directory: Path) -> bool:
    return any((directory / file).exists() for file in MODEL_FILES.values())


def _of_model(directory: Path, target: Target, config: Path | None) -> Repository:
    """One model, with its neighbours at hand for an ensemble."""
    directory = absolute(directory) if directory.name in ("", "..") else directory
    shown = os.fspath(directory)
    own = config if config is not None and config != directory / CONFIG_FILE else None
    model = read_model(directory, shown, target, own)
    models = {model.name: model}
    if model.is_ensemble:
        for name in _neighbours(directory):
            models.setdefault(name, read_model(directory.parent / name, f"{directory.parent}/{name}", target))
    for one in models.values():
        one.siblings = models
    return Repository(directory, shown, models, (model.name,))


def _neighbours(directory: Path) -> Iterator[str]:
    parent = absolute(directory).parent
    yield from (name for name, is_dir in list_directory(parent).items() if is_dir)


def _of_file(path: Path, target: Target) -> Repository:
    if path.suffix == ".onnx":
        if path.parent.name.isdecimal() and path.name == MODEL_FILES["onnxruntime"]:
            return _of_model(absolute(path).parent.parent, target, None)
        return Repository(path.parent, os.fspath(path), {}, (), onnx=path)
    if path.suffix not in _CONFIG_SUFFIXES:
        raise UsageError(
            "neither a config nor an ONNX file",
            where=path,
            expected=f"{CONFIG_FILE}, model.onnx, or a directory of models",
        )
    folder = absolute(path).parent
    return _of_model(folder.parent if folder.name == "configs" else folder, target, path)
