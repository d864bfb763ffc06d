"""A command's options as keys of a project file: their types, and the words of a command line. Layer: project.

A section of `tritune.yaml` has the options of its command as keys (`max_queue_delay` for `--max-queue-delay`), with the
command's own help as their documentation, so neither can fall behind the other.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    WithJsonSchema,
    create_model,
)
from typer.models import OptionInfo

from tooling.errors import Problem, UsageError
from tooling.project.forms import path_named, schema_of
from tooling.project.problems import Found, Wrong
from tooling.repository import is_there

_EXPECTED = {
    "word": "a word or a number",
    "list": "a word, a number, or a list of them",
    "many": "a list",
    "pairs": "a list, or a mapping of names to values",
}


class Section(BaseModel):
    """Values for the options of one command."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def given(self) -> dict[str, Any]:
        """The values by the parameters' own names."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def values_of(section: Section | bool | None) -> dict[str, Any]:
    """What a section gives; nothing where `true`, `false` or nothing stands in its place."""
    return section.given() if isinstance(section, Section) else {}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command: the parameter it sets, the words that set it, and what is given with it.

    `kind` is flag, int, float, choice or path; or, for words, word, list, many (it may be repeated) or pairs.
    """

    name: str
    on: str
    off: str | None
    kind: str
    choices: tuple[str, ...]
    info: OptionInfo

    @property
    def key(self) -> str:
        return self.on.removeprefix("--").replace("-", "_")


def options_of(command: Callable[..., Any], hidden: Iterable[str] = ()) -> Iterator[Option]:
    """The options of a command, which is a function that Typer takes, but those whose keys are `hidden`."""
    hints = get_type_hints(command)
    for name, parameter in inspect.signature(command).parameters.items():
        info = parameter.default
        if isinstance(info, OptionInfo):
            kinds = [part for part in get_args(hints[name]) if part is not type(None)]
            union = get_origin(hints[name]) in (Union, UnionType)
            option = _option(name, kinds[0] if union else hints[name], info)
            if option.key not in hidden:
                yield option


def _option(name: str, kind: Any, info: OptionInfo) -> Option:
    spelled = f"--{name.replace('_', '-')}"
    words = [word for word in info.param_decls or () if word.startswith("--")]
    on = words[0] if words else spelled
    off = on.replace("--", "--no-", 1) if kind is bool and not words else None
    choices: tuple[str, ...] = ()
    metavar = info.metavar or ""
    if kind is bool:
        told = "flag"
    elif get_origin(kind) is list:
        told = "pairs" if re.match("[A-Z]+=", metavar) else "many"
    elif get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        told = "choice"
        choices = get_args(kind) or tuple(str(member.value) for member in kind)
    else:
        told = {int: "int", float: "float", Path: "path"}.get(kind) or ("list" if "…" in metavar else "word")
    return Option(name, on, off, told, choices, info)


def section_of(
    name: str, command: Callable[..., Any], hidden: Iterable[str] = (), extra: Mapping[str, Any] | None = None
) -> Any:
    """The model of a section: every option of `command` but those in `hidden`, and the fields of `extra`."""
    fields: dict[str, Any] = {
        option.name: (_type(option) | None, Field(default=None, alias=option.key, description=option.info.help))
        for option in options_of(command, hidden)
    }
    return create_model(name, __base__=Section, **{**fields, **(extra or {})})


def words_of(command: Callable[..., Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """`values`, by the parameters' own names, as the words of a command line."""
    return tuple(word for option in options_of(command) for word in _words(option, values.get(option.name)))


def files_in(command: Callable[..., Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """The files and directories that options name for the command to read."""
    return tuple(
        path
        for option in options_of(command)
        if values.get(option.name) is not None
        for path in _paths(option, values[option.name])
    )


def _paths(option: Option, value: Any) -> list[str]:
    if option.kind == "path":
        return [str(value)]
    if option.kind not in ("word", "many"):
        return []
    named = (path_named(option.info.metavar or "", text) for text in _texts(option, value))
    return [path for path in named if path]


def _words(option: Option, value: Any) -> Iterator[str]:
    if value is None:
        return
    if option.kind == "flag":
        if value or option.off:
            yield option.on if value else str(option.off)
    else:
        yield from (f"{option.on}={text}" for text in _texts(option, value))


def _texts(option: Option, value: Any) -> list[str]:
    """What the option is given, each time it is."""
    if option.kind in ("many", "pairs"):
        entries = [f"{key}={_plain(one)}" for key, one in value.items()] if isinstance(value, dict) else value
        return [_plain(entry) for entry in entries]
    return [",".join(map(_plain, value)) if isinstance(value, list) else _plain(value)]


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(option: Option) -> Any:
    if option.kind == "flag":
        return StrictBool
    if option.kind in ("int", "float"):
        number = StrictInt if option.kind == "int" else float
        infinite = None if option.kind == "int" else False
        return Annotated[number, Field(ge=option.info.min, le=option.info.max, allow_inf_nan=infinite)]
    if option.kind == "choice":
        return Literal[option.choices]
    if option.kind == "path":
        return Annotated[str, Field(min_length=1), AfterValidator(existing)]
    schema = schema_of(option.kind, option.info.metavar or "")
    return Annotated[Any, AfterValidator(partial(_checked, option)), WithJsonSchema(schema)]


def existing(value: str, info: ValidationInfo) -> str:
    """The name of a file for a command to read, which must be there unless a step may make it: the context of the
    validation names the project's `root` and its `repository`."""
    facts = info.context or {}
    root, repository = facts.get("root"), facts.get("repository")
    if root is None or is_there(root / value) or (repository and (root / value).is_relative_to(root / repository)):
        return value
    raise Wrong.of([Problem("there is no such file or directory", got=f"`{value}`", expected=f"a path from {root}")])


def _checked(option: Option, value: Any, info: ValidationInfo) -> Any:
    """The value, if it is one for this option."""
    entries: list[Any]
    if option.kind == "pairs" and isinstance(value, dict):
        entries = list(value.values())
    elif option.kind != "word" and isinstance(value, list):
        entries = value
    else:
        entries = [value] if option.kind in ("word", "list") else [None]
    flags = option.kind in ("many", "pairs")
    for entry in entries:
        if not isinstance(entry, (str, int, float)) or entry == "" or (isinstance(entry, bool) and not flags):
            raise ValueError(f"expected {_EXPECTED[option.kind]}")
    check, problems = option.info.callback, list[Problem]()
    for text in _texts(option, value):
        try:
            if check is not None:
                check(text)
        except UsageError as error:
            problems += error.problems
    if problems:
        raise Wrong.of(problems)
    _require_all(_paths(option, value), info)
    return value


def _require_all(paths: Iterable[str], info: ValidationInfo) -> None:
    """Raise Wrong with every path that should be there and is not."""
    missing: list[Found] = []
    for path in paths:
        try:
            existing(path, info)
        except Wrong as error:
            missing += error.found
    if missing:
        raise Wrong(missing)
