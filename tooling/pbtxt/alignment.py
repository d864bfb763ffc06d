"""Which values in a text become which new values, so that the fewest lines change. Layer: pbtxt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher


@dataclass(frozen=True, slots=True)
class Plan:
    """Old values by index; an index that is not in `kept` is taken out."""

    kept: dict[int, int | None] = field(default_factory=dict)
    """The new value that takes the place of the old one; None leaves it alone."""
    added: dict[int, list[int]] = field(default_factory=dict)
    """New values to put behind an old one that is kept; -1 stands for the front."""


def align_list(old: Sequence[Hashable], new: Sequence[Hashable]) -> Plan:
    """Match two lists by their labels; between equal stretches old values give their place to new ones in turn."""
    plan = Plan()
    for _, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        paired = min(i_end - i, j_end - j)
        plan.kept.update(zip(range(i, i + paired), range(j, j + paired), strict=True))
        if j + paired < j_end:
            plan.added[i + paired - 1] = list(range(j + paired, j_end))
    if len(old) == len(new):
        moved = sum(map(len, plan.added.values())) + len(old) - len(plan.kept)
        moved += sum(old[i] != new[j] for i, j in plan.kept.items() if j is not None)
        if sum(one != other for one, other in zip(old, new, strict=True)) <= moved:
            return Plan({index: index for index in range(len(old))})
    return plan


def align_map(old: Sequence[Hashable], new: Sequence[Hashable]) -> Plan:
    """Match the keys of a map. Of a key that stands twice the last one counts; the others stay as they are."""
    last = {key: index for index, key in enumerate(old)}
    fresh = [index for index, key in enumerate(new) if key not in last]
    free = [index for key, index in last.items() if key not in new]
    plan = Plan({index: None for index, key in enumerate(old) if key in new})
    plan.kept.update((last[key], index) for index, key in enumerate(new) if key in last)
    plan.kept.update(zip(free, fresh, strict=False))
    if len(fresh) > len(free):
        plan.added[len(old) - 1] = fresh[len(free) :]
    return plan
