"""What is wrong with a command line, told by Typer or found before it, in our own form. Layer: cli, its bottom."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from tooling.errors import UsageError, suggest

_NUMBERS: Final = {"int": "whole number", "integer": "whole number", "float": "number"}
"""By the name of an option's type; `integer` is that of older releases of Typer."""
_OUTSIDE: Final = ("greater_than_equal", "less_than_equal", "int_parsing_size")
_OLDER: Final = re.compile(r"'?(.*?)'? is not ")
"""How older releases of Typer begin to tell of a value."""
_SHOWN: Final = 60


def named(root: Any, args: Sequence[str]) -> tuple[list[str], Any]:
    """The words of a command line that name its command, and that command; the root where they name none."""
    words, command = list[str](), root
    for word in args:
        below = getattr(command, "commands", {}).get(word)
        if below is None:
            break
        words.append(word)
        command = below
    return words, command


def require_values(words: Sequence[str], command: Any, rest: Sequence[str]) -> None:
    """An option in the place of another's value is not meant as one, though Typer would take it.

    Raises UsageError.
    """
    options = _options(command)
    following = iter(rest)
    for word in following:
        if word == "--":
            return
        if word in options and not options[word].is_flag and (value := next(following, "")) in options:
            raise _without_value(word, options[word], _page(words), got=f"`{value}`")


def usage_error(error: Any, words: Sequence[str], command: Any) -> UsageError:
    """A usage error of Typer's in the command of these words, told by where it is, what was got and what is taken;
    the hint names the help of that command."""
    param, option, page = getattr(error, "param", None), getattr(error, "option_name", None), _page(words)
    if param is not None:
        return _wrong_value(error, param, page)
    if type(error).__name__ == "NoSuchOption":
        close = getattr(error, "possibilities", None)
        hint = f"did you mean {' or '.join(f'`{one}`' for one in close)}? Else {page}" if close else page
        return UsageError("no such option", where=option, hint=hint)
    if type(error).__name__ == "BadOptionUsage":
        if "require" in error.message:
            return _without_value(str(option), _options(command).get(str(option)), page)
        return UsageError("it takes no value", where=option, hint=page)
    message = error.format_message().strip().rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=page)


def _page(words: Sequence[str]) -> str:
    return f"run `{' '.join(['tritune', *words])} --help`"


def _options(command: Any) -> dict[str, Any]:
    """By every word that names one."""
    options = [param for param in command.params if param.param_type_name == "option"]
    return {word: one for one in options for word in (*one.opts, *one.secondary_opts)}


def _without_value(option: str, param: Any, page: str, got: str | None = None) -> UsageError:
    expected = (_taken(param) if param is not None else None) or "a value"
    return UsageError("the value is missing", where=option, got=got, expected=expected, hint=page)


def _taken(param: Any) -> str | None:
    """What it takes, as far as that can be said shortly."""
    number, bounds = _number(param), _bounds(param)
    counted = f"a {number}{', ' if bounds else ''}{bounds}" if number else None
    return ", ".join(_choices(param)) or counted or (param.metavar if param.param_type_name == "option" else None)


def _wrong_value(error: Any, param: Any, page: str) -> UsageError:
    """Of an option or an argument: what it was given, if it was, and what it takes."""
    is_option = param.param_type_name == "option"
    where = max(param.opts, key=len) if is_option else param.metavar or param.name.upper()
    choices, number, bounds = _choices(param), _number(param), _bounds(param)
    if type(error).__name__ == "MissingParameter":
        return UsageError("it is missing", where=where, expected=_taken(param), hint=page)
    value, outside = _given(error)
    got = None if value is None else f"`{value[:_SHOWN]}{'…' if len(value) > _SHOWN else ''}`"
    if outside:
        return UsageError("out of range", where=where, got=got, expected=bounds, hint=page)
    if choices:
        hint = suggest(value or "", choices) or page
        return UsageError("no such choice", where=where, got=got, expected=", ".join(choices), hint=hint)
    if number:
        return UsageError(f"not a {number}", where=where, got=got, expected=_taken(param), hint=page)
    return UsageError(error.message.removeprefix("Value error, ").rstrip("."), where=where, got=got, hint=page)


def _given(error: Any) -> tuple[str | None, bool]:
    """The value, and whether it only is too large or too small."""
    details = getattr(error.__cause__, "errors", None)  # pydantic's, whose text leaves the value out
    if callable(details):
        told = details()[0]
        return str(told["input"]), told["type"] in _OUTSIDE
    found = _OLDER.match(error.message)
    return found[1] if found else None, " is not in the range " in error.message


def _choices(param: Any) -> list[str]:
    kind = getattr(param, "type_descriptor", None) or getattr(param, "type", None)
    return [str(getattr(one, "value", one)) for one in getattr(kind, "choices", None) or ()]


def _number(param: Any) -> str | None:
    """What a number for it is called; None where it takes none."""
    kind = getattr(param, "type_descriptor", None)
    name = getattr(kind.annotation, "__name__", "") if kind is not None else param.type.name.partition(" ")[0]
    return _NUMBERS.get(name)


def _bounds(param: Any) -> str:
    """The numbers that it takes; nothing where it takes all."""
    source = param if hasattr(param, "min") else param.type
    least, most = getattr(source, "min", None), getattr(source, "max", None)
    if least is None or most is None:
        return f"{least} or more" if least is not None else f"{most} or less" if most is not None else ""
    return f"{least} to {most}"
