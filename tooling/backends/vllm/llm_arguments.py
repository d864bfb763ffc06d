"""Keys and values of model.json that the engine does not take, told before it starts. Layer: backend.

Types are those that vLLM's own class of arguments declares; what it declares by a class of its own is left to it.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Mapping
from typing import Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin

from llm_environment import ARGUMENTS, Refusal

_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "an object",
}
_LISTS = (list, tuple, set, frozenset)
_FLAGS = ("true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "1", "0")
"""Texts that vLLM reads as a flag, in whatever case."""
COUNTS = (
    *("max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "pipeline_parallel_size", "block_size"),
    *("max_loras", "max_lora_rank", "num_gpu_blocks_override"),
)
"""Whole numbers from 1."""
_SHOWN = 60


def require_arguments(folder, arguments, declared, engine):
    """Raise Refusal with every key that is none of `declared` (types by names) and every value of another type;
    `engine` says whose they are."""
    file, told = folder / ARGUMENTS, []
    for name, value in arguments.items():
        if name not in declared:
            close = difflib.get_close_matches(name, declared, n=1)
            fix = f"did you mean `{close[0]}`?" if close else "leave it out"
            told.append(f"it has no engine argument `{name}`: {fix}")
        elif not takes(declared[name], value):
            expected, fix = " or ".join(dict.fromkeys(_described(declared[name]))), _meant(declared[name], value)
            told.append(f"`{name}` is {_shown(value)}, and should be {expected}{fix}")
        elif name in COUNTS and isinstance(value, int) and value < 1:
            told.append(f"`{name}` is {value}, and should be 1 or more")
    if told:
        raise Refusal(f"{engine} does not take what '{file}' holds: {'; '.join(told)}")


def takes(kind, value):
    """Whether an argument that is declared so takes a value as JSON gives it; for a flag also the texts that vLLM
    reads."""
    kind, parts = _opened(kind)
    if kind is Union:
        return any(takes(part, value) for part in parts)
    if kind is Literal:
        return any(value == part and type(value) is type(part) for part in parts)
    if kind is Any or isinstance(kind, str | ForwardRef):
        return True
    if value is None or kind is types.NoneType:
        return value is None and kind is types.NoneType
    if kind is bool:
        return isinstance(value, bool) or (isinstance(value, str) and value.lower() in _FLAGS)
    if kind not in _WORDS:
        return not isinstance(value, list)
    return isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)


def _opened(kind):
    """A type without what is written around it (one of _WORDS, Union, Literal, or another), and its parts."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _opened(parts[0])
    if origin is types.UnionType:
        return Union, parts
    if origin in (Union, Literal):
        return origin, parts
    plain = origin or kind
    if plain in _LISTS:
        return list, ()
    return (dict, ()) if plain is Mapping else (plain, ())


def _described(kind):
    kind, parts = _opened(kind)
    if kind is Union:
        for part in parts:
            yield from _described(part)
    elif kind is Literal:
        yield from (json.dumps(part) for part in parts)
    elif kind is not types.NoneType:
        yield _WORDS.get(kind, "an object")


def _meant(kind, value):
    """How to write a value that stands in quotes by mistake, or the text that is spelled nearly so, or a default."""
    if value is None:
        return ": leave it out for vLLM's default"
    if not isinstance(value, str):
        return ""
    try:
        inner = json.loads(value)
    except (ValueError, RecursionError):
        close = difflib.get_close_matches(json.dumps(value), list(_described(kind)), n=1)
        return f": did you mean {close[0]}?" if close else ""
    return f": write {value.strip()} without quotes" if inner is not None and takes(kind, inner) else ""


def _shown(value):
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
