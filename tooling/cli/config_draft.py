"""From what a person asks of gen-config to a finished text and the files it needs. Layer: cli."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.console import Console
from tooling.errors import Problem, UsageError

if TYPE_CHECKING:
    from tooling.cli.config_source import Source
    from tooling.config.changes import Changes
    from tooling.config.proto import ModelConfig
    from tooling.releases import Release
    from tooling.signature.spec import ModelSignature

_DEFAULT_BATCH = 8
_BOUND = (
    "this config holds for one kind of hardware only (kind or gpus of an instance_group): "
    "with --hardware NAME it goes to configs/NAME.pbtxt, and config.pbtxt fits every machine"
)


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked for, beside the model itself."""

    changes: Changes
    name: str | None = None
    release: str | None = None
    warmup: tuple[str, ...] = ()
    tokenizer: Path | None = None
    profiles: tuple[int, ...] = ()

    def triton(self, *, plan: bool = False) -> Release:
        """The release asked for, else the newest one; for a plan, which runs on one, that which is deployed here."""
        from tooling.releases import current_release, default_release, release_named

        default = current_release() if plan else default_release()
        return release_named(self.release, "--release") if self.release else default


@dataclass(frozen=True, slots=True)
class Present:
    """A config that stands where the new one would go."""

    path: Path
    text: str

    @property
    def origin(self) -> str | None:
        from tooling.config.render import origin

        return origin(self.text)


@dataclass(frozen=True, slots=True)
class Draft:
    """A finished config, its text, files to write beside it, and what is to be said about it.

    A text is what was `edited` with the lines changed that were asked for; without that it is generated.
    """

    config: ModelConfig
    text: str
    edited: Present | None = None
    files: Mapping[Path, bytes] = field(default_factory=dict)
    advice: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


def make_draft(source: Source, ask: Ask, present: Present | None, console: Console, *, portable: bool) -> Draft:
    """The config that is asked for; `present` is edited unless it is as generated, or nothing is asked of it.

    A `portable` config is for every machine, and what binds it to one is told, unless it comes with the command for the
    machine it is for. Raises UsageError with every rule that is broken.
    """
    from tooling.config.build import Unfit
    from tooling.config.release_advice import release_advice

    asked = bool(ask.changes or ask.warmup or source.joined)
    edited = present if present is not None and asked and present.origin != "generated" else None
    try:
        config = _config(source, ask, edited, console)
    except Unfit as error:
        refused, _ = _judged(_text(error.config, edited), edited, source, ask)
        raise UsageError(problems=[*error.problems, *refused]) from error
    files = {**source.files, **_warmup(config, source.model_dir, ask)}
    text = _text(config, edited)
    refused, advice = _judged(text, edited, source, ask)
    if refused:
        raise UsageError(problems=refused)
    if source.signature is not None:
        advice += release_advice(config, source.signature, ask.triton(plan=source.signature.built_with is not None))
    if portable and not source.commands and _newly_bound(config, edited):
        advice.append(_BOUND)
    if edited is not None and edited.origin == "measured":
        advice.append(f"{edited.path} holds measured settings: the evidence in it is of those before this change")
    told = (*source.notes, *advice)
    return Draft(config, text, edited, files, told, source.commands)


def _text(config: ModelConfig, edited: Present | None) -> str:
    from tooling.config.render import STYLE, render
    from tooling.pbtxt.editor import edit
    from tooling.repository import encode

    if edited is None:
        return render(config)
    old = encode(edited.text)
    return edit(old, config, edited.path, STYLE).decode("utf-8", "surrogateescape")


def _judged(text: str, edited: Present | None, source: Source, ask: Ask) -> tuple[list[Problem], list[str]]:
    """What Triton would refuse in a config, and what it would take and not do; of an edited one with its place."""
    from tooling.check.draft import judge
    from tooling.check.finding import Severity
    from tooling.check.target import Target
    from tooling.repository import encode

    folder = source.model_dir or Path(ask.name or source.name)
    path = edited.path if edited else folder / "config.pbtxt"
    target = Target(ask.triton(), release_named=True)
    findings = judge(encode(text), path, folder, target)
    refused = [
        Problem(finding.message, str(finding.place) if edited else None, hint=finding.hint)
        for finding in findings
        if finding.severity is Severity.ERROR
    ]
    ignored = [finding for finding in findings if finding.severity is Severity.WARNING]
    return refused, [f"{finding.message} ({finding.hint or f'rule {finding.rule.id}'})" for finding in ignored]


def _newly_bound(config: ModelConfig, edited: Present | None) -> bool:
    from tooling.config.backends import is_bound
    from tooling.config.render import parse

    return is_bound(config) and not (edited and is_bound(parse(edited.text, str(edited.path))))


def _config(source: Source, ask: Ask, edited: Present | None, console: Console) -> ModelConfig:
    """The config from the file that is edited, from the one there is instead of a model file, or from the model."""
    from tooling.config.build import build_config, change_config
    from tooling.config.knobs import Knobs
    from tooling.config.render import parse

    name, folder = ask.name or source.name, source.model_dir
    base = source.config
    if edited is not None:
        base = parse(edited.text, str(edited.path))
        if source.joined and source.config is not None:  # the graph is what is asked for
            for part, _ in source.config.ListFields():
                base.ClearField(part.name)
            base.MergeFrom(source.config)
    if base is not None:
        return change_config(base, name, source.signature, ask.changes, folder=folder)
    assert source.signature is not None  # without a config there is a model
    asked = ask.changes.max_batch_size
    batch = _default_batch(source.signature, ask.profiles, console) if asked is None else asked
    knobs = Knobs(max_batch_size=batch, dynamic_batching=batch > 1)
    return build_config(source.signature, name, knobs, file=source.file, changes=ask.changes, folder=folder)


def _default_batch(signature: ModelSignature, profiles: tuple[int, ...], console: Console) -> int:
    """The largest batch where nobody says it: what the model says, else 8, else 0 where it cannot batch.

    Of a plan it is what the chosen `profiles` take, by default all.
    """
    from tooling.signature.tensorrt_plan import largest_batch

    if signature.backend == "openvino":
        console.info("no batching (max_batch_size 0): OpenVINO compiles a model for one batch size")
        return 0
    chosen = tuple(profile for number, profile in enumerate(signature.profiles) if number in profiles)
    if signature.can_batch and chosen:
        return largest_batch(chosen)
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
