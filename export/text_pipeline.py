"""A text pipeline around an exported model: tokenizer step, length buckets, one name that takes texts. Layer: export,
above its verification.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from export.clients import write_clients
from export.manifest import ExportManifest, read_manifest
from export.padding_check import check_padding
from tooling.config.build import build_config
from tooling.config.ensemble import Graph, Step, build_ensemble
from tooling.config.knobs import Knobs, read
from tooling.config.render import origin, render
from tooling.console import Console
from tooling.errors import Problem, UsageError
from tooling.repository import (
    alone_in,
    check_model_name,
    config_path,
    guard_overwrite,
    locate_model,
    read_config,
    read_text,
    write_atomic,
    writing,
)
from tooling.signature.onnx_file import read_onnx
from tooling.signature.spec import ModelSignature, TensorSpec
from tooling.staging import link, publish, staging

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

MAX_BATCH_SIZE: Final = 8
TOKEN_COUNT: Final = "token_count"
SETTINGS_FILE: Final = "text.json"
TENSORS: Final = ("input_ids", "attention_mask", "token_type_ids")  # what a tokenizer gives
_STEP_CODE: Final = Path(__file__).with_name("triton")
_CODE: Final = {
    "none": ("tokenizer", "texts"),
    "buckets": ("tokenizer", "texts"),
    "models": ("routed", "texts", "calls"),
    "merged": ("merged", "texts", "calls"),
}
_TEXT: Final = TensorSpec("text", "TYPE_STRING", (-1, 1))
_COUNTS: Final = TensorSpec(TOKEN_COUNT, "TYPE_INT32", (-1, 1))


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How texts become batches.

    `padding`: `none` pads a request to its own longest text, `buckets` to the next of `edges`, `models` the same with a
    model for each edge, `merged` to the longest request of a merged batch. `max_tokens` is where texts are cut (None:
    the model's limit). `invalid_utf8` is `replace` or `reject`.
    """

    padding: str = "none"
    edges: tuple[int, ...] = ()
    max_tokens: int | None = None
    invalid_utf8: str = "replace"


@dataclass(frozen=True, slots=True)
class TextPipeline:
    """What was written: `entry` takes texts, `models` are all model directories of it, `stale` those of the pipeline
    that was there before and that it no longer uses. `padding_error` is what padding changed in an output at most."""

    entry: Path
    models: tuple[Path, ...]
    padding: str
    edges: tuple[int, ...]
    max_tokens: int
    padding_error: float
    stale: tuple[Path, ...]


def write_text_pipeline(
    model_dir: Path, name: str, options: TextOptions, *, force: bool = False, console: Console | None = None
) -> TextPipeline:
    """Write the models that serve the exported `model_dir` for texts as `name`, beside it in its repository.

    Its config.pbtxt is made unless there is one. Raises UsageError (limits, names, a model that takes other inputs, an
    edited config without `force`), and Refused when an answer depends on its padding: nothing is written then.
    """
    console = console or Console(quiet=True)
    check_model_name(name)
    plan = _plan(model_dir, name, options)
    places = (plan.entry, *(plan.sibling(step) for step in plan.others))
    for path in places:
        require_free(path, force)
    with console.progress(f"text pipeline {name}", total=2) as progress:
        error = check_padding(
            model_dir,
            plan.edges or (plan.max_tokens,),
            plan.max_tokens,
            plan.settings["pad_token"],
            plan.precision,
            console,
        )
        progress.step(f"padding checked, it changes an output by {error:.1e} at most")
        with ExitStack() as held:
            for path in (model_dir, *places):
                held.enter_context(alone_in(path))
            for path in places:  # somebody may have edited one meanwhile
                require_free(path, force)
            stale = _served_by(plan.entry) - {path.name for path in plan.models()}
            _write(plan)
        progress.step(f"written in {model_dir.parent}")
    return TextPipeline(
        plan.entry,
        plan.models(),
        options.padding,
        plan.edges,
        plan.max_tokens,
        error,
        tuple(path for name in sorted(stale) if (path := plan.sibling(name)).is_dir()),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """One pipeline, decided. `others` are the models beside the entry and the exported one."""

    name: str
    model_dir: Path
    signature: ModelSignature
    config: ModelConfig
    options: TextOptions
    max_tokens: int
    edges: tuple[int, ...]
    settings: dict[str, int]
    precision: str

    @property
    def entry(self) -> Path:
        return self.sibling(self.name)

    @property
    def others(self) -> tuple[str, ...]:
        return self.buckets if self.options.padding == "models" else (self.tokenizer,) if self.ensemble else ()

    @property
    def ensemble(self) -> bool:
        """Whether Triton joins the steps; else the Python step calls the model itself."""
        return self.options.padding in ("none", "buckets")

    @property
    def tokenizer(self) -> str:
        return f"{self.name}_tokenizer"

    @property
    def buckets(self) -> tuple[str, ...]:
        return tuple(f"{self.model_dir.name}_{edge}" for edge in self.edges)

    def sibling(self, name: str) -> Path:
        return self.model_dir.with_name(name)

    def models(self) -> tuple[Path, ...]:
        """Entry first; with a model for each bucket the exported one only lends its file."""
        own = () if self.options.padding == "models" else (self.model_dir,)
        return (self.entry, *map(self.sibling, self.others), *own)


def _plan(model_dir: Path, name: str, options: TextOptions) -> _Plan:
    manifest, signature = read_manifest(model_dir), read_onnx(locate_model(model_dir / "1").file)
    _check_inputs(model_dir, signature)
    config = _model_config(model_dir, signature)
    if config.max_batch_size < 1:
        raise UsageError(
            "the model does not batch",
            where=config_path(model_dir),
            got="max_batch_size 0",
            expected="1 or more: texts are sent as [batch, 1]",
            hint=f"write its config again: `tritune gen-config {shlex.quote(str(model_dir))} --force`",
        )
    most = _max_tokens(options, manifest, model_dir)
    edges: tuple[int, ...] = ()
    if options.padding in ("buckets", "models"):
        edges = tuple(sorted({min(edge, most) for edge in options.edges} | {most}))
    return _Plan(
        name, model_dir, signature, config, options, most, edges, _token_settings(model_dir), manifest.precision
    )


def _check_inputs(model_dir: Path, signature: ModelSignature) -> None:
    problems = [
        Problem(f"input `{spec.name}` is none that a tokenizer gives", str(model_dir), expected=", ".join(TENSORS))
        for spec in signature.required_inputs
        if spec.name not in TENSORS
    ]
    problems += [
        Problem(f"output `{spec.name}` has the name of the pipeline's own output", str(model_dir))
        for spec in signature.outputs
        if spec.name == TOKEN_COUNT
    ]
    if problems:
        raise UsageError(problems=problems)


def _max_tokens(options: TextOptions, manifest: ExportManifest, model_dir: Path) -> int:
    asked, limit = options.max_tokens, manifest.max_tokens
    assert limit is not None  # a model of text has one
    if asked is not None and asked > limit:
        raise UsageError(
            "texts would be longer than the model takes",
            where="--max-tokens",
            got=asked,
            expected=f"at most {limit} ({model_dir / 'export.json'})",
        )
    return asked or limit


def _token_settings(model_dir: Path) -> dict[str, int]:
    """`vocabulary` and `pad_token` of the model, from the config that the export keeps beside the tokenizer."""
    path = model_dir / "tokenizer" / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return {"vocabulary": int(config["vocab_size"]), "pad_token": int(config.get("pad_token_id") or 0)}
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise UsageError(
            "the model's sizes cannot be read",
            where=path,
            got=error,
            hint="export the model again with `tritune export --force`",
        ) from error


def _model_config(model_dir: Path, signature: ModelSignature) -> ModelConfig:
    if config_path(model_dir).is_file():
        config = read_config(model_dir)
        config.name = config.name or model_dir.name
        if config.max_batch_size > 0 and not (config.input and config.output):  # Triton completes it from the file
            tensors = build_config(signature, config.name, read(config))
            for kind in ("input", "output"):
                config.ClearField(kind)
                getattr(config, kind).MergeFrom(getattr(tensors, kind))
        return config
    return build_config(signature, model_dir.name, Knobs(max_batch_size=MAX_BATCH_SIZE))


def require_free(directory: Path, force: bool) -> None:
    """Raise UsageError for a directory that is no part of a pipeline, and for an edited config unless forced."""
    if not directory.exists():
        return
    path = config_path(directory)
    config = read_config(directory) if path.is_file() else None
    part = (directory / "1" / "texts.py").is_file() or _is_bucket(directory)
    if config is None or not (part or config.platform == "ensemble"):
        raise UsageError(
            "another model has the name",
            where=directory,
            expected="a new name, or a part of a text pipeline",
            hint="choose another name with --name",
        )
    if not force and origin(read_text(path)) != "exported":
        guard_overwrite(path, "")


def _is_bucket(directory: Path) -> bool:
    name, _, edge = directory.name.rpartition("_")
    return edge.isdecimal() and (directory.with_name(name) / "export.json").is_file()


def _served_by(entry: Path) -> set[str]:
    """The models that the pipeline in `entry`, if there is one, sends its requests to."""
    if not config_path(entry).is_file():
        return set()
    names = {step.model_name for step in read_config(entry).ensemble_scheduling.step}
    try:
        settings = json.loads((entry / "1" / SETTINGS_FILE).read_text(encoding="utf-8"))
        return {*names, *settings.get("models", ()), *([settings["model"]] if "model" in settings else ())}
    except (OSError, ValueError, TypeError, AttributeError):
        return names


def _write(plan: _Plan) -> None:
    """The exported model's config first, then the models it needs, the entry last."""
    config = plan.config
    if not config_path(plan.model_dir).is_file():
        write_atomic(config_path(plan.model_dir), render(config))
    write_clients(plan.model_dir, config)
    if plan.options.padding == "models":
        for edge, name in zip(plan.edges, plan.buckets, strict=True):
            _write_bucket(plan, name, edge)
    if not plan.ensemble:
        _write_step(plan, _step_config(plan, plan.name, plan.signature.outputs))
        return
    tensors = (TensorSpec(spec.name, spec.data_type, (-1, -1)) for spec in plan.signature.required_inputs)
    step = _step_config(plan, plan.tokenizer, tuple(tensors))
    _write_step(plan, step)
    graph = Graph((Step(step.name), Step(config.name)), (*(output.name for output in config.output), TOKEN_COUNT))
    with staging(plan.entry) as staged:
        # Triton wants the directory of a version, and git keeps no empty one.
        write_atomic(staged / "1" / ".keep", "")
        _finish(plan, staged, build_ensemble(plan.name, graph, {step.name: step, config.name: config}))


def _step_config(plan: _Plan, name: str, outputs: Sequence[TensorSpec]) -> ModelConfig:
    """The config of the Python step. One that waits for the model has as many instances, so that none is idle."""
    instances = 1 if plan.options.padding != "merged" else read(plan.config).instance_count or 2
    knobs = Knobs(max_batch_size=plan.config.max_batch_size, instance_count=instances, instance_kind="cpu")
    signature = ModelSignature(_STEP_CODE, "python", (_TEXT,), (*outputs, _COUNTS))
    return build_config(signature, name, knobs)


def _text_settings(plan: _Plan) -> dict[str, Any]:
    """What the Python step needs to know, as it stands in `text.json`: a person may write its config.pbtxt anew."""
    settings: dict[str, Any] = {
        "tensors": {spec.name: spec.data_type for spec in plan.signature.required_inputs},
        "buckets": plan.edges,
        "max_tokens": plan.max_tokens,
        "invalid_utf8": plan.options.invalid_utf8,
        **plan.settings,
    }
    if plan.options.padding == "models":
        settings["models"] = plan.buckets
    elif plan.options.padding == "merged":
        settings["model"] = plan.model_dir.name
    return settings


def _write_step(plan: _Plan, config: ModelConfig) -> None:
    directory = plan.sibling(config.name)
    code, *modules = _CODE[plan.options.padding]
    with staging(directory) as staged, writing(directory):
        version = staged / "1"
        version.mkdir()
        for source, target in ((code, "model"), *((module, module) for module in modules)):
            shutil.copyfile(_STEP_CODE / f"{source}.py", version / f"{target}.py")
        shutil.copyfile(plan.model_dir / "tokenizer" / "tokenizer.json", version / "tokenizer.json")
        write_atomic(version / SETTINGS_FILE, json.dumps(_text_settings(plan), indent=2) + "\n")
        _finish(plan, staged, config)


def _write_bucket(plan: _Plan, name: str, edge: int) -> None:
    """A model of its own for one length: the same weights, as a link where the disk allows, and fixed shapes."""
    config = type(plan.config)()
    config.CopyFrom(plan.config)
    config.name = name
    if not config.instance_group:
        config.instance_group.add(count=1)
    for tensor in config.input:
        tensor.dims[:] = [edge]
    with staging(plan.sibling(name)) as staged, writing(plan.sibling(name)):
        shutil.copytree(plan.model_dir / "1", staged / "1", copy_function=link)
        _finish(plan, staged, config)


def _finish(plan: _Plan, staged: Path, config: ModelConfig) -> None:
    """Config, clients and what stands beside them; tuned configs are taken along; then all at once in its place."""
    target = plan.sibling(config.name)
    write_atomic(config_path(staged), render(config, exported=True))
    if config.name == plan.name:
        write_clients(staged, config)
    with writing(target):
        if config.name == plan.name:
            shutil.copyfile(_STEP_CODE / "Dockerfile", staged / "Dockerfile")
        if (target / "configs").is_dir():
            shutil.copytree(target / "configs", staged / "configs")
    publish(staged, target)
