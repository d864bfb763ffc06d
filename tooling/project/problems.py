"""What is wrong with a project file, each thing at its line and column. Layer: project, below the file's schema."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from tooling.errors import Problem, suggest
from tooling.project.yaml_places import Loc, Places
from tooling.validation import wrong

ORIGINS: Final = ("source", "llm", "ensemble")
"""The keys that say what a model is made from: one of them, or none for a model that is there."""


@dataclass(frozen=True, slots=True)
class Found:
    """A problem at a path of the file; `alone` if its words name the key already."""

    loc: Loc
    problem: Problem
    alone: bool = False


class Wrong(ValueError):
    """What a check says of a value: its problems, each with the path from the value to it."""

    def __init__(self, found: Iterable[Found]) -> None:
        self.found = tuple(found)
        super().__init__("; ".join(str(one.problem) for one in self.found))

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> Wrong:
        """Of the value itself."""
        return cls(Found((), problem) for problem in problems)


def of_file(problem: Problem) -> Problem:
    """A problem of another file that the project file names, to be told at the key that names it."""
    return replace(problem, what=f"{problem.where}: {problem.what}" if problem.where else problem.what, where=None)


def found_in(error: ValidationError, kind: type[BaseModel]) -> Iterator[Found]:
    """The problems of data that is no `kind`."""
    for one in error.errors():
        inner = one.get("ctx", {}).get("error")
        if isinstance(inner, Wrong):
            yield from (replace(below, loc=(*one["loc"], *below.loc)) for below in inner.found)
        elif not _is_other_form(one):
            yield _found(one, kind)


def told(found: Iterable[Found], path: Path, places: Places) -> list[Problem]:
    """The problems as the file has them, in its order and each once."""
    listed: dict[tuple[int, int, str], Problem] = {}
    for one in found:
        loc = places.known(one.loc)
        what = one.problem.what if one.alone or not loc else f"`{'.'.join(map(str, loc))}`: {one.problem.what}"
        line, column = map(int, places.mark(loc).split(":"))
        listed.setdefault((line, column, what), replace(one.problem, what=what, where=f"{path}:{line}:{column}"))
    return [listed[key] for key in sorted(listed)]


def contradictions(models: object) -> Iterator[Found]:
    """Keys of a model that disagree, whatever else is wrong with it."""
    for name, model in models.items() if isinstance(models, dict) else ():
        if isinstance(model, dict):
            yield from (replace(one, loc=("models", name, *one.loc)) for one in _disagreeing(model))


def _disagreeing(model: Mapping[Any, Any]) -> Iterator[Found]:
    def problem(key: str, what: str, hint: str) -> Found:
        return Found((key,), Problem(what, hint=hint), alone=True)

    origins = [key for key in ORIGINS if model.get(key)]
    if len(origins) > 1:
        yield problem(origins[1], f"`{origins[0]}` and `{origins[1]}` exclude each other", "keep one of them")
    if model.get("export") and "source" not in origins:
        yield problem("export", "nothing is exported without `source`", "name the source, or leave `export` out")
    if model.get("tune") is False and model.get("slo"):
        yield problem("slo", "nothing is measured for it with `tune: false`", "leave one of them out")


def _is_other_form(one: Any) -> bool:
    """Whether this only says that a value is no `true` or `false`, which it might be in place of keys."""
    return str(one["type"]).startswith("bool") and one["loc"][-1:] == ("bool",)


def _found(one: Any, kind: type[BaseModel]) -> Found:
    loc, value = one["loc"], repr(one["input"])[:60]
    key = str(loc[-1]) if loc else ""
    if one["type"] == "extra_forbidden":
        return Found(loc, Problem(f"unknown key `{key}`", hint=_advice(kind, loc, key)), alone=True)
    if one["type"] == "missing":
        return Found(loc, Problem(f"`{key}` is missing"), alone=True)
    what, expected = wrong(one)
    return Found(loc, Problem(what, got=value, expected=expected))


def _advice(kind: type[BaseModel], loc: Sequence[Any], key: str) -> str | None:
    """Where else this key stands, or which one was meant."""
    for end in range(len(loc) - 2, -1, -1):
        if key in _keys_at(kind, loc[:end]):
            return f"it is a key of `{'.'.join(map(str, loc[:end]))}`" if end else "it is a key of the file itself"
    return suggest(key, _keys_at(kind, loc[:-1]))


def _keys_at(kind: Any, loc: Iterable[Any]) -> list[str]:
    """The keys that a place of the file may have."""
    for part in loc:
        fields = {field.alias or name: field for name, field in kind.model_fields.items()} if _is_model(kind) else {}
        if part in fields:
            kind = fields[part].annotation
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        models = [arg for arg in typing.get_args(kind) if _is_model(arg)]
        kind = models[0] if models and typing.get_origin(kind) is not dict else kind
    return [field.alias or name for name, field in kind.model_fields.items()] if _is_model(kind) else []


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
