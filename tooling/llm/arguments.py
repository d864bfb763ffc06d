"""Which engine arguments each vLLM knows, and whether a value is one that it takes. Layer: llm."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from tooling.errors import Problem, UsageError, suggest
from tooling.llm.argument_reader import ANY, read_arguments

FACTS: Final = Path(__file__).parents[1] / "data" / "vllm_arguments.yaml"
TEXT_FLAGS: Final = ("enable_lora",)
"""Flags that Triton's backend reads itself, also as texts; before vLLM gets them."""
_SHOWN: Final = 60
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


def meant(types: tuple[str, ...], value: object) -> str | None:
    """How to write a value that is not taken: without its quotes, or as the text that is spelled nearly so."""
    if not isinstance(value, str):
        return None
    try:
        inner = json.loads(value)
    except (ValueError, RecursionError):
        return suggest(value, [kind.strip("'") for kind in types if kind.startswith("'")])
    return f"write {value.strip()} without quotes" if inner is not None and takes(types, inner) else None


def misfits(
    arguments: Mapping[str, Any], known: Mapping[str, tuple[str, ...]], engine: str, version: str, where: str
) -> Iterator[Problem]:
    """Every key that is none of the `known` arguments of an engine, a vLLM of this version, and every value that it
    does not take."""
    for name, value in arguments.items():
        if name not in known:
            gone = removed_in(name, version)
            hint = f"gone since vLLM {gone}" if gone else suggest(name, known)
            yield Problem(f"{engine} has no such engine argument", where, f"`{name}`", hint=hint)
        elif not takes(known[name], value) and not (name in TEXT_FLAGS and isinstance(value, str)):
            expected, hint = described(known[name]), meant(known[name], value)
            yield Problem(f"not a value of {name}", where, f"`{shown(value)}`", expected, hint)


def require_taken(arguments: Mapping[str, Any], package: Path, version: str, file: Path) -> None:
    """Raise UsageError for arguments in a file that the embedded server's vLLM, which stands in `package`, does not
    take; texts in place of flags are left to it."""
    known = read_arguments(package)
    judged = {
        name: value
        for name, value in arguments.items()
        if not (isinstance(value, str) and "bool" in known.get(name, ()))
    }
    if problems := [*misfits(judged, known, f"vLLM {version} of the embedded server", version, str(file))]:
        raise UsageError(problems=problems)


def shown(value: object) -> str:
    """A value as JSON has it, for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


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
    if version is not None:
        yield from _draft(arguments.get("speculative_config"), version)
    if version is not None and arguments.get("speculative_model"):
        yield from _first_engine(arguments, version)


_NO_DRAFTS: Final = ("0.10.0", "0.15.0")
"""From the first on there was the second engine alone, which speculates with a whole draft model from the second on."""
_HEADS: Final = ("eagle", "medusa", "mtp", "speculator")
"""What names and kinds of drafts hold that are heads of the model itself."""


def _draft(config: object, version: str) -> Iterator[Contradiction]:
    """What vLLM's second engine could not do at first."""
    first_text, again_text = _NO_DRAFTS
    refused = version_key(first_text) <= version_key(version) < version_key(again_text)
    if isinstance(config, dict) and refused and _is_whole_model(config):
        message = (
            f"vLLM {version} speculates by n-grams but with no draft model, unlike those before {first_text} and from "
        )
        yield Contradiction("speculative_config", f"{message}{again_text} on")


def _is_whole_model(speculation: Mapping[str, Any]) -> bool:
    """Whether a speculation is by a model of its own, as far as its name and its config.json tell."""
    named, method = speculation.get("model"), speculation.get("method")
    if method or not isinstance(named, str):
        return method == "draft_model"
    try:
        config = json.loads((Path(named) / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        config = None
    kind = [config.get("model_type"), config.get("architectures")] if isinstance(config, dict) else []
    return not any(head in f"{named} {kind}".lower() for head in _HEADS)


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
