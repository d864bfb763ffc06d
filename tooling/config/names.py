"""The rule for names that become directories of a model repository. Layer: config."""

from __future__ import annotations

import re

from tooling.errors import Problem

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def name_problem(name: str, what: str = "model name") -> Problem | None:
    """What makes `name` unusable as a directory name for Triton, or None.

    Triton itself refuses little, but a blank or a quote in a model's path makes its Python backend hang while loading,
    and a separator or `..` leaves the repository.
    """
    if _NAME.fullmatch(name) and ".." not in name:
        return None
    return Problem(
        f"not a usable {what}",
        got=f"`{name}`",
        expected="ASCII letters, digits, `_`, `-` and single `.`, starting with a letter, a digit or `_`",
        hint=f"for example `{re.sub(r'[^A-Za-z0-9_-]+', '-', name).strip('-') or 'model'}`",
    )
