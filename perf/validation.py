"""JSON from outside into a pydantic model, with its problems told in the tool's own form. Layer: bottom of perf."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tooling.errors import Problem, UsageError, suggest

Model = TypeVar("Model", bound=BaseModel)
_MOST = 20


def validated(kind: type[Model], data: object, where: object) -> Model:
    """`data` as a checked `kind`. Raises UsageError with its problems, the first twenty of them."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = [
            Problem(
                f"`{'.'.join(map(str, e['loc']))}`: {_said(e['msg'])}" if e["loc"] else _said(e["msg"]),
                where=str(where),
                got=repr(e["input"])[:80],
                hint=suggest(str(e["loc"][-1]), kind.model_fields) if e["type"] == "extra_forbidden" else None,
            )
            for e in error.errors()
        ]
    shown = found[:_MOST]
    if len(found) > _MOST:
        shown.append(Problem(f"and {len(found) - _MOST} more", where=str(where)))
    raise UsageError(problems=shown)


def _said(message: str) -> str:
    """Without what pydantic puts before the words of a validator."""
    return message.removeprefix("Value error, ")
