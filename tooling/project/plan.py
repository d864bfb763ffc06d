"""Which steps of a build must be done, and why. Layer: project."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from perf.study import SCHEMA_VERSION as STUDY_FORMAT
from tooling.project.digests import Digests
from tooling.project.lock import Done, Lock
from tooling.project.steps import SCRATCH, Step

State = Literal["new", "changed", "perhaps", "unchanged"]
_STUDIES = "format of studies"
_NOT_COMMITTED = ("library ", "hardware", _STUDIES)
"""Facts of the machine that did a step, which say nothing of what is committed."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A step with what is to be done: it is `new`, `changed`, `unchanged`, or `perhaps` changed by steps before it."""

    step: Step
    state: State
    why: tuple[str, ...] = ()

    @property
    def must_run(self) -> bool:
        return self.state in ("new", "changed")


def facts_of(step: Step, digests: Digests, hardware: str) -> dict[str, str]:
    """All that a step follows from: command line, texts it is given, files, versions, formats and the hardware."""
    facts = {"command": " ".join(step.words)}
    facts |= dict(step.texts)
    facts |= {f"library {name}": _version(name) for name in step.libraries}
    facts |= {tree.path: digests.tree(tree) or "" for tree in step.reads}
    if step.action == "tune":
        facts[_STUDIES] = str(STUDY_FORMAT)
    return facts | ({"hardware": hardware} if step.alone else {})


def judge(step: Step, done: Done | None, digests: Digests, hardware: str, *, committed: bool = False) -> Planned:
    """What is to be done about one step by what is there now; with `committed` the machine does not count."""
    if done is None:
        return Planned(step, "new", ("it was never done",))
    now = facts_of(step, digests, hardware)
    why = list(_changes(done.facts, now, committed=committed))
    for path, digest in done.outputs.items():
        if committed and path.startswith(SCRATCH):
            continue
        found = digests.file(digests.root / path)
        if found != digest:
            why.append(f"{path} {'is missing' if found is None else 'was changed since'}")
    return Planned(step, "changed" if why else "unchanged", tuple(why))


def plan(steps: Iterable[Step], lock: Lock, digests: Digests, hardware: str) -> tuple[Planned, ...]:
    """All steps with what is to be done before any of them is."""
    planned: dict[str, Planned] = {}
    for step in steps:
        found = judge(step, lock.steps.get(step.name), digests, hardware)
        if found.state == "unchanged":
            moving = [name for name in step.after if planned[name].state != "unchanged"]
            if moving:
                found = Planned(step, "perhaps", tuple(f"if `{name}` makes something else" for name in moving))
        planned[step.name] = found
    return tuple(planned.values())


def _changes(before: Mapping[str, str], now: Mapping[str, str], *, committed: bool) -> Iterator[str]:
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if old == new or (committed and name.startswith((*_NOT_COMMITTED, SCRATCH))):
            continue
        if name == "command":
            yield _words(old or "", new or "")
        elif name.startswith(_NOT_COMMITTED):
            yield f"{name.removeprefix('library ')}: {old or 'none'} before, {new or 'none'} now"
        else:
            yield f"{name} {'is new' if not old else 'is gone' if not new else 'changed'}"


def _words(old: str, new: str) -> str:
    """The words of the command line that are others now."""
    before, now = old.split(" "), new.split(" ")
    gone, come = [w for w in before if w not in now], [w for w in now if w not in before]
    return f"its options: {' '.join(gone) or 'nothing'} became {' '.join(come) or 'nothing'}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def stale(lock: Lock, steps: Iterable[Step]) -> list[str]:
    """Steps in the lock that the project has no more."""
    known = {step.name for step in steps}
    return [name for name in lock.steps if name not in known]
