"""JSON from outside into a pydantic model, with its problems told in the tool's own form. Layer: bottom of perf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tooling.errors import Problem, UsageError, suggest
from tooling.validation import wrong

Model = TypeVar("Model", bound=BaseModel)
_MOST = 20


def validated(kind: type[Model], data: object, where: object) -> Model:
    """`data` as a checked `kind`. Raises UsageError with its problems, the first twenty of them."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = [_problem(dict(one), kind, str(where)) for one in error.errors()]
    shown = found[:_MOST]
    if len(found) > _MOST:
        shown.append(Problem(f"and {len(found) - _MOST} more", where=str(where)))
    raise UsageError(problems=shown)


def _problem(one: Mapping[str, Any], kind: type[BaseModel], where: str) -> Problem:
    what, expected = wrong(one)
    return Problem(
        f"`{'.'.join(map(str, one['loc']))}`: {what}" if one["loc"] else what,
        where=where,
        got=None if one["type"] == "missing" else repr(one["input"])[:80],
        expected=expected,
        hint=suggest(str(one["loc"][-1]), kind.model_fields) if one["type"] == "extra_forbidden" else None,
    )
