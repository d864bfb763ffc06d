"""Settings against the current config in common rounds, up to the look that decides. Layer: above bench."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perf.bench import Bench
from perf.compare import LOOKS, Verdict, gain, judge
from perf.measurement import Measurement
from perf.subject import Round, group_name
from tooling.console import Progress

CULL = 2
"""Rounds after which only the best go on. Nobody wins by it, so it takes nothing from the error of the looks."""
CUT = 0.9
"""Whoever is below this share of the best then does not go on either."""


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
    behind: str | None = None
    """Why it was not compared further than the first rounds."""

    @property
    def open(self) -> bool:
        undecided = self.verdict is None or self.verdict.outcome == "undecided"
        return not self.out and self.failure is None and self.behind is None and undecided

    @property
    def ratio(self) -> float:
        """About how many times better than the current config it was so far; 1 before the first round."""
        return math.exp(statistics.fmean(self.gains or [0.0]))


class Affordable(Protocol):
    """Whether so many more runs of them and the current config together fit into the budget, and loading them first."""

    def __call__(self, ids: Sequence[str], runs: int, *, loaded: bool) -> bool: ...


def all_fit(those: Sequence[Contender]) -> Sequence[Sequence[Contender]]:
    """One group of all of them, where memory is no question."""
    return [those]


@dataclass(frozen=True, slots=True)
class Contest:
    """How settings are compared: by which score, larger being better, within which budget; `fitting` divides them into
    those that may be loaded at once, `told` hears of every round, with a line about it and the settings in it; `misses`
    tells whether runs taken together miss a limit, and `keep` how many go on after the first rounds: by default all."""

    bench: Bench
    score: Callable[[Measurement], float]
    affordable: Affordable
    progress: Progress
    told: Callable[[Round, str, int], None]
    fitting: Callable[[Sequence[Contender]], Sequence[Sequence[Contender]]] = all_fit
    misses: Callable[[Sequence[Measurement]], bool] = lambda points: False
    keep: int | None = None

    def run(self, contenders: Sequence[Contender]) -> None:
        """Compare them; whoever is far behind, decided, failed or beyond the budget leaves. Raises what `Bench.round`
        does."""
        stages = LOOKS if self.keep is None else (CULL, *LOOKS)
        for done, look in zip((0, *stages), stages, strict=False):
            for group, inside in self._together([one for one in contenders if one.open], done, look):
                for number in range(done, look):
                    self._round(group, [one for one in inside if one.failure is None], number, max(look, LOOKS[0]))
                for one in inside:
                    if one.failure is None and look in LOOKS:
                        one.verdict = judge(one.gains)
            if self.keep is not None and look == CULL:
                self._cull(self.keep, [one for one in contenders if one.open])

    def _cull(self, keep: int, those: Sequence[Contender]) -> None:
        """Leave the best to go on: those that miss no limit come first, and only they can be too slow."""
        if not those:
            return
        ranked = sorted(those, key=lambda one: (self.misses(one.points), -one.ratio))
        best = ranked[0]
        for place, one in enumerate(ranked):
            if place >= keep or (one.ratio < CUT * best.ratio and not self.misses(one.points)):
                one.behind = f"behind {best.label} after {CULL} rounds"
                self.progress.total -= LOOKS[0] - CULL

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
            if not done:
                self.progress.total -= LOOKS[0] * (len(part) - len(inside))
            elif done >= LOOKS[0]:
                self.progress.total += (look - done) * len(inside)
            if inside:
                yield name or group_name(inside), inside

    def _payable(self, part: Sequence[Contender], group: str, done: int, look: int) -> list[Contender]:
        """The most promising of them that the budget can take to the next look."""
        ranked = sorted(part, key=lambda one: -one.ratio)
        for count in range(len(ranked), 0, -1):
            inside = [one for one in part if one in ranked[:count]]
            recorded = group and all(self.bench.holds(inside, number, group) for number in range(done, look))
            runs = (look - done) * (count + 1)
            if look < LOOKS[0]:  # and from there to the first look, or they are in vain
                runs += (LOOKS[0] - look) * (min(count, self.keep or count) + 1)
            if recorded or self.affordable([one.id for one in inside], runs, loaded=done > 0):
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
