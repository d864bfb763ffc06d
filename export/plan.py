"""What the graph computes, decided from the source's settings: task, pooling, limits. Layer: export plan, pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from export.options import OPSETS
from export.source import Module, Source
from export.tasks import FEATURES, RANK, Task, half_of, infer_task, label_count, task_named
from tooling.errors import UsageError, suggest
from tooling.releases import Release, current_release

# The oldest that torch's default exporter writes; it loads since ONNX Runtime 1.14 (Triton 23.03).
DEFAULT_OPSET: Final = 18

POOLINGS: Final = ("mean", "cls", "max", "lasttoken")
ACTIVATIONS: Final = ("Identity", "Tanh")
SCORE_ACTIVATIONS: Final = ("Identity", "Sigmoid")
_LEGACY_POOLING: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Their first position is the padding token's index + 1, so that many rows of the table serve no token.
_OFFSET_POSITIONS: Final = (
    *("bertweet", "camembert", "data2vec-text", "esm", "ibert", "longformer", "mpnet", "phobert", "roberta"),
    *("roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
)
_NO_LIMIT: Final = 1 << 20  # tokenizers without a limit write one of 1e30


@dataclass(frozen=True, slots=True)
class Pool:
    """Token vectors to one vector a row; `mode` is one of POOLINGS."""

    mode: str


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer with its activation, weights in `folder`."""

    folder: Path
    activation: str


@dataclass(frozen=True, slots=True)
class Normalize:
    """Each vector to length 1."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of every element: the one that makes a cross-encoder's score of its logit."""

    name: str


Step = Pool | Dense | Normalize | Activation


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """Task, steps after the transformer, ceilings of the file, and the limits of valid inputs.

    `max_tokens` counts special tokens; `image` is channels, height, width. `eos_token` ends a row where there is one.
    """

    task: Task
    steps: tuple[Step, ...]
    opset: int
    max_ir: int
    max_tokens: int = 0
    vocabulary: int = 0
    pad_token: int = 0
    eos_token: int | None = None
    token_types: int = 0
    image: tuple[int, int, int] | None = None

    @property
    def pooled(self) -> bool:
        return any(isinstance(step, Pool) for step in self.steps)

    def describe(self) -> tuple[str, ...]:
        """The steps by name, as the manifest keeps them."""
        return tuple(_describe(step) for step in self.steps)


def _describe(step: Step) -> str:
    if isinstance(step, Pool):
        return f"pool:{step.mode}"
    return step.name.lower() if isinstance(step, Activation) else type(step).__name__.lower()


def make_plan(
    source: Source, task: str | None = None, *, opset: int | None = None, release: Release | None = None
) -> ExportPlan:
    """Decide the export of a source: its own task unless one is named, for a Triton release (the tested one).

    Raises UsageError for a task, a module or an opset that is not supported.
    """
    where = source.directory / "config.json"
    inferred = FEATURES if source.modules else None
    chosen = task_named(task) if task else inferred or infer_task(source.config, where)
    release = release or current_release()
    limits = _image_limits if chosen.image else _text_limits
    return ExportPlan(
        task=chosen,
        steps=_steps_of(source, chosen),
        opset=_opset(opset, release),
        max_ir=release.max_ir or 8,
        **limits(source, chosen, where),
    )


def _opset(asked: int | None, release: Release) -> int:
    ceiling = min(release.max_opset or DEFAULT_OPSET, OPSETS[-1])
    opset = min(DEFAULT_OPSET, ceiling) if asked is None else asked
    if opset not in OPSETS or opset > ceiling:
        raise UsageError(
            "unsupported opset",
            got=opset,
            expected=f"{OPSETS.start} to {ceiling} for the ONNX Runtime of Triton {release.tag}",
            hint=f"leave it out: {DEFAULT_OPSET} suits Triton 23.03 and later",
        )
    return opset


def _text_limits(source: Source, task: Task, where: Path) -> dict[str, Any]:
    config = half_of(source.config, task)
    vocabulary = config.get("vocab_size")
    encoder_only = task is FEATURES
    if not isinstance(vocabulary, int) or (config.get("is_encoder_decoder") and not encoder_only):
        raise UsageError(
            f"not a model for {task.name}",
            where=where,
            got=f"model_type {source.config.get('model_type')}",
            expected="a model of text" if encoder_only else "an encoder or a decoder for text, not one of both",
            hint=f"of a model of both, --task {FEATURES.name} exports the encoder",
        )
    eos = config.get("eos_token_id")
    return {
        "max_tokens": _max_tokens(source, config),
        "vocabulary": vocabulary,
        "pad_token": config.get("pad_token_id") or 0,
        "eos_token": eos if isinstance(eos, int) and 0 <= eos < vocabulary else None,
        "token_types": config.get("type_vocab_size") or 0,
    }


def _image_limits(source: Source, task: Task, where: Path) -> dict[str, Any]:
    config = half_of(source.config, task)
    crop = source.settings("preprocessor_config.json").get("crop_size")
    size = config.get("image_size") or (crop.get("height") if isinstance(crop, Mapping) else crop) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    if "vocab_size" in config:
        raise UsageError(
            f"not a model for {task.name}",
            where=where,
            got=f"model_type {source.config.get('model_type')}",
            expected="a model of images",
        )
    return {"image": (int(config.get("num_channels") or 3), int(height), int(width))}


def _max_tokens(source: Source, config: Mapping[str, Any]) -> int:
    limits = (
        source.settings("sentence_bert_config.json").get("max_seq_length"),
        source.settings("tokenizer_config.json").get("model_max_length"),
        _positions(source, config),
    )
    known = [int(limit) for limit in limits if limit is not None and limit < _NO_LIMIT]
    return min(known, default=512)


def _positions(source: Source, config: Mapping[str, Any]) -> int | None:
    """Rows of the position table that serve a token; None for a model without one."""
    rows: int | None = config.get("max_position_embeddings") or config.get("n_positions")
    if rows and source.config.get("model_type") in _OFFSET_POSITIONS:
        rows -= (config.get("pad_token_id") or 0) + 1
    return rows


def overlong_tokenizer(source: Source, plan: ExportPlan) -> int | None:
    """The length that the tokenizer cuts to, where the model has fewer positions than that."""
    stated = source.settings("tokenizer_config.json").get("model_max_length")
    positions = None if plan.image else _positions(source, half_of(source.config, plan.task))
    return stated if positions and stated and positions < stated < _NO_LIMIT else None


def _steps_of(source: Source, task: Task) -> tuple[Step, ...]:
    if task is FEATURES:
        return _steps(source.modules)
    return (_activation(source),) if task is RANK else ()


def _activation(source: Source) -> Activation:
    """What sentence-transformers puts over the logit: what the config names, else the sigmoid for a single label."""
    config, where = source.config, source.directory / "config.json"
    named = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function")
    if named is None:
        return Activation("Sigmoid" if label_count(config) == 1 else "Identity")
    name = str(named).rpartition(".")[2]
    _check_known("activation of a cross-encoder", [name], SCORE_ACTIVATIONS, where)
    return Activation(name)


def _steps(modules: Sequence[Module]) -> tuple[Step, ...]:
    """The modules after the transformer; pooling must come first, or there would be no row vectors to work on."""
    if not modules:
        return ()
    kinds = [module.kind for module in modules]
    if kinds[0] != "Transformer" or kinds[1:2] not in ([], ["Pooling"]):
        raise UsageError(
            "unsupported sentence-transformers modules",
            where=modules[0].folder,
            got=" → ".join(kinds),
            expected="Transformer → Pooling, then Dense or Normalize",
        )
    return tuple(_step(module) for module in modules[1:])


def _step(module: Module) -> Step:
    config, where = module.config, module.folder / "config.json"
    if module.kind == "Pooling":
        return Pool(_pooling(config, where))
    if config.get("module_input_name", "sentence_embedding") != "sentence_embedding" or config.get("use_residual"):
        raise UsageError(
            f"unsupported {module.kind} module", where=where, expected="one that maps the sentence embedding only"
        )
    if module.kind == "Normalize":
        return Normalize()
    if module.kind == "Dense":
        name = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
        _check_known("activation of a Dense module", [name], ACTIVATIONS, where)
        return Dense(module.folder, name)
    raise UsageError(
        "unsupported sentence-transformers module",
        where=module.folder,
        got=module.kind,
        expected="Pooling, Dense or Normalize",
    )


def _pooling(config: Mapping[str, Any], where: Path) -> str:
    """The pooling mode, from `pooling_mode` or from the switches that stood in its place before."""
    named = config.get("pooling_mode") or [mode for key, mode in _LEGACY_POOLING.items() if config.get(key)] or "mean"
    modes = [named] if isinstance(named, str) else [str(mode) for mode in named]
    _check_known("pooling", modes, POOLINGS, where)
    return modes[0]


def _check_known(what: str, names: Sequence[str], known: Sequence[str], where: Path) -> None:
    if len(names) != 1 or names[0] not in known:
        raise UsageError(
            f"unsupported {what}",
            where=where,
            got=" + ".join(names),
            expected=f"one of {', '.join(known)}",
            hint=suggest(names[0], known),
        )
