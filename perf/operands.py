"""What a comparison is asked about: model directories, config files and settings, as variants of one model. Layer:
above target."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.provenance import sha256
from perf.target import Variant
from tooling.config.changes import Changes
from tooling.config.render import parse
from tooling.config.tensors import signature_of
from tooling.errors import UsageError, suggest
from tooling.repository import CONFIG_FILE, locate_model, read_config, read_text
from tooling.units import parse_duration_us

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig
    from tooling.signature.spec import ModelSignature

CURRENT = "current"
_MODEL_DIR = "a model directory REPO/NAME"
_FORMS = (
    f"a model directory, a config file, settings such as instances=2,delay=3ms, or `{CURRENT}` for the config as it is"
)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise UsageError("not a whole number", got=f"`{text}`", expected="such as 2")
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise UsageError("neither on nor off", got=f"`{text}`", expected="on or off")
    return text == "on"


_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "instances": ("instance_count", _count),
    "threads": ("intra_op_threads", _count),
    "delay": ("max_queue_delay_us", parse_duration_us),
    "max-batch-size": ("max_batch_size", _count),
    "batching": ("dynamic_batching", _switch),
}
"""Settings by the names of the options that set them elsewhere, with the knob and how its value reads."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of what is compared: as the user wrote it, and what it means. `digest` is equal for equal models with equal
    configurations."""

    label: str
    variant: Variant
    digest: str

    @property
    def files(self) -> Path:
        """The model directory, for a server of our own."""
        assert self.variant.model_dir is not None
        return self.variant.model_dir


@dataclass(frozen=True, slots=True)
class Base:
    """The model that settings refer to: its name, its own configuration, and its directory if we serve it."""

    name: str
    config: ModelConfig
    model_dir: Path | None


def base_of(words: Sequence[str], model: Path | None) -> Base:
    """The model that is named, else the first one among the words. Raises UsageError when there is none."""
    if model and not model.exists():
        raise UsageError("does not exist", where=model, expected=_MODEL_DIR)
    places = [model] if model else [Path(word) for word in words if word and Path(word).exists()]
    for place in places:
        model_dir = _model_dir(place, None)
        if model_dir:
            return Base(model_dir.name, read_config(model_dir), model_dir)
    if model:
        raise UsageError("not a model directory", where=model, expected=_MODEL_DIR)
    raise UsageError(
        "it is not said which model the settings are for",
        where=" ".join(words),
        expected=_MODEL_DIR,
        hint="give it as the first of what is compared, or with --model",
    )


def sides(words: Sequence[str], base: Base) -> list[Side]:
    """Each word as a side, the first as `A`, the others as `B1`, `B2` … Raises UsageError with all that is wrong."""
    problems, found = [], []
    for number, word in enumerate(words):
        name = f"B{number}" if number else "A"
        try:
            found.append(_side(word, name, base))
        except UsageError as error:
            problems += [
                p if p.where or p.got == f"`{word}`" else replace(p, where=f"`{word}`") for p in error.problems
            ]
    if problems:
        raise UsageError(problems=problems)
    _require_same_requests(found)
    return found


def require_whole_requests(config: ModelConfig, where: object) -> None:
    """Raise UsageError for a language model, whose streams of tokens other commands measure."""
    if config.backend in ("vllm", "tensorrtllm"):
        raise UsageError(
            "a language model answers in streams of tokens, and is not measured by whole requests",
            where=where,
            got=f"backend {config.backend}",
            hint="`tritune tune` measures and sets a vLLM engine, `tritune quality` compares answers",
        )


def _side(word: str, name: str, base: Base) -> Side:
    config, model_dir = _meant(word, base)
    require_whole_requests(config, word)
    if not config.input or not config.output:
        raise UsageError(
            "the config leaves inputs, outputs and batching to Triton, so it does not say what is compared",
            where=word,
            expected="a config that lists inputs and outputs",
            hint="generate it anew with `tritune gen-config MODEL_DIR --force`, or complete it by hand",
        )
    config.name = base.name
    file = _file_digest(model_dir) if model_dir else ""
    digest = hashlib.sha256(config.SerializeToString(deterministic=True) + file.encode()).hexdigest()
    return Side(word, Variant(name, config, model_dir), digest)


def _meant(word: str, base: Base) -> tuple[ModelConfig, Path | None]:
    """A configuration of its own that the caller may change, and whose files it is for."""
    if word == CURRENT:
        return Changes().apply(base.config), base.model_dir
    path = Path(word)
    if word and path.exists():
        return _at(path, base)
    if "=" in word:
        return _changes(word).apply(base.config), base.model_dir
    raise UsageError(
        "neither a path that is there nor a setting", got=f"`{word}`", expected=_FORMS, hint=suggest(word, [CURRENT])
    )


def _at(path: Path, base: Base) -> tuple[ModelConfig, Path | None]:
    model_dir = _model_dir(path, base.name)
    if path.is_dir():
        if model_dir is None:
            expected = f"REPO/NAME with {CONFIG_FILE} and a version such as 1/ in it"
            raise UsageError("not a model directory", where=path, expected=expected)
        if base.model_dir is None:
            raise UsageError(
                "the files of a running server are its own",
                where=path,
                expected=f"a config file, settings such as delay=3ms, or `{CURRENT}`",
            )
        return read_config(model_dir), model_dir
    config = parse(read_text(path), str(path))
    return config, (model_dir or base.model_dir) if base.model_dir else None


def _model_dir(path: Path, name: str | None) -> Path | None:
    """The model directory meant by itself, by a config in it, or by a repository with one model or with one `name`."""
    path = path.absolute()
    if path.is_file():
        owner = path.parent.parent if path.parent.name == "configs" else path.parent
        return owner if _is_model(owner) else None
    if _is_model(path):
        return path
    models = [child for child in sorted(path.iterdir()) if child.is_dir() and (child / CONFIG_FILE).is_file()]
    named = [child for child in models if child.name == name]
    return named[0] if named else models[0] if len(models) == 1 else None


def _is_model(path: Path) -> bool:
    return any(child.is_dir() and child.name.isdecimal() for child in path.iterdir())


def _changes(text: str) -> Changes:
    """`instances=2,delay=3ms` as knobs; anything else before a `=` is a field of the schema by its path."""
    knobs: dict[str, Any] = {}
    assignments: list[str] = []
    given: set[str] = set()
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        setting = _SETTINGS.get(name.replace("_", "-"))
        if name.replace("_", "-") in given and not name.endswith("+"):
            raise UsageError("a setting is given twice", where=f"`{text}`", got=f"`{name}`", hint="give each once")
        given.add(name.replace("_", "-"))
        if setting is None and not _is_field(name):
            raise UsageError(
                "no setting of this name",
                where=f"`{text}`",
                got=f"`{name}`",
                expected=f"{', '.join(_SETTINGS)}, or a field of the config",
                hint=suggest(name, _SETTINGS),
            )
        if setting is None:
            assignments.append(f"{name}={value}")
        else:
            knobs[setting[0]] = setting[1](value.strip())
    return Changes(knobs=knobs, assignments=tuple(assignments))


def _is_field(path: str) -> bool:
    from tooling.config.proto import pb

    return path.partition(".")[0].partition("[")[0].rstrip("+") in pb().ModelConfig.DESCRIPTOR.fields_by_name


def _file_digest(model_dir: Path) -> str:
    return sha256(locate_model(model_dir).file)


def _require_same_requests(found: Iterable[Side]) -> None:
    """Raise UsageError unless the same requests fit every side."""
    first: tuple[str, Any] | None = None
    for side in found:
        config = side.variant.config
        signature = signature_of(config, Path(side.label))
        wanted = (config.max_batch_size > 0, sorted((t.name, t.data_type, t.dims) for t in signature.required_inputs))
        if first and wanted != first[1]:
            raise UsageError(
                "the same requests do not fit both",
                where=f"`{first[0]}` and `{side.label}`",
                got="batching in only one of them" if wanted[0] != first[1][0] else "other inputs",
                expected="the same inputs, and max_batch_size 0 in all or in none",
            )
        first = first or (side.label, wanted)


def request_signature(base: Base) -> ModelSignature:
    """What requests must look like: from the model file where it says so, else from the config."""
    from tooling.signature.onnx_file import read_onnx

    if base.model_dir is not None:
        model = locate_model(base.model_dir)
        if model.format.backend == "onnxruntime":
            return read_onnx(model.file)
    return signature_of(base.config, base.model_dir or Path(base.name))
