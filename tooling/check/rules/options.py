"""How backends read the text of a parameter, and what they do with one they cannot read. Layer: check."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, TypeAlias

from tooling.check.finding import Finding, Rule
from tooling.check.model import Model
from tooling.errors import suggest

Reads: TypeAlias = Callable[[str], bool]
"""Whether a backend can read this text."""

INTEGER: Final = re.compile(r"\s*[+-]?\d+")
"""Digits in front, which is what `stoi` reads."""
_BATCHING: Final = "TRITON_BATCH_STRATEGY_PATH"
"""The custom batching library, which may read parameters of its own."""


def integer(text: str) -> bool:
    return INTEGER.match(text) is not None


def boolean(text: str) -> bool:
    """As the library reads it that C++ backends share."""
    return text.lower() in ("true", "on", "1", "false", "off", "0")


def one_of(*words: str) -> Reads:
    """One of these words, in any case."""
    return lambda text: text.upper() in words


def anything(text: str) -> bool:
    return True


def parameter(key: str, value: str) -> str:
    """A parameter in a config, for the examples of rules."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def unread(model: Model, known: Mapping[str, Reads]) -> Iterator[tuple[str, str]]:
    """The parameters, with their texts, that the backend reads and cannot make anything of."""
    for key, value in sorted(model.config.parameters.items()):
        if key in known and not known[key](value.string_value):
            yield key, value.string_value


def unknown(model: Model, rule: Rule, known: Collection[str]) -> Iterator[Finding]:
    """Parameters that the backend does not read."""
    given = model.config.parameters
    for key in sorted(given) if _BATCHING not in given else ():
        if key not in known:
            yield model.find(
                rule,
                f"unknown parameter {key} for backend {model.config.backend}: it has no effect",
                "parameters",
                key,
                hint=suggest(key, known) or suggest(key.upper(), known) or _listed(known),
            )


def _listed(known: Collection[str]) -> str:
    return f"known are {', '.join(sorted(known))}" if known else "this release reads none"
