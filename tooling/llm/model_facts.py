"""What an engine's memory and parallelism follow from: a language model's config.json and weight files. Layer: llm."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tooling.errors import UsageError, kind_of
from tooling.llm.model_place import how_to_get, in_cache, is_path

_LARGEST: Final = 2**23
_MOST: Final = 2**40
_Figures = Mapping[str, int | None]
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocabulary": ("vocab_size", "padded_vocab_size"),
    "context": ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length"),
    "inner": ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
}
"""What models of different families call the same figure."""
_NO_TEXT: Final = re.compile(
    r"For(MaskedLM|SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|PreTraining)$"
    r"|^(Albert|Bert|Camembert|Deberta|DebertaV2|DistilBert|Electra|ModernBert|MPNet|NomicBert|Roberta|XLMRoberta)Model$"
)
"""Architectures that encode or classify; they have the figures of a language model too."""
_BYTES: Final = {"float32": 4, "float": 4, "float16": 2, "bfloat16": 2, "half": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The figures of a decoder: `heads` attention heads over `kv_heads` stored ones of `head_size` values each.

    `latent` is the width of a compressed cache (multi-head latent attention), 0 for keys and values. `cached_layers`
    are those that keep a cache of every token; `window` bounds what the others keep. `weight_bytes` are those of the
    files, or counted from the figures where `counted`.
    """

    path: Path
    architecture: str
    layers: int
    cached_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    latent: int
    inner: int
    vocabulary: int
    context: int | None
    window: int | None
    dtype: str
    quantization: str | None
    weight_bytes: int
    counted: bool

    @property
    def dtype_bytes(self) -> int:
        return _BYTES.get(self.dtype, 2)

    def cache_bytes(self, tensor_parallel: int, bytes_per_value: float) -> int:
        """Bytes of cache that one token takes on each GPU of `tensor_parallel`, all layers together."""
        # of a compressed cache every GPU keeps the whole
        values = self.latent or 2 * max(1, self.kv_heads // tensor_parallel) * self.head_size
        return max(1, round(self.cached_layers * values * bytes_per_value))


def read_facts(folder: Path) -> ModelFacts:
    """The facts of a Hugging Face directory. Raises UsageError for one that holds no language model."""
    config = _config(folder / "config.json")
    text = config.get("text_config")
    merged = {**config, **text} if isinstance(text, dict) else config
    figures = {name: _number(merged, names) for name, names in _NAMES.items()}
    _require_decoder(folder / "config.json", config, merged, figures)
    layers, hidden, heads = (int(figures[name] or 0) for name in ("layers", "hidden", "heads"))
    kv_heads = _number(merged, ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")) or heads
    if merged.get("multi_query") is True and not merged.get("new_decoder_architecture"):
        kv_heads = 1
    latent = (_number(merged, ("kv_lora_rank",)) or 0) + (_number(merged, ("qk_rope_head_dim",)) or 0)
    window = _number(merged, ("sliding_window",))
    full = _full_layers(merged, layers)
    quantization = merged.get("quantization_config")
    found = ModelFacts(
        folder,
        _named(config.get("architectures")),
        layers,
        full or layers,
        hidden,
        heads,
        kv_heads,
        _head_size(merged, figures),
        latent if _number(merged, ("kv_lora_rank",)) else 0,
        int(figures["inner"] or 4 * hidden),
        int(figures["vocabulary"] or 0),
        figures["context"],
        window if full and full < layers else None,
        str(merged.get("dtype") or merged.get("torch_dtype") or "bfloat16"),
        str(quantization.get("quant_method", "unnamed")) if isinstance(quantization, dict) else None,
        0,
        counted=True,
    )
    return _weighed(found, merged)


def _require_decoder(path: Path, config: Mapping[str, Any], merged: Mapping[str, Any], figures: _Figures) -> None:
    """Raise UsageError for a config of anything else, with what is wrong."""
    architecture = _named(config.get("architectures"))
    got = [_fault(merged, _NAMES[name]) for name in ("layers", "hidden", "heads", "vocabulary") if not figures[name]]
    if not got and not _head_size(merged, figures):
        got = [f"{figures['heads']} attention heads of {figures['hidden']} values"]
    if not got and config.get("is_encoder_decoder"):
        got = ["an encoder-decoder model"]
    if not got and _NO_TEXT.search(architecture):
        got = [architecture]
    if got:
        raise UsageError(
            "no decoder that generates text",
            where=path,
            got=", ".join(got),
            expected="a causal language model, such as Llama, Mistral, Qwen or GPT",
        )


def _head_size(config: Mapping[str, Any], figures: _Figures) -> int:
    """Values of an attention head; 0 where there are more heads than values."""
    return _number(config, ("head_dim", "kv_channels")) or (figures["hidden"] or 0) // (figures["heads"] or 1)


def _config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST)
        content = json.loads(raw)
    except (FileNotFoundError, NotADirectoryError):
        folder = path.parent
        raise UsageError(
            "not a language model's directory",
            where=path if folder.is_dir() else folder,
            got=None if folder.is_dir() else "a file" if folder.exists() else "no such directory",
            expected="config.json, as Hugging Face writes it",
            hint=_how_to_get(folder),
        ) from None
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror) from error
    except (ValueError, RecursionError) as error:
        got = str(error)[:80] if raw.strip() else "an empty file"
        raise UsageError("not a JSON file", where=path, got=got) from None
    if not isinstance(content, dict):
        raise UsageError("not a model's config", where=path, got=kind_of(content), expected="a JSON object")
    return content


def _how_to_get(folder: Path) -> str:
    """What to do about a model whose config does not stand in a directory. What was typed may have been an id."""
    weightless = "the weights may stay away, their size is then counted from config.json"
    if folder.is_dir():
        return f"download the model first; {weightless}"
    if folder.exists():
        return f"name its directory, {folder.parent}"
    here = Path.cwd()
    named = str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
    if is_path(named):
        return f"check the path, or download the model first; {weightless}"
    if snapshot := in_cache(named):
        return f"the cache has it as a Hugging Face id: copy it (`cp -rL {snapshot} DIR`) and name that directory"
    return f"check the path; as a Hugging Face id, {how_to_get(named)}"


def _named(architectures: object) -> str:
    return str(architectures[0]) if isinstance(architectures, list) and architectures else "An unnamed model"


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these that is a positive whole number, and no slip of the keyboard."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST:
            return value
    return None


def _fault(config: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """What a config says in place of a figure."""
    given = next((name for name in names if name in config), None)
    return f"no {names[0]}" if given is None else f"{given} {json.dumps(config[given])[:30]}"


def _full_layers(config: Mapping[str, Any], layers: int) -> int:
    """How many layers keep all tokens, where some keep a window or a state of fixed size; 0 where nothing says so."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or len(kinds) != layers:
        return 0
    return sum(kind in ("full_attention", "attention") for kind in kinds)


def _weighed(facts: ModelFacts, config: Mapping[str, Any]) -> ModelFacts:
    from dataclasses import replace

    size = sum(file.stat().st_size for file in weight_files(facts.path))
    return replace(facts, weight_bytes=size or _counted(facts, config), counted=not size)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: those an index names, else all of one kind."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).is_file():
            shards = _config(folder / index).get("weight_map")
            names = set(shards.values()) if isinstance(shards, dict) else set()
            files = [folder / name for name in sorted(map(str, names))]
            if files and all(file.is_file() for file in files):
                return files
    for pattern in ("model.safetensors", "*.safetensors", "pytorch_model*.bin", "*.gguf"):
        files = sorted(file for file in folder.glob(pattern) if file.is_file())
        if files:
            return files
    return []


def _counted(facts: ModelFacts, config: Mapping[str, Any]) -> int:
    """The bytes of the weights by the figures: attention, a gated feed-forward of each expert, and the embeddings."""
    experts = _number(config, ("num_local_experts", "n_routed_experts", "num_experts")) or 1
    inner = (_number(config, ("moe_intermediate_size",)) if experts > 1 else None) or facts.inner
    attention = facts.hidden * facts.head_size * (2 * facts.heads + 2 * facts.kv_heads)
    layer = attention + experts * 3 * facts.hidden * inner
    embeddings = facts.vocabulary * facts.hidden * (1 if config.get("tie_word_embeddings") else 2)
    return (facts.layers * layer + embeddings) * facts.dtype_bytes
