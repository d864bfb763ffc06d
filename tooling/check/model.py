"""One model directory as the rules see it: what is written, and what Triton makes of it. Layer: check."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from tooling.check.completion import complete
from tooling.check.files import closed, exists, is_file, read_limited
from tooling.check.fill import ENSEMBLE, Instances, fill_backend, instances, normalise
from tooling.check.finding import Finding, Place, Rule
from tooling.check.target import Target
from tooling.check.text import LARGEST, ConfigText
from tooling.config.proto import ModelConfig, pb
from tooling.errors import Problem, UsageError
from tooling.repository import CONFIG_FILE, config_path
from tooling.signature.onnx_graph import OnnxGraph, read_graph
from tooling.signature.spec import ModelSignature

_NOT_VERSIONS: Final = ("warmup", "initial_state", "configs")
_NUMBER_FIRST: Final = re.compile(r"\s*[+-]?\d+")


@dataclass(frozen=True, slots=True)
class Version:
    """A directory that Triton takes for version `number`; only for a plain number does it also look for files there."""

    number: int
    directory: str

    @property
    def plain(self) -> bool:
        return self.directory == str(self.number)


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """The ONNX file of one version; without a graph, `problems` say why it could not be read."""

    path: Path
    graph: OnnxGraph | None
    problems: tuple[Problem, ...] = ()


@dataclass
class Model:
    """A model directory. `shown` is its path as messages show it; `siblings` are the repository's models by name."""

    directory: Path
    shown: str
    target: Target
    text: ConfigText | None = None
    unreadable: str | None = None
    """What cannot be read, and why: the config, when it is there, or a directory."""
    too_large: bool = False
    siblings: Mapping[str, Model] = field(default_factory=dict, repr=False)
    refusals: Mapping[str, Finding] = field(default_factory=dict, repr=False)
    """What Triton refuses models of the repository for, of those that were judged before this one."""

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def entries(self) -> dict[str, bool]:
        """What lies in the model directory: names, True for directories."""
        return list_directory(self.directory)

    @cached_property
    def written(self) -> ModelConfig:
        """The config as it is written; an empty one where there is none."""
        return self.text.message() if self.text else pb().ModelConfig()

    @cached_property
    def readable(self) -> bool:
        """Whether Triton's parser takes the config, or there is none."""
        return not self.too_large and self.unreadable is None and (self.text is None or self.text.document.accepted)

    @cached_property
    def _filled(self) -> tuple[ModelConfig, bool]:
        config = pb().ModelConfig()
        config.CopyFrom(self.written)
        first = min((name for name, is_directory in self.entries.items() if is_directory), default=None)
        files = list_directory(self.directory / first) if first is not None else {}
        known = fill_backend(config, self.name, files, self.target.release.tag)
        normalise(config)
        return config, known

    @property
    def config(self) -> ModelConfig:
        """The config as the core judges it: backend and defaults filled in."""
        return self._filled[0]

    @property
    def backend_known(self) -> bool:
        return self._filled[1]

    @property
    def is_ensemble(self) -> bool:
        return bool(self.config.platform == ENSEMBLE or self.config.HasField("ensemble_scheduling"))

    @property
    def batching(self) -> bool:
        return bool(self.completed.max_batch_size > 0)

    @cached_property
    def completed(self) -> ModelConfig:
        """The config in force once loaded: completed by the backend where it would be."""
        if self.config.backend != "onnxruntime" or self.target.strict or self.signature is None:
            return self.config
        return complete(self.config, self.signature, self.target.default_max_batch_size) or self.config

    @property
    def signature(self) -> ModelSignature | None:
        """The signature of the first ONNX file that could be read."""
        return next((file.graph.signature for file in self.onnx_files if file.graph and file.graph.signature), None)

    @property
    def graph(self) -> OnnxGraph | None:
        return next((file.graph for file in self.onnx_files if file.graph), None)

    @cached_property
    def instances(self) -> list[Instances]:
        return instances(self.config, self.target.gpus)

    @cached_property
    def versions(self) -> list[Version]:
        """The directories that Triton takes for versions, lowest first."""
        found = []
        for name, is_directory in self.entries.items():
            number = _NUMBER_FIRST.match(name)
            if is_directory and number and name not in _NOT_VERSIONS and not _leading_zero(name):
                found.append(Version(int(number[0]), name))
        return sorted(found, key=lambda version: version.number)

    @cached_property
    def served(self) -> list[Version]:
        """The versions that the version policy chooses."""
        policy = self.config.version_policy
        if policy.HasField("latest"):
            count = policy.latest.num_versions
            return self.versions[-count:] if count else []
        if policy.HasField("specific"):
            return [version for version in self.versions if version.number in policy.specific.versions]
        return self.versions

    def version_dir(self, version: Version) -> Path:
        return self.directory / str(version.number)

    @cached_property
    def onnx_files(self) -> list[OnnxFile]:
        """The ONNX files of the served versions that exist; none for another backend."""
        if self.config.backend != "onnxruntime":
            return []
        paths = (onnx_path(self, version) for version in self.served)
        return [read_file(path) for path in paths if is_file(path)]

    def find(
        self,
        rule: Rule,
        message: str,
        *path: str | int,
        says: str | None = None,
        hint: str | None = None,
        fix: tuple[str, ...] = (),
        place: Place | None = None,
    ) -> Finding:
        """A finding about a field of the config, or about `place`."""
        if place is None:
            place = self.text.place(path) if self.text else Place(self.config_name)
        return Finding(rule, place, message, self.name, says, hint, fix)

    @property
    def config_name(self) -> str:
        return self.text.name if self.text else f"{self.shown}/{CONFIG_FILE}"

    def shown_path(self, path: Path) -> str:
        """A path inside the model directory, as messages show it."""
        try:
            return f"{self.shown}/{path.relative_to(self.directory)}"
        except ValueError:
            return str(path)


def onnx_path(model: Model, version: Version) -> Path:
    """The ONNX file of a version; with external data `model.onnx` may be a directory that holds it."""
    path = model.version_dir(version) / (model.config.default_model_filename or "model.onnx")
    return path / "model.onnx" if path.is_dir() else path


def read_file(path: Path) -> OnnxFile:
    try:
        return OnnxFile(path, read_graph(path))
    except UsageError as error:
        return OnnxFile(path, None, error.problems)


def list_directory(directory: Path) -> dict[str, bool]:
    """Names in a directory, sorted, True for directories; empty when it cannot be read."""
    return dict(sorted(_scan(directory)))


def _scan(directory: Path) -> Iterator[tuple[str, bool]]:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    yield entry.name, entry.is_dir()
                except OSError:  # a loop of links
                    yield entry.name, False
    except OSError:
        return


def _leading_zero(name: str) -> bool:
    return len(name) > 1 and name.startswith("0")


def read_model(directory: Path, shown: str, target: Target, config: Path | None = None) -> Model:
    """A model directory with its config: `config`, else that of `--model-config-name`, else config.pbtxt."""
    model = Model(directory, shown, target)
    model.unreadable = _closed(directory)
    if model.unreadable is not None:
        return model
    own = config_path(directory, target.config_name) if target.config_name else None
    path = config or (own if own is not None and is_file(own) else directory / CONFIG_FILE)
    if not exists(path) and not path.is_symlink():
        return model
    name = model.shown_path(path) if config is None else str(config)
    try:
        source = read_limited(path, LARGEST)
        model.too_large = source is None
        model.text = None if source is None else ConfigText.of(name, path, source)
    except OSError as error:
        model.unreadable = f"{path.name} cannot be read: {error.strerror or error}"
    return model


def _closed(directory: Path) -> str | None:
    """The model directory, or a directory in it that may be a version, whose entries cannot be seen; None without."""
    reason = closed(directory)
    if reason is not None:
        return f"{directory.name}/ cannot be read: {reason}"
    for name, is_directory in list_directory(directory).items():
        reason = closed(directory / name) if is_directory and name[:1].isdecimal() else None
        if reason is not None:
            return f"{directory.name}/{name}/ cannot be read: {reason}"
    return None
