"""What the graph computes, decided from the source's settings alone: pooling, limits. Layer: export plan, pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from export.source import Module, Source
from tooling.errors import UsageError, suggest

# Opset 17 has LayerNormalization as one operator and runs on ONNX Runtime 1.13 and later (Triton 22.11 and later);
# 20 is the newest the TorchScript exporter writes, below the ceiling of Triton 24.10 (opset 21, IR 10).
DEFAULT_OPSET: Final = 17
_OPSETS: Final = range(14, 21)

POOLINGS: Final = ("mean", "cls", "max", "lasttoken")
ACTIVATIONS: Final = ("Identity", "Tanh")
_LEGACY_POOLING: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Checkpoints of a pre-training head are what encoders are published as; their base is what features come from.
_BASE_ENDINGS: Final = ("Model", "ForMaskedLM", "ForPreTraining")
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


Step = Pool | Dense | Normalize


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The steps after the transformer, and the limits of valid inputs (`max_tokens` a row, special tokens counted)."""

    steps: tuple[Step, ...]
    opset: int
    max_tokens: int
    vocabulary: int
    pad_token: int
    token_types: int

    @property
    def output(self) -> str:
        return "embeddings" if self.steps else "last_hidden_state"

    def describe(self) -> tuple[str, ...]:
        """The steps by name, as the manifest keeps them."""
        names = {Dense: "dense", Normalize: "normalize"}
        return tuple(f"pool:{s.mode}" if isinstance(s, Pool) else names[type(s)] for s in self.steps)


def make_plan(source: Source, opset: int = DEFAULT_OPSET) -> ExportPlan:
    """Decide the export of a source. Raises UsageError for a task, a module or an opset that is not supported."""
    if opset not in _OPSETS:
        raise UsageError(
            "unsupported opset",
            got=opset,
            expected=f"{_OPSETS.start} to {_OPSETS.stop - 1}",
            hint=f"leave it out: {DEFAULT_OPSET} suits Triton 22.11 and later",
        )
    config = source.config
    where = source.directory / "config.json"
    if not source.modules:
        _check_task(config, where)
    vocabulary = config.get("vocab_size")
    if config.get("is_encoder_decoder") or not isinstance(vocabulary, int):
        raise UsageError(
            "not a text encoder",
            where=where,
            got=f"model_type {config.get('model_type')}",
            expected="an encoder for text (the supported task is feature extraction)",
        )
    return ExportPlan(
        steps=_steps(source.modules),
        opset=opset,
        max_tokens=_max_tokens(source),
        vocabulary=vocabulary,
        pad_token=config.get("pad_token_id") or 0,
        token_types=config.get("type_vocab_size") or 0,
    )


def _check_task(config: Mapping[str, Any], where: Path) -> None:
    names = [str(name) for name in config.get("architectures") or ()]
    if not all(name.endswith(_BASE_ENDINGS) for name in names):
        raise UsageError(
            "unsupported task",
            where=where,
            got=f"architecture {', '.join(names)}",
            expected="feature extraction (an architecture such as BertModel)",
            hint="export the encoder the task was trained from, saved without its head",
        )


def _max_tokens(source: Source) -> int:
    limits = (
        source.settings("sentence_bert_config.json").get("max_seq_length"),
        source.settings("tokenizer_config.json").get("model_max_length"),
        source.config.get("max_position_embeddings"),
    )
    known = [int(limit) for limit in limits if limit is not None and limit < _NO_LIMIT]
    return min(known, default=512)


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
