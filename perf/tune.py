"""Tune a model: from a model directory and a workload to the setting that is surely better, with its evidence. Layer:
above search and study."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.bench import Bench
from perf.buckets import pad
from perf.curve import ServiceCurve, Setting
from perf.findings import findings
from perf.grid import FORM, Candidate, split_in_effect
from perf.guided import Guided, guided
from perf.input_data import write_input_data
from perf.lengths import fit_to_model
from perf.measurement import Measurement
from perf.pipeline import PipelineTarget
from perf.preflight import cautions, notes
from perf.profile import profile_on
from perf.profile_request import ProfileRequest
from perf.provenance import session
from perf.result import DIRECT, TuneResult
from perf.search import Budget, Search
from perf.study import Study, resumable
from perf.subject import Load, Stage, Subject
from perf.sweep import REQUESTS, Sweep, requests_to_play
from perf.target import EmbeddedTarget, RunningTarget, Variant, embedded_facts
from perf.trial import Trial, choose, ties
from perf.tune_request import Plan, TuneRequest, plan_of, tokenizer_of, within_memory
from tooling.config.knobs import apply, read
from tooling.config.render import render
from tooling.errors import Problem, Refused, UsageError, install_extra
from tooling.repository import write_atomic
from tooling.server.client import on_this_machine
from tooling.server.options import loading_only

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer
    from tooling.console import Console
    from tooling.runtime import Runtime

_CURVE_SHARE, _CURVE_S, _LONGEST_CURVE_S = 0.25, 20.0, 60.0
"""Of the time budget, for the service curve; seconds where the budget is in points; the most."""
_CURVE_ROWS = 4
"""Rows of the largest execution that is measured: on a CPU time grows evenly with rows, and long runs are few."""
_LONG = 128
"""From this length on the time of attention shows, and a length between the ends is measured too."""
_OTHER_SHARE, _BURST = 0.6, 8
_MISFIT = 0.4
"""A curve further than this from any simple law is taken for noise."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What a search gave: how it went in a sentence, the trials, and what the simulator adds."""

    method: str
    default: Trial
    trials: tuple[Trial, ...]
    guided: Guided | None = None


def tune(
    request: TuneRequest,
    *,
    runtime: Runtime,
    analyzer: PerfAnalyzer,
    console: Console,
    running: RunningTarget | None = None,
) -> TuneResult:
    """Measure the curve, search on it, measure the best against the current config on one server, and choose.

    The server is an embedded one, or the `running` one that serves the same model.

    Everything measured goes to the study; the same request resumes it and measures nothing twice. Raises UsageError
    for a request or a model that cannot be tuned, Refused when the current config cannot keep up with the asked rate
    or Triton refuses it, ExternalError when the server or perf_analyzer fails.
    """
    facts = running.facts() if running else embedded_facts()
    plan = plan_of(request, analyzer, console, facts, server_is_ours=running is None)
    if running is None or on_this_machine(running.url):
        plan = within_memory(plan, gpu=running is not None)
    if plan.front and running:
        raise UsageError(
            "an ensemble is tuned on a server of our own only",
            where=running.url,
            hint=f"leave --url out, or tune {plan.model_dir.name} there",
        )
    target = running or _own_target(plan, runtime)
    with Study(plan.study_dir, plan.header, session()) as study:
        kept = sum(record["record"] == "measurement" for record in study.records)
        console.info(f"study {study.directory}{f': {kept} runs are there already' if kept else ''}")
        for note in notes(plan.front.config if plan.front else plan.config):
            console.info(note)
        told = (*cautions(plan.workload, plan.free), *plan.notes)
        for caution in (*told, *(f"not tried: {reason}" for reason in plan.left_out)):
            console.warning(caution)
        variants = _Variants(request, plan, study.directory)
        with resumable(), Bench(variants.subject, study, target, analyzer) as bench:
            search = Search(bench, request.slo, request.budget.without(len(plan.forms)), console, plan.fitting)
            found = _search(request, plan, variants, target, bench, search, console)
            if not search.points:
                raise Refused(problems=[Problem(t.reason or t.state, where=t.candidate.label) for t in found.trials])
            found = _with_forms(found, request, plan, variants, search)
            chosen = choose(found.default, found.trials)
            rechecks = _rechecks(found, chosen, request, plan, variants, search)
            result = _result(plan, request, found, chosen, rechecks, search.points, bench.spent_s)
        record = {"record": "result", "result": result.to_dict()}
        if record not in study.records:
            study.append(record)
    return result


def _rechecks(
    found: _Found, chosen: Trial | None, request: TuneRequest, plan: Plan, variants: _Variants, search: Search
) -> list[dict[str, Any]]:
    """What another setting than the current one does under other traffic, and after a start. One with edges asks for
    clients that pad, which these requests do not."""
    if not chosen or chosen == found.default or chosen.candidate.edges:
        return []
    loads = _other_loads(request, plan, variants.subject, min(_rate(found.default), _rate(chosen)))
    return [*search.recheck(chosen.candidate, loads), *search.restart(chosen.candidate)]


def _own_target(plan: Plan, runtime: Runtime) -> EmbeddedTarget:
    if plan.front:
        return PipelineTarget(plan.front, runtime)
    return EmbeddedTarget(plan.model_dir.parent, runtime, loading_only(plan.config))


class _Variants:
    """The subject of a search, whose others are added as the search comes upon them."""

    def __init__(self, request: TuneRequest, plan: Plan, directory: Path) -> None:
        self._request, self._plan, self._directory = request, plan, directory
        self._others: dict[str, Variant] = {}
        self._inputs: dict[str, Path] = {}
        self.subject = Subject(
            plan.model_dir.name,
            Variant(plan.default.id, plan.config, plan.model_dir),
            self._others,
            plan.workload,
            _write(request, plan, directory / "input.json", plan.workload.lengths),
            plan.window_ms,
            inputs=self._inputs,
            asked=plan.front.config if plan.front else None,
        )

    def admit(self, *candidates: Candidate) -> None:
        """Make settings measurable; requests that are padded for one are written."""
        for one in candidates:
            self._others[one.id] = self._plan.variant(one)
            if one.edges:
                path = self._directory / f"input-padded-{'-'.join(map(str, one.edges))}.json"
                lengths = tuple(pad(self._plan.workload.lengths, one.edges))
                self._inputs[one.id] = _write(self._request, self._plan, path, lengths)


def _write(request: TuneRequest, plan: Plan, path: Path, lengths: tuple[int, ...]) -> Path:
    """The user's own requests, or those of the workload with these lengths."""
    if request.input_data is not None:
        write_atomic(path, request.input_data.read_bytes())
        return path
    return write_input_data(
        path,
        plan.signature,
        plan.workload.model_copy(update={"lengths": lengths}),
        tokenizer_of(request, plan.model_dir),
        batching=(plan.front.config if plan.front else plan.config).max_batch_size > 0,
        vocab_size=request.vocab_size,
    ).path


def _other_loads(request: TuneRequest, plan: Plan, subject: Subject, rate_rps: float) -> dict[Stage, Load]:
    """Traffic that the choice was not made for: random arrivals and bursts at a rate that both settings can answer,
    longer texts."""
    found: dict[Stage, Load] = {}
    if rate_rps > 0:
        rate: dict[str, Any] = {"concurrency": None, "timestamps": (), "request_rate": _OTHER_SHARE * rate_rps}
        ways: dict[Stage, dict[str, Any]] = {
            "random arrivals": {"distribution": "poisson", "burst": 1},
            "bursts": {"distribution": "constant", "burst": _BURST},
        }
        for stage, way in ways.items():
            found[stage] = Load(plan.workload.model_copy(update={**rate, **way}), subject.input_file)
    lengths = plan.workload.lengths
    longer = fit_to_model(tuple(2 * length for length in lengths), plan.model_dir, asked=False)
    if longer and longer != lengths:
        path = _write(request, plan, subject.input_file.with_name("input-longer.json"), longer)
        found["longer texts"] = Load(plan.workload.model_copy(update={"lengths": longer}), path)
    return found


def _rate(trial: Trial) -> float:
    return trial.figures.throughput_rps.middle if trial.figures else 0.0


def _search(
    request: TuneRequest,
    plan: Plan,
    variants: _Variants,
    target: EmbeddedTarget | RunningTarget,
    bench: Bench,
    search: Search,
    console: Console,
) -> _Found:
    """On the simulator first; where the curve cannot carry that, by measuring alone."""
    variants.admit(*plan.tries)
    if plan.direct or plan.front:
        behind = f" Requests went to the ensemble {plan.front.model_dir.name}." if plan.front else ""
        return _Found(DIRECT + behind, *search.run(plan.default, plan.tries))
    try:
        curve = bench.curve(lambda: profile_on(target, _curve_request(request, plan), console))
        problem = _misfit(curve)
        sweep = Sweep(
            plan.free, read(plan.free), curve, plan.workload, request.slo, plan.wide, requests=requests_to_play()
        )
        finalists = () if problem else sweep.finalists(1)
    except (Refused, UsageError) as error:
        problem = f"there is no service curve: {error.problems[0]}"
    if problem:
        console.info(f"direct search: {problem}")
        return _Found(f"Direct search, because {problem}.", *search.run(plan.default, plan.tries))
    if not finalists:
        raise Refused(
            "no setting is predicted to be near the current config",
            where=plan.model_dir.name,
            hint="give other values with --instances, --threads, --delay or --max-batch-size, or search with --direct",
        )
    console.info(f"{len(sweep.expected) + 1} settings simulated")
    if sweep.requests < REQUESTS:
        told = f"simulated on {sweep.requests} requests each in place of {REQUESTS}, as numba is not installed"
        console.warning(f"{told}: {install_extra('tune')}")
    found = guided(search, plan.default, sweep, variants.admit)
    method = f"{len(found.sweep.expected) + 1} settings simulated on a measured service curve, the best measured."
    if found.trusted:
        return _Found(method, found.default, found.trials, found)
    console.info("predictions were off twice: searching by measurement")
    known = {sweep.group(t.candidate) for t in found.trials}
    rest = [one.candidate for one in found.sweep.best() if sweep.group(one.candidate) not in known]
    variants.admit(*rest)
    _, more = search.run(plan.default, rest)
    method = f"{method} Predictions were off twice, so the rest was searched by measurement."
    return _Found(method, search.current(plan.default), (*found.trials, *more), found)


def _with_forms(found: _Found, request: TuneRequest, plan: Plan, variants: _Variants, search: Search) -> _Found:
    """What was found, and the other forms of the model under the best setting of it."""
    search.budget = request.budget
    best = (choose(found.default, found.trials) or found.default).candidate
    trials = []
    for number, form in enumerate(plan.forms, start=1):
        knobs = form.knobs(best.knobs)
        one = replace(best, id=f"{best.id}-form{number}", knobs=knobs, changed=(*best.changed, FORM), form=form.text)
        if reason := form.refusal(request.slo):
            trials.append(Trial(one, "failed", reason=reason))
            continue
        variants.admit(one)
        trials += search.confirm({one: None})
    default = search.current(plan.default) if trials else found.default
    return replace(found, default=default, trials=(*found.trials, *trials))


def _of_form(found: Guided, best: Trial) -> Guided:
    """The search with predictions for the form of the model that was taken."""
    if not best.candidate.form or best.figures is None:
        return found
    return replace(found, sweep=found.sweep.in_form(best.candidate, best.figures.avg_us.middle))


def _curve_request(request: TuneRequest, plan: Plan) -> ProfileRequest:
    """A few short points a setting: rows that the traffic can reach, the ends of its lengths."""
    most = max(c.knobs.max_batch_size for c in (plan.default, *plan.wide))
    clients = plan.workload.concurrency
    reach = max(1, min(most, _CURVE_ROWS, clients or most))
    lengths = sorted(set(plan.workload.lengths))
    middle = lengths[len(lengths) // 2 : len(lengths) // 2 + 1] if lengths and lengths[-1] > _LONG else []
    config = apply(replace(read(plan.free), max_batch_size=most), plan.free)
    return ProfileRequest(
        model_dir=plan.model_dir,
        settings=tuple(Setting(*split) for split in sorted(_splits(plan))),
        rows=tuple(sorted({1, reach})),
        lengths=tuple(sorted({*lengths[:1], *middle, *lengths[-1:]})),
        traffic=plan.workload.lengths,
        tokenizer_dir=tokenizer_of(request, plan.model_dir),
        vocab_size=request.vocab_size,
        budget_s=curve_budget_s(request.budget),
        brief=True,
        config=config,
    )


def curve_budget_s(budget: Budget) -> float:
    """The seconds for the service curve."""
    return min(_CURVE_SHARE * budget.seconds, _LONGEST_CURVE_S) if math.isfinite(budget.seconds) else _CURVE_S


def _splits(plan: Plan) -> set[tuple[int, int]]:
    """Instances and threads of every setting, and of the current config."""
    return {split_in_effect(c.knobs) for c in (plan.default, *plan.wide)}


def _misfit(curve: ServiceCurve) -> str | None:
    """What makes a curve unusable: that most settings scatter too far to tell them apart. One that does alone, as with
    more threads than cores, is told by its measurement."""
    off = {setting: curve.of(setting).fit.worst for setting in curve.settings}
    unfit = [setting for setting in off if off[setting] > _MISFIT]
    if 2 * len(unfit) <= len(off):
        return None
    worst = max(off, key=lambda s: off[s])
    return f"no simple law fits the service times of {worst} (off by {off[worst]:.0%})"


def _result(
    plan: Plan,
    request: TuneRequest,
    found: _Found,
    chosen: Trial | None,
    rechecks: list[dict[str, Any]],
    points: Sequence[Measurement],
    spent_s: float,
) -> TuneResult:
    lengths = plan.workload.lengths
    shortest, longest = (min(lengths), max(lengths)) if lengths else (0, 0)
    spread = f", {shortest if shortest == longest else f'{shortest}–{longest}'} tokens" if lengths else ""
    default = found.default
    if chosen and chosen.against:  # runs of the same minutes, so that both rows of the table are comparable
        default = replace(default, figures=chosen.against)
    shown, best = None, chosen or default
    if found.guided:
        shown = findings(_of_form(found.guided, best), best.candidate, request.wanted).to_dict()
    others = [one for one in rechecks if one["ratio"] is not None]
    return TuneResult(
        model=plan.model_dir.name,
        workload=f"{plan.workload}{spread}",
        objective=str(request.slo),
        default=default,
        trials=found.trials,
        chosen=chosen,
        runs=len(points),
        disturbed=sum(p.disturbed for p in points),
        spent_s=round(spent_s, 1),
        finished=max(p.started for p in points),
        study=plan.study_dir,
        method=" ".join([found.method, *map(_sentence, plan.notes), *(f"Not tried: {one}." for one in plan.left_out)]),
        points=1 + sum(t.figures is not None for t in found.trials) + 2 * len(others),
        findings=shown,
        config_diff=_config_diff(plan, chosen),
        rechecks=tuple(rechecks),
        ties=ties(chosen, found.trials),
    )


def _config_diff(plan: Plan, chosen: Trial | None) -> str:
    """What the chosen setting changes, without comments."""
    if chosen is None or not chosen.candidate.changed:
        return ""
    before, after = (_statements(render(c)) for c in (plan.config, plan.variant(chosen.candidate).config))
    return "\n".join(difflib.unified_diff(before, after, "config.pbtxt", "tuned", n=1, lineterm=""))


def _statements(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."
