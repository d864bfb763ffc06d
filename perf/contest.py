"""Settings against the current config in common rounds, up to the look that decides. Layer: above bench."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perf.bench import Bench
from perf.compare import LOOKS, Verdict, gain, judge
from perf.measurement import Measurement
from perf.subject import Round, group_name
from tooling.console import Progress


@dataclass(slots=True)
class Contender:
    """A setting with its runs, those of the current config in the same rounds, and what they say so far. `id` is its
    id in the study; `failure` why it could not be measured."""

    id: str
    label: str
    points: list[Measurement] = field(default_factory=list)
    current: list[Measurement] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    verdict: Verdict | None = None
    failure: str | None = None
    out: bool = False
    """Whether the budget ended before it was decided."""

    @property
    def open(self) -> bool:
        return not self.out and self.failure is None and (self.verdict is None or self.verdict.outcome == "undecided")


class Affordable(Protocol):
    """Whether so many more rounds of them and the current config fit into the budget, and loading them first."""

    def __call__(self, ids: Sequence[str], rounds: int, *, loaded: bool) -> bool: ...


def all_fit(those: Sequence[Contender]) -> Sequence[Sequence[Contender]]:
    return [those]


@dataclass(frozen=True, slots=True)
class Contest:
    """How settings are compared: by which score, larger being better, within which budget; `fitting` divides them into
    those that may be loaded at once, `told` hears of every round, with a line about it and the settings in it."""

    bench: Bench
    score: Callable[[Measurement], float]
    affordable: Affordable
    progress: Progress
    told: Callable[[Round, str, int], None]
    fitting: Callable[[Sequence[Contender]], Sequence[Sequence[Contender]]] = all_fit

    def run(self, contenders: Sequence[Contender]) -> None:
        """Compare them; whoever is decided, failed or beyond the budget leaves. Raises what `Bench.round` does."""
        for done, look in zip((0, *LOOKS), LOOKS, strict=False):
            for group, inside in self._together([one for one in contenders if one.open], done, look):
                for number in range(done, look):
                    self._round(group, [one for one in inside if one.failure is None], number, look)
                for one in inside:
                    if one.failure is None:
                        one.verdict = judge(one.gains)

    def _together(self, those: Sequence[Contender], done: int, look: int) -> Iterator[tuple[str, list[Contender]]]:
        """Who shares the runs of the current config up to the next look: as the study has it, since such runs are of
        the same minutes, then those that may be loaded at once, as many as the budget allows. Others are out."""
        rest = {one.id: one for one in those}
        parts: list[tuple[str, Sequence[Contender]]] = []
        for name, ids in self.bench.groups(done).items():
            if known := [rest.pop(id_) for id_ in ids if id_ in rest]:
                parts.append((name, known))
        parts += [("", fitting) for fitting in (self.fitting(list(rest.values())) if rest else ())]
        for name, part in parts:
            inside = self._payable(part, name, done, look)
            for one in part:
                one.out = one not in inside
            self.progress.total += (look - done) * len(inside) if done else -look * (len(part) - len(inside))
            if inside:
                yield name or group_name(inside), inside

    def _payable(self, part: Sequence[Contender], group: str, done: int, look: int) -> list[Contender]:
        """The most promising of them that the budget can take to the next look."""
        ranked = sorted(part, key=lambda one: -(one.verdict.ratio if one.verdict else 0))
        for count in range(len(ranked), 0, -1):
            inside = [one for one in part if one in ranked[:count]]
            recorded = group and all(self.bench.holds(inside, number, group) for number in range(done, look))
            if recorded or self.affordable([one.id for one in inside], look - done, loaded=done > 0):
                return inside
        return []

    def _round(self, group: str, inside: Sequence[Contender], number: int, look: int) -> None:
        """One run of the current config and one of each of those inside."""
        if not inside:
            return
        found = self.bench.round(inside, "paired", number, group=group)
        said = []
        for one in inside:
            one.failure = found.failed.get(one.id)
            if one.failure is not None or found.base is None:
                said.append(f"{one.label}: failed, {one.failure}")
                continue
            one.current.append(found.base)
            one.points.append(found.others[one.id])
            one.gains.append(gain(self.score(found.base), self.score(found.others[one.id])))
            said.append(f"{one.label} {math.exp(one.gains[-1]):.2f}×")
        self.told(found, f"round {number + 1} of {look}: {'; '.join(said)}", len(inside))
