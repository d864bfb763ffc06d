"""The error tree: each class carries the exit code of its kind. Layer: bottom, imports nothing of the project."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import ClassVar

BUSY = "give the machine less to do, if it is busy: on full cores everything takes longer"
"""A hint for where a time limit was reached."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where it stands, what it is, what was got, what was expected, how to fix it."""

    what: str
    where: str | None = None
    got: str | None = None
    expected: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        facts = [f"got {self.got}"] if self.got is not None else []
        facts += [f"expected {self.expected}"] if self.expected is not None else []
        return f"{text} ({'; '.join(facts)})" if facts else text

    def as_dict(self) -> dict[str, str | None]:
        return asdict(self)


class TrituneError(Exception):
    """Root of every error the tool raises on purpose.

    Raise with one message and its facts, or with `problems` for all problems of a file at once.
    """

    exit_code: ClassVar[int] = 70
    kind: ClassVar[str] = "internal"

    def __init__(
        self,
        what: str = "",
        *,
        where: object = None,
        got: object = None,
        expected: str | None = None,
        hint: str | None = None,
        problems: Iterable[Problem] = (),
    ) -> None:
        listed = tuple(problems)
        self.problems: tuple[Problem, ...] = listed or (
            Problem(
                what,
                where=None if where is None else str(where),
                got=None if got is None else str(got),
                expected=expected,
                hint=hint,
            ),
        )
        super().__init__("; ".join(str(p) for p in self.problems))


class Refused(TrituneError):
    """The answer is no: a verification failed, Triton refused the model, a target is not met."""

    exit_code = 1
    kind = "refused"


class UsageError(TrituneError):
    """Wrong usage, a wrong input file, or a target that cannot be used (unwritable, full, port taken, locked)."""

    exit_code = 2
    kind = "usage"


class MissingError(TrituneError):
    """Something needed is not there: a library, a binary, a GPU, a server."""

    exit_code = 3
    kind = "missing"


class ExternalError(TrituneError):
    """An external program failed: perf_analyzer, pip, tritonserver died or hung."""

    exit_code = 4
    kind = "external"


class Terminated(BaseException):
    """SIGTERM arrived: unwinds like KeyboardInterrupt so that every clean-up runs; exit code 143."""


def suggest(name: str, known: Iterable[str]) -> str | None:
    """A hint naming the closest known spelling of `name`, or None when nothing is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else None


def kind_of(value: object) -> str:
    """What a value read from JSON or YAML is, in plain words: `a list`, not `list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    words = {dict: "a mapping", list: "a list", str: "a text", int: "a number", float: "a number"}
    return words.get(type(value), f"a {type(value).__name__}")


def json_fault(error: Exception, source: str | bytes) -> str:
    """Why a text is no JSON, in plain words."""
    if not source.strip():
        return "an empty file"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.object[error.start]:#04x}, which is no UTF-8, at {error.start}"
    return "brackets nested too deeply" if isinstance(error, RecursionError) else str(error)


def install_extra(name: str) -> str:
    """The hint that names the optional dependencies to install."""
    return f"pip install 'tritune[{name}]' (in a checkout: pip install -e '.[{name}]')"
