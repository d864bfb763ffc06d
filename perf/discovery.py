"""Find a perf_analyzer that runs on this machine. Layer: above measurement; knows the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place looked at: `problem` and `hint` say why it cannot be used, None when it can."""

    source: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    problem: str | None = None
    hint: str | None = None


def discover(runtime: Runtime | None = None) -> list[Candidate]:
    raise NotImplementedError
