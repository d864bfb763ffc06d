"""Which engine arguments each vLLM knows, and whether a value is one that it takes. Layer: llm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from tooling.llm.argument_reader import ANY

FACTS: Final = Path(__file__).parents[1] / "data" / "vllm_arguments.yaml"
_CLASSES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "int": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
    "list": list,
    "dict": dict,
}


def version_key(version: str) -> tuple[int, ...]:
    """What orders versions such as 0.5.0.post1."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


@cache
def _facts() -> Mapping[str, Any]:
    import yaml

    return dict(yaml.load(FACTS.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@cache
def arguments_of(version: str) -> Mapping[str, tuple[str, ...]]:
    """What each argument of this vLLM takes, by its name; empty for a version older than all that are known.

    A version between two known ones is taken for the older of them.
    """
    known = {}
    for name, spans in _facts()["arguments"].items():
        last = [types for since, types in spans.items() if version_key(since) <= version_key(version)]
        if last and last[-1] is not None:
            known[name] = tuple(last[-1].split(" | "))
    return known


def removed_in(name: str, version: str) -> str | None:
    """The first known vLLM, up to this version, that does not take an argument any more; None where none did."""
    found = None
    for since, types in _facts()["arguments"].get(name, {}).items():
        if version_key(since) <= version_key(version):
            found = since if types is None else None
    return found


def added_in(name: str, version: str) -> str | None:
    """The first known vLLM after this version that takes an argument; None where none does."""
    later = _facts()["arguments"].get(name, {}).items()
    return next((since for since, types in later if types and version_key(since) > version_key(version)), None)


def takes(types: tuple[str, ...], value: object) -> bool:
    """Whether an argument of these types takes a value as JSON gives it; null always."""
    if value is None or ANY in types or (isinstance(value, str) and repr(value) in types):
        return True
    return any(_is(kind, value) for kind in types)


def _is(kind: str, value: object) -> bool:
    wanted = _CLASSES.get(kind)
    if wanted is None or (isinstance(value, bool) and kind != "bool"):
        return False
    return isinstance(value, wanted)


def described(types: tuple[str, ...]) -> str:
    """The types for a message."""
    return " | ".join(kind.replace("'", '"') for kind in types)


class Contradiction(NamedTuple):
    """An argument that the others rule out: in our words, and in those of the engine where it has some."""

    argument: str
    message: str
    says: str = ""


_FITTED: Final = -1
"""A `max_model_len` that stands for what the cache has room for."""
_COUNTS: Final = (
    *("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "pipeline_parallel_size", "block_size"),
    *("max_loras", "max_lora_rank", "num_gpu_blocks_override"),
)


def contradictions(arguments: Mapping[str, Any], version: str | None = None) -> Iterator[Contradiction]:
    """What the engine refuses of arguments that are each of the right type; some only up to a version."""
    for name in _COUNTS:
        value = _count(arguments, name)
        if value is not None and value < 1:
            yield Contradiction(name, f"{name} is {value}, and must be 1 or more")
    context = _count(arguments, "max_model_len")
    if context is not None and context < 1 and context != _FITTED:
        yield Contradiction("max_model_len", f"max_model_len is {context}, and must be 1 or more")
    share = arguments.get("gpu_memory_utilization")
    if isinstance(share, int | float) and not isinstance(share, bool) and not 0 < share <= 1:
        says = f"GPU memory utilization must be less than 1.0. Got {share}."
        yield Contradiction("gpu_memory_utilization", f"gpu_memory_utilization {share:g} is no share in 0 … 1", says)
    yield from _token_budget(arguments)
    yield from _speculation(arguments.get("speculative_config"))
    if version is not None and arguments.get("speculative_model"):
        yield from _first_engine(arguments, version)


_APART_BEFORE: Final = "0.7.0"
_BLOCKS_BEFORE: Final = "0.6.3.post1"


def _first_engine(arguments: Mapping[str, Any], version: str) -> Iterator[Contradiction]:
    """What vLLM's first engine could not do while it speculates."""
    if arguments.get("enable_chunked_prefill") is True and version_key(version) < version_key(_APART_BEFORE):
        says = "Speculative decoding and chunked prefill are currently mutually exclusive"
        yield Contradiction(
            "enable_chunked_prefill", f"vLLM {version} speculates, or prefills in chunks: not both", says
        )
    if arguments.get("use_v2_block_manager") is not True and version_key(version) < version_key(_BLOCKS_BEFORE):
        says = "Speculative decoding requires usage of the V2 block manager"
        yield Contradiction("use_v2_block_manager", f"vLLM {version} speculates with use_v2_block_manager only", says)


def _count(arguments: Mapping[str, Any], name: str) -> int | None:
    value = arguments.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _token_budget(arguments: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Each sequence takes one token of a step; without chunks, a whole prompt must fit into one."""
    name = "max_num_batched_tokens"
    budget, sequences = _count(arguments, name), _count(arguments, "max_num_seqs")
    context = _count(arguments, "max_model_len")
    if budget is None or budget < 1:
        return
    if sequences is not None and budget < sequences:
        yield Contradiction(
            name,
            f"a step of {budget} tokens ({name}) has none for some of {sequences} sequences (max_num_seqs)",
            f"max_num_batched_tokens ({budget}) must be greater than or equal to max_num_seqs ({sequences}).",
        )
    if context is not None and budget < context and arguments.get("enable_chunked_prefill") is False:
        yield Contradiction(
            name,
            f"without chunked prefill a step of {budget} tokens ({name}) holds no prompt of {context} (max_model_len)",
            f"max_num_batched_tokens ({budget}) is smaller than max_model_len ({context}).",
        )


def _speculation(config: object) -> Iterator[Contradiction]:
    if not isinstance(config, dict):
        return
    name, ngram = "speculative_config", config.get("method") in ("ngram", "[ngram]")
    if not config.get("model") and not config.get("method"):
        says = "num_speculative_tokens was provided but without speculative model."
        yield Contradiction(name, "speculative_config names neither a method nor a model", says)
    elif config.get("num_speculative_tokens") is None and (ngram or config.get("model")):
        says = "A speculative model was provided, but `num_speculative_tokens` was not provided"
        yield Contradiction(name, "speculative_config has no num_speculative_tokens", says)
    low, high = _count(config, "prompt_lookup_min"), _count(config, "prompt_lookup_max")
    if ngram and low is not None and high is not None and low > high:
        says = f"prompt_lookup_min={low} must be <= prompt_lookup_max={high}"
        yield Contradiction(name, f"prompt_lookup_min {low} > prompt_lookup_max {high}", says)
