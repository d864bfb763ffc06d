"""What the words of an option look like, for the JSON schema that editors check a project file with. Layer: project.

The metavar of an option in the help says the form. The schema is coarser than the command: it takes all that the
command takes, and tells most slips of the keyboard while they are typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tooling.units import DURATION_PATTERN, SIZE_PATTERN

_COUNT: Final = "[0-9]{1,9}"
_ZERO: Final = {"minimum": 0, "maximum": 0}
"""A number without a unit is a time or a size only as 0."""
_ANY: Final = {"type": ["string", "number", "boolean"]}


@dataclass(frozen=True, slots=True)
class Form:
    """A word's pattern, its types, and what holds of it where it is written as a number."""

    pattern: str
    types: tuple[str, ...] = ("string",)
    number: Mapping[str, Any] = field(default_factory=dict)

    def one(self) -> dict[str, Any]:
        """The schema of one such word."""
        return {"type": list(self.types), "pattern": f"^({self.pattern})$", **self.number}

    def several(self) -> dict[str, Any]:
        """The schema of several, with commas or as a list."""
        joined = {**self.one(), "pattern": rf"^({self.pattern})(\s*,\s*({self.pattern}))*$"}
        return {"anyOf": [joined, {"type": "array", "items": self.one()}]}


_WORD: Final = Form(".+", ("string", "number"))
_TIME: Final = Form(DURATION_PATTERN, ("string", "number"), _ZERO)
_NUMBERS: Final = Form(_COUNT, ("string", "integer"), {"minimum": 0})
_PAIR: Final = Form("[^=]+=.*")
FORMS: Final[Mapping[str, Form]] = {
    "TIME": _TIME,
    "TIME,…": _TIME,
    "TIME|N": Form(f"{DURATION_PATTERN}|{_COUNT}", ("string", "integer"), {"minimum": 0}),
    "SIZE": Form(SIZE_PATTERN, ("string", "number"), _ZERO),
    "N,…": _NUMBERS,
    "N[,N…]": Form(rf"{_COUNT}(\s*,\s*{_COUNT})*", ("string", "integer"), {"minimum": 0}),
    "all|latest:N|N,N…": Form(rf"all|latest:[1-9][0-9]*|{_COUNT}", ("string", "integer"), {"minimum": 0}),
    "all|none|IDS": Form(r"[0-9A-Za-z/-]+(\s*,\s*[0-9A-Za-z/-]+)*", ("string", "integer"), {"minimum": 0}),
    "BATCHxLENGTH": Form("[1-9][0-9]{0,5}x[1-9][0-9]{0,5}"),
    "NAME:TYPE:DIMS": Form(".+:[A-Za-z0-9_]+:[-,0-9]*"),
    "QUANTITY": Form(r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|Ki|[MGTPE]i?)?", ("string", "number"), {"exclusiveMinimum": 0}),
    "URL": Form("(s3|gs)://.+"),
    "NAME[:KEY=VALUE,…]": Form("(tensorrt|cuda|openvino)(:.*)?"),
    **dict.fromkeys(("KEY=VALUE", "NAME=KIND", "INPUT=OUTPUT", "NAME=KIND:SOURCE", "NAME=N"), _PAIR),
}
"""By metavar. Words without a form here are names and other free text."""


def schema_of(kind: str, metavar: str) -> dict[str, Any]:
    """The schema of an option's value; `kind` is word, list, many or pairs (`tooling.project.section.Option`)."""
    form = FORMS.get(metavar)
    if kind in ("word", "list"):
        return (form or _WORD).one() if kind == "word" else (form or _WORD).several()
    listed = {"type": "array", "items": form.one() if form else _ANY}
    return listed if kind == "many" else {"anyOf": [listed, {"type": "object", "additionalProperties": _ANY}]}


def path_named(metavar: str, text: str) -> str | None:
    """The file or directory that a word of an option names; None for a word that names none."""
    if metavar == "FORM":
        return None if "=" in text or text == "current" else text
    if metavar.startswith("ngram"):
        by, _, count = text.rpartition(":")
        named = by if count.isdecimal() and by else text
        return None if named == "ngram" else named
    return None
