"""A trial: a share of the live traffic for a candidate, watched for as long as it must hold. Layer: above release."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perf.rollout.gates import Passage
from perf.server_stats import since
from perf.slo import Slo
from tooling.errors import Refused

if TYPE_CHECKING:
    from perf.rollout.release import Release
    from tooling.console import Console

_LOOK_S = 1.0
_FEWEST = 100
"""Fewer answers say nothing of a share of failures below a percent."""
_MOST_FAILED = 0.001
"""By so much the share of failed requests may be above that of the current version."""


@dataclass(frozen=True, slots=True)
class Hold:
    """How long a share must hold, and what: no more failures than beside it, the Slo's `avg` by the server's time."""

    seconds: float
    slo: Slo


def watch(release: Release, hold: Hold, percent: float, ended: Callable[[], bool], console: Console) -> Passage | None:
    """Look at both versions' statistics every second; ends at the first look that fails, else after the time. None
    when somebody else `ended` the trial."""
    names = release.name, release.next_name
    before = {name: release.server.stats(name) for name in names}
    ends = time.monotonic() + hold.seconds
    with console.progress(f"{percent:g} % on trial", max(1, round(hold.seconds / _LOOK_S))) as progress:
        while True:
            left_s = ends - time.monotonic()
            time.sleep(max(0.0, min(_LOOK_S, left_s)))
            if ended():
                return None
            try:
                seen = {name: since(before[name], release.server.stats(name)) for name in names}
            except Refused as refusal:
                return Passage("hold", "failed", f"one of both serves no more: {refusal.problems[0].what}")
            passage = _judge(seen[release.name], seen[release.next_name], hold, last=left_s <= _LOOK_S)
            progress.step(passage.why)
            if passage.outcome == "failed" or left_s <= _LOOK_S:
                return passage


def watch_whole(
    release: Release,
    version: int,
    hold: Hold,
    failed_before: float,
    ended: Callable[[], Passage | None],
    console: Console,
) -> Passage | None:
    """Look at the version that gets all requests, as `watch` does; few requests are no reason to take it back. None
    when it no longer serves, or somebody else `ended` the watch."""
    before, ends = release.server.stats(release.name), time.monotonic() + hold.seconds
    with console.progress(f"version {version} is watched", max(1, round(hold.seconds / _LOOK_S))) as progress:
        while True:
            left_s = ends - time.monotonic()
            time.sleep(max(0.0, min(_LOOK_S, left_s)))
            if ended() or version not in release.server.versions(release.name):
                return None
            try:
                seen = since(before, release.server.stats(release.name))
            except Refused:
                return None
            passage = _judge({"answered": 1 - failed_before, "failed": failed_before}, seen, hold, last=False)
            progress.step(passage.why)
            if passage.outcome == "failed" or left_s <= _LOOK_S:
                return passage


def failed_share(release: Release) -> float:
    """The share of failed requests of the version that serves, since it was loaded."""
    found = release.server.stats(release.name).get("inference_stats", {})
    counts = [int(found.get(kind, {}).get("count", 0)) for kind in ("success", "fail")]
    return counts[1] / sum(counts) if sum(counts) else 0.0


def _judge(current: Mapping[str, Any], candidate: Mapping[str, Any], hold: Hold, *, last: bool) -> Passage:
    total = candidate["answered"] + candidate["failed"]
    share, other = _failed(candidate), _failed(current)
    mean_us = candidate["server_us"]
    late = [str(j) for j in hold.slo.judge({"avg_us": mean_us}) if j.answer == "not met"] if mean_us else []
    mean = f", {mean_us / 1e3:.2f} ms in the server" if mean_us else ""
    why = f"{total} requests, {candidate['failed']} failed{mean}"
    evidence = {"candidate": dict(candidate), "current": dict(current)}
    if last and total < _FEWEST:
        wanted = f"{_FEWEST} are needed: does a client follow the split file? Or hold it longer"
        return Passage("hold", "failed", f"only {total} requests reached the candidate; {wanted}", evidence)
    if total >= _FEWEST and share > other + _MOST_FAILED:
        return Passage("hold", "failed", f"{why}, beside it {other:.2%}", evidence)
    if total >= _FEWEST and late:
        return Passage("hold", "failed", f"{why}; {'; '.join(late)}", evidence)
    return Passage("hold", "passed", why, evidence)


def _failed(seen: Mapping[str, Any]) -> float:
    total = seen["answered"] + seen["failed"]
    return seen["failed"] / total if total else 0.0
