"""Whether a served model still is in the state it was tuned for: its answers, its load, its lengths. Layer: above
canary and ledger."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perf.ab import Comparison
from perf.bench import CURVE_FILE
from perf.buckets import BucketPlan, plan_buckets
from perf.curve import read_curve
from perf.lengths import token_lengths
from perf.result import TuneResult
from perf.rollout.as_tuned import other_than, study_of
from perf.rollout.back import served_dir
from perf.rollout.canary import Canary, difference
from perf.rollout.ledger import CANARY_FILE, Ledger, beside, require_log
from perf.rollout.release import ANSWER_S
from perf.server_stats import since
from perf.studies import STUDIES, StudyFile, tuned
from perf.workload_file import read_requests, read_texts
from tooling.errors import Refused, UsageError
from tooling.repository import read_config
from tooling.server.inventory import config_message
from tooling.server.running import RunningServer

if TYPE_CHECKING:
    from perf.trial import Figures

_FAILED, _SLOWER, _QUEUED, _QUEUED_US = 0.001, 1.25, 2.0, 1_000
"""A share of failed requests; how many times the compute and the queue time of the study; and by how much at least."""
_FEWEST = 100
_DISTANCE, _CERTAIN = 0.1, 1.949
"""Lengths differ when their distributions are this far apart (Kolmogorov–Smirnov), and by more than chance explains:
√(−ln(α/2)/2) at an error of 0.1 %."""
_BUCKETS = 4

Outcome = Literal["steady", "drifted", "unknown"]


@dataclass(frozen=True, slots=True)
class Sign:
    """What one comparison says."""

    name: str
    outcome: Outcome
    why: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "outcome": self.outcome, "why": self.why, **self.evidence}


@dataclass(frozen=True, slots=True)
class DriftRequest:
    """Which served model to look at, for how long, and with what to compare it: a study (the one that its config names,
    else the newest of this model), a log of requests or texts, canary requests (those of the last promotion)."""

    model_dir: Path
    url: str
    seconds: float = 10
    study: Path | None = None
    log: Path | None = None
    canary: Path | None = None
    max_error: float = 0.02
    tokenizer_dir: Path | None = None
    studies: Path = STUDIES


@dataclass(frozen=True, slots=True)
class Drift:
    """The verdict: a model has drifted when any sign says so."""

    model: str
    study: Path | None
    signs: tuple[Sign, ...]

    @property
    def drifted(self) -> bool:
        return any(sign.outcome == "drifted" for sign in self.signs)

    @property
    def nothing_compared(self) -> bool:
        """That the config is the one that was tuned says nothing of what became of the model."""
        outcomes = {sign.outcome for sign in self.signs if sign.name != "config"}
        return not self.drifted and outcomes == {"unknown"}

    @property
    def conclusion(self) -> str:
        found = [sign.name for sign in self.signs if sign.outcome == "drifted"]
        if self.nothing_compared:
            return f"{self.model} could not be compared with what it was."
        if "config" in found:
            return f"{self.model} is not served as it was tuned: serve that setting, or tune it again as it is."
        if not found:
            unknown = [sign.name for sign in self.signs if sign.outcome == "unknown"]
            rest = f"; not compared: {', '.join(unknown)}" if unknown else ""
            return f"{self.model} is as it was: nothing speaks for tuning again{rest}."
        if found == ["answers"]:
            return f"{self.model} answers otherwise than it did: find out why before anything else."
        return f"Tune {self.model} again: {', '.join(found)}."

    def text(self) -> str:
        lines = [f"{sign.name:<8} {sign.outcome:<8} {sign.why}" for sign in self.signs]
        return "\n".join([*lines, "", self.conclusion, *([f"study   {self.study}"] if self.study else [])])

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "drifted": self.drifted,
            "study": str(self.study) if self.study else None,
            "signs": [sign.to_dict() for sign in self.signs],
            "conclusion": self.conclusion,
        }


def drift(request: DriftRequest) -> Drift:
    """Compare, and write the verdict to the model's decision log.

    Raises UsageError when there is nothing at all to compare with, MissingError and ExternalError as the server does.
    """
    model_dir, server = served_dir(request.model_dir), RunningServer(request.url, ANSWER_S)
    require_log(model_dir)
    server.identity()
    server.model_config(model_dir.name)
    directory = request.study or study_of(model_dir, request.studies)
    study = StudyFile(directory) if directory else None
    log = _requests(request.log, request.tokenizer_dir or model_dir / "tokenizer") if request.log else None
    signs = (
        _answers(request, server, model_dir),
        _load(request, server, model_dir.name, study),
        _lengths(log, study),
        _config(server, model_dir.name, study),
    )
    found = Drift(model_dir.name, study.directory if study else None, signs)
    with Ledger(model_dir, lock=False) as ledger:
        ledger.note("drift", **found.to_dict())
    if found.nothing_compared:
        raise UsageError(
            "there is nothing to compare with",
            where=model_dir,
            got="; ".join(sign.why for sign in signs if sign.outcome == "unknown"),
            expected="canary requests with answers, or a study; for lengths a log of requests besides",
        )
    return found


def _answers(request: DriftRequest, server: RunningServer, model_dir: Path) -> Sign:
    path = request.canary or beside(model_dir, CANARY_FILE)
    if request.canary is None and not path.is_file():
        return Sign("answers", "unknown", "no canary answers: `tritune promote` keeps them, or give --canary")
    config = read_config(model_dir)
    canary = Canary.read(path, config)
    if not canary.answers:
        raise UsageError("the requests have no answers", where=path, expected="`validation_data`, one for each")
    try:
        got = canary.ask(server.url, model_dir.name, config)
    except Refused as refusal:
        return Sign("answers", "drifted", f"a request fails: {refusal.problems[0].what}")
    found = difference(canary.answers, got)
    why = f"{len(got)} answers, {found.text(request.max_error, 'what they were')}"
    outcome: Outcome = "steady" if found.error <= request.max_error else "drifted"
    return Sign("answers", outcome, why, {"error": min(found.error, 1e30)})


def _load(request: DriftRequest, server: RunningServer, name: str, study: StudyFile | None) -> Sign:
    """What Triton counted in a stretch of live traffic, against the study's figures for the setting it chose."""
    before = server.stats(name)
    time.sleep(request.seconds)
    seen = since(before, server.stats(name))
    total = seen["answered"] + seen["failed"]
    if total < _FEWEST:
        why = f"{total} requests in {request.seconds:g} s: watch longer with --for, at least {_FEWEST} are needed"
        return Sign("load", "unknown", why)
    reference = _reference(study)
    rate = total / request.seconds
    computed = sum(seen[f"compute_{part}_us"] or 0.0 for part in ("input", "infer", "output"))
    evidence = {"requests_per_s": rate, "compute_us": computed, "queue_us": seen["queue_us"], "failed": seen["failed"]}
    problems = [f"{seen['failed']} of {total} failed"] if seen["failed"] > _FAILED * total else []
    problems += _busier(reference, computed, seen["queue_us"] or 0.0)
    capacity = _capacity(study)
    if capacity and rate > capacity:
        problems.append(f"{rate:.3g} requests/s are above the {capacity:.3g} that the chosen setting carries")
    shown = f"{rate:.3g} requests/s, {computed / 1e3:.3g} ms computing, {(seen['queue_us'] or 0) / 1e3:.3g} ms queued"
    if problems:
        return Sign("load", "drifted", f"{'; '.join(problems)} ({shown})", evidence)
    if reference is None:
        return Sign("load", "unknown", f"no failures; there is no study of {name} to compare with ({shown})", evidence)
    return Sign("load", "steady", shown, evidence)


def _busier(reference: Figures | None, computed_us: float, queue_us: float) -> Iterator[str]:
    if reference is None:
        return
    if reference.compute_us and computed_us > _SLOWER * reference.compute_us:
        yield f"a request computes {computed_us / reference.compute_us:.2f} times as long as in the study"
    was = reference.queue_us
    if was is not None and queue_us > max(_QUEUED * was, was + _QUEUED_US):
        yield f"a request queues for {queue_us / 1e3:.3g} ms, {was / 1e3:.3g} ms in the study"


def _reference(study: StudyFile | None) -> Figures | None:
    """The figures of the setting that the study chose; those of the config before where it chose none."""
    if study is None:
        return None
    result = study.result
    if isinstance(result, TuneResult):
        return (result.chosen or result.default).figures
    settings = {setting.id: setting.figures for setting in study.settings()}
    best = result.winner if isinstance(result, Comparison) else None
    return settings.get(best or "", next(iter(settings.values()), None))


def _capacity(study: StudyFile | None) -> float | None:
    try:
        return tuned(study.directory).carries_rps if study else None
    except UsageError:
        return None


def _config(server: RunningServer, name: str, study: StudyFile | None) -> Sign:
    """Whether the server serves the setting that the study chose; figures of another one say nothing of it."""
    result = study.result if study else None
    chosen = result.chosen if isinstance(result, TuneResult) else None
    if chosen is None:
        return Sign("config", "unknown", f"there is no tuning of {name} that chose a setting")
    try:
        other = other_than(chosen.candidate, config_message(server.model_config(name)))
    except (UsageError, ValueError) as error:
        return Sign("config", "unknown", str(error))
    if not other:
        return Sign("config", "steady", f"as chosen: {chosen.candidate.label}")
    why = f"the server has {', '.join(other)} as the study chose; is it served with --config-name?"
    return Sign("config", "drifted", why, {"chosen": chosen.candidate.label})


def _requests(path: Path, tokenizer_dir: Path) -> tuple[int, ...]:
    """The lengths of a log of requests, or of texts."""
    if path.suffix.lower() == ".txt":
        return token_lengths(read_texts(path), tokenizer_dir)
    lengths, texts = read_requests(path)
    return lengths or token_lengths(texts, tokenizer_dir)


def _lengths(found: tuple[int, ...] | None, study: StudyFile | None) -> Sign:
    """Lengths of the log against those of the study, and where they differ the buckets that fit the new ones."""
    if found is None:
        return Sign("lengths", "unknown", "no log of requests was given (--log)")
    known = tuple((study.header.get("workload") or {}).get("lengths") or ()) if study else ()
    if not known:
        return Sign("lengths", "unknown", "there is no study with lengths to compare with")
    apart = _distance(found, known)
    chance = _CERTAIN * ((len(found) + len(known)) / (len(found) * len(known))) ** 0.5
    means = sum(found) / len(found), sum(known) / len(known)
    why = f"{means[0]:.3g} tokens on average, {means[1]:.3g} in the study, {apart:.2f} apart"
    evidence: dict[str, Any] = {"distance": apart, "mean": means[0], "mean_of_study": means[1], "requests": len(found)}
    if apart < max(_DISTANCE, chance):
        return Sign("lengths", "steady", why, evidence)
    plan = _new_buckets(found, study)
    if plan:
        evidence["edges"] = list(plan.edges)
        padding = "free lengths" if plan.free else f"buckets {', '.join(map(str, plan.edges))}"
        why += f"; best for the new ones: {padding}"
    return Sign("lengths", "drifted", why, evidence)


def _distance(one: Sequence[int], other: Sequence[int]) -> float:
    """The largest difference of the two cumulative distributions."""
    import numpy as np

    at = np.union1d(one, other)
    shares = (np.searchsorted(np.sort(side), at, side="right") / len(side) for side in (one, other))
    first, second = shares
    return float(np.abs(first - second).max())


def _new_buckets(lengths: Sequence[int], study: StudyFile | None) -> BucketPlan | None:
    """By the study's service curve the fastest of free lengths and up to four buckets; None without a curve, and where
    it says nothing of such lengths."""
    path = study.directory / CURVE_FILE if study else None
    if study is None or path is None or not path.is_file():
        return None
    curve, result = read_curve(path), study.result
    chosen = result.chosen if isinstance(result, TuneResult) else None
    instances = chosen.candidate.knobs.instance_count if chosen else None
    setting = next((one for one in curve.settings if one.instances == instances), curve.settings[0])
    rows = max(rows for rows, _ in curve.of(setting).points)
    try:
        plans = plan_buckets(
            Counter(lengths),
            curve.of(setting).service(),
            max_batch_size=rows,
            instances=setting.instances,
            max_edges=_BUCKETS,
        )
    except UsageError:
        return None
    return max(plans, key=lambda plan: plan.throughput_rps)
