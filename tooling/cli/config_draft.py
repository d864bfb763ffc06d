"""From what a person asks of gen-config to a finished config and the files it needs. Layer: cli."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tooling.console import Console
from tooling.errors import UsageError

if TYPE_CHECKING:
    from tooling.cli.config_source import Source
    from tooling.config.knobs import Knobs
    from tooling.config.proto import ModelConfig
    from tooling.releases import Release
    from tooling.signature.spec import ModelSignature

_DEFAULT_BATCH = 8


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked for, beside the model itself. `max_batch_size` None is for the model and the file to say."""

    knobs: Knobs
    max_batch_size: int | None = None
    name: str | None = None
    settings_file: Path | None = None
    release: str | None = None
    warmup: tuple[str, ...] = ()
    tokenizer: Path | None = None

    def settings(self) -> dict[str, Any]:
        from tooling.config.yaml_file import read_yaml

        return read_yaml(self.settings_file) if self.settings_file else {}

    def triton(self) -> Release:
        from tooling.releases import default_release, release_named

        return release_named(self.release) if self.release else default_release()


@dataclass(frozen=True, slots=True)
class Draft:
    """A finished config, its model's directory and file, files to write beside it, and what is to be said about it."""

    config: ModelConfig
    model_dir: Path | None
    model: Path
    files: Mapping[Path, bytes] = field(default_factory=dict)
    advice: tuple[str, ...] = ()


def model_draft(source: Source, ask: Ask, console: Console) -> Draft:
    """The config of one model. Raises UsageError with every rule that is broken."""
    from tooling.config.build import build_config
    from tooling.config.onnxruntime_options import advice as accelerator_advice
    from tooling.config.release_rules import advice as release_advice

    signature, settings, release = source.signature, ask.settings(), ask.triton()
    asked = settings.get("max_batch_size") if ask.max_batch_size is None else ask.max_batch_size
    batch = asked if type(asked) is int else _default_batch(signature, console)
    config = build_config(
        signature,
        ask.name or source.name,
        replace(ask.knobs, max_batch_size=batch, dynamic_batching=ask.knobs.dynamic_batching and batch != 0),
        file=source.file,
        settings={str(ask.settings_file): {**settings, "max_batch_size": batch}} if settings else {},
        folder=source.model_dir,
        release=release,
    )
    files = {**source.files, **_warmup(config, source.model_dir, ask)}
    advice = [*release_advice(config, signature, release)]
    if signature.backend == "onnxruntime":
        advice += accelerator_advice(config)
    return Draft(config, source.model_dir, signature.path, files, tuple(advice))


def _default_batch(signature: ModelSignature, console: Console) -> int:
    """The largest batch where nobody says it: what the model says, else 8, else 0 where it cannot batch."""
    if signature.backend == "openvino":
        console.info("no batching (max_batch_size 0): OpenVINO compiles a model for one batch size")
        return 0
    if signature.can_batch:
        return _DEFAULT_BATCH if signature.max_batch_size is None else signature.max_batch_size
    if signature.unbatchable:
        fixed = ", ".join(f"`{t.name}` {list(t.dims)}" for t in signature.unbatchable)
        console.info(f"no batching (max_batch_size 0): no free first axis in {fixed}")
    elif signature.profiles:
        console.info("no batching (max_batch_size 0): no profile of the plan takes a single request")
    return 0


def _warmup(config: ModelConfig, model_dir: Path | None, ask: Ask) -> dict[Path, bytes]:
    """Add the warmup samples; the files they need, by their path."""
    from tooling.config.warmup import FOLDER, add_samples, parse_samples

    if not ask.warmup:
        return {}
    if model_dir is None:
        raise UsageError(
            "warmup samples are files in a model directory", where="--warmup", hint="name a model directory"
        )
    own = model_dir / "tokenizer"
    tokenizer = ask.tokenizer or (own if own.is_dir() else None)
    files = add_samples(config, parse_samples(ask.warmup), tokenizer)
    return {model_dir / FOLDER / name: content for name, content in files.items()}


def ensemble_draft(model_dir: Path, what: str, ask: Ask) -> Draft:
    """The config of an ensemble of models that stand beside `model_dir`, and the files of its empty version.

    `what` is a graph file, the models' names with commas between, or `auto`. Raises UsageError.
    """
    from tooling.cli.config_source import ensemble
    from tooling.config.overlay import merge
    from tooling.config.release_rules import problems
    from tooling.config.tensor_rules import problems as tensor_problems

    config, files = ensemble(model_dir.absolute(), what)
    merge(config, ask.settings(), str(ask.settings_file))
    found = [*tensor_problems(config, model_dir), *problems(config, ask.triton())]
    if found:
        raise UsageError(problems=found)
    return Draft(config, model_dir.absolute(), model_dir.absolute(), files)
