"""What pydantic finds wrong with a value, in this project's words. Layer: bottom, imports nothing of the project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BOUNDS: Final = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "{} or less"),
    "less_than": ("lt", "less than {}"),
}
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "keys with values",
    "model": "keys with values",
}
_OTHER_KIND: Final = ("type", "parsing", "parsing_size", "from_float", "number")
"""What the name of an error ends in, after a kind, where a value is of another one."""


def wrong(error: Mapping[str, Any]) -> tuple[str, str | None]:
    """What is wrong with a value, by one of `ValidationError.errors()`, and what was expected in its place."""
    name, context = error["type"], error.get("ctx", {})
    kind, _, end = name.partition("_")
    if name in _BOUNDS:
        bound, words = _BOUNDS[name]
        return "out of range", words.format(context[bound])
    if name in ("too_short", "string_too_short"):
        return "too short", f"{context['min_length']} {'letter' if kind == 'string' else 'entry'} or more"
    if name == "literal_error":
        return "no such choice", str(context["expected"])
    if name == "extra_forbidden":
        return "unknown key", None
    if name == "missing":
        return "it is missing", None
    if kind in _KINDS and end in _OTHER_KIND:
        return f"not {_KINDS[kind]}", _KINDS[kind]
    return error["msg"].removeprefix("Value error, "), None
