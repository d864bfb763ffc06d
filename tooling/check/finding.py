"""Rules, and findings of where one is broken. Layer: check, its bottom."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Severity(str, Enum):
    """How bad it is: Triton refuses the model, dies, or fails every request; does not do what is written; good to know.

    A running server that serves something else than the repository holds is an error too.
    The members stand from worst to least.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Stage(str, Enum):
    """When Triton would come across it; a later stage is only reached when the earlier ones find nothing.

    `poll`: the configuration is read, and its own rules are checked. `dependency`: an ensemble meets its models.
    `load`: the backend meets the model file, and instances start. `request`: a request is sent. `serving`: what a
    running server has loaded is compared with the repository.
    """

    POLL = "poll"
    DEPENDENCY = "dependency"
    LOAD = "load"
    REQUEST = "request"
    SERVING = "serving"


class Evidence(str, Enum):
    """How the fact behind a rule is known; what is only recalled is never more than a warning."""

    RUN = "seen on a running server"
    READ = "read in the source"
    DOCUMENTED = "documented"
    REPORTED = "reported in a public issue"
    RECALLED = "recalled"


@dataclass(frozen=True, slots=True)
class Rule:
    """One fact about Triton that a repository can get wrong.

    `example` is a config of a model `example` that breaks the rule; other files follow it under lines `--- PATH`, an
    ONNX file as `x: FP32 [batch, 8] -> y: FP32 [batch, 8]`, what a server has as JSON under `--- server`. `since` and
    `until` are the first and the last release that behave so.
    """

    id: str
    severity: Severity
    stage: Stage
    about: str
    why: str
    example: str
    source: str
    evidence: Evidence = Evidence.RUN
    since: str | None = None
    until: str | None = None

    def holds_for(self, tag: str) -> bool:
        """Whether the release with this tag behaves so."""
        return (self.since is None or self.since <= tag) and (self.until is None or tag <= self.until)


@dataclass(frozen=True, slots=True)
class Place:
    """A file, and the position in it as Triton's own parser counts: both from 1, columns in bytes, tabs to eight."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is broken at a place.

    `says` is what the server itself would say, word for word, without its status code; only the first refusal of a
    model is ever said, and `first` marks it. `fix` are safe assignments (`tooling.pbtxt.paths`) that put it right.
    """

    rule: Rule
    place: Place
    message: str
    model: str | None = None
    says: str | None = None
    hint: str | None = None
    fix: tuple[str, ...] = ()
    first: bool = False

    @property
    def severity(self) -> Severity:
        return self.rule.severity

    def as_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule.id,
            "severity": self.rule.severity.value,
            "stage": self.rule.stage.value,
            "model": self.model,
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
            "message": self.message,
            "hint": self.hint,
            "server": self.says,
            "first": self.first,
            "fixable": bool(self.fix),
        }
