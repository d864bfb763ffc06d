"""What a bench measures, and what a round of it gives. Layer: below bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from perf.measurement import Measurement
    from perf.target import Variant
    from perf.workload import Workload
    from tooling.config.proto import ModelConfig

Stage = Literal["screen", "paired", "random arrivals", "bursts", "longer texts"]
_AND = "+"


class CandidateFailed(Exception):
    """A candidate that Triton refused or that could not be measured; the text says why."""


class Identified(Protocol):
    """A candidate, whatever else it is: its `id` is a key of `Subject.others`."""

    @property
    def id(self) -> str: ...


class Load(NamedTuple):
    """Traffic, and the file with its requests."""

    workload: Workload
    input_file: Path


class Round(NamedTuple):
    """Runs of one round: the base's, those of the others by their ids, and why others failed. The base is not
    measured in a round of failures."""

    base: Measurement | None
    others: Mapping[str, Measurement]
    failed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: the base, the others by their ids, the traffic, and the window asked for.

    `model` and `base_name` are for messages; `inputs` are the requests of those of the others that take other ones.
    `asked` is the configuration of the model that requests go to, where that is not the base (perf.pipeline).
    """

    model: str
    base: Variant
    others: Mapping[str, Variant]
    workload: Workload
    input_file: Path
    window_ms: int
    base_name: str = "the current config"
    inputs: Mapping[str, Path] = field(default_factory=dict)
    asked: ModelConfig | None = None

    @property
    def batching(self) -> bool:
        """Whether perf_analyzer stacks the rows of a request."""
        return bool((self.asked or self.base.config).max_batch_size > 0)

    def load(self, other: str = "") -> Load:
        """The traffic as the base gets it, or one of the others."""
        return Load(self.workload, self.inputs.get(other, self.input_file))


def group_name(candidates: Sequence[Identified]) -> str:
    """How a study names runs of the base that several comparisons share."""
    return _AND.join(one.id for one in candidates)


def members(group: str) -> tuple[str, ...]:
    """The ids in the name of a group."""
    return tuple(group.split(_AND))
