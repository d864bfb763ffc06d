"""Search the scheduler settings of a vLLM model: a law of its steps, a sweep on the simulator, the best few measured.
Layer: above the curve.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from perf.generation import Answer, Ask, generate
from perf.llm_curve import LEVELS, measure_steps, text
from perf.sim.llm import EngineSettings, Generation, StepTime, percentiles, simulate_llm
from perf.slo import Slo
from tooling.errors import UsageError
from tooling.repository import read_config, write_atomic
from tooling.server import EmbeddedServer, ServerOptions

if TYPE_CHECKING:
    from tooling.console import Console
    from tooling.runtime import Runtime

FILE = "model.json"
_NAMES = ("max_num_seqs", "max_num_batched_tokens")
_DEFAULTS = (256, 2048)
_SEQUENCES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)
_BLOCK = 128
"""Tokens of a KV block of vLLM's CPU engine, unless `block_size` says otherwise."""
_CANDIDATES, _ROUNDS = 2, 3
MOST_POINTS = 1 + (1 + _CANDIDATES) * _ROUNDS
"""The curve, and every config in every round."""
_MARGIN = 0.03
_LOAD_TIMEOUT_S = 600
_CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")


class Setting(NamedTuple):
    """What is tuned, under vLLM's own names."""

    max_num_seqs: int
    max_num_batched_tokens: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


@dataclass(frozen=True, slots=True)
class LlmTraffic:
    """`requests` requests of closed-loop `clients`, or at `rate_rps` at random times; prompts (in letters) and outputs
    (in tokens) are drawn from the given lengths."""

    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    clients: int | None = None
    rate_rps: float | None = None
    requests: int = 48
    seed: int = 0

    def asks(self) -> list[Ask]:
        rng = random.Random(self.seed)
        return [Ask(text(rng.choice(self.prompts), rng), rng.choice(self.outputs)) for _ in range(self.requests)]

    def due_s(self) -> list[float] | None:
        if self.rate_rps is None:
            return None
        rng, at, times = random.Random(self.seed), 0.0, []
        for _ in range(self.requests):
            at += rng.expovariate(self.rate_rps)
            times.append(at)
        return times

    def __str__(self) -> str:
        load = f"{self.clients} clients" if self.rate_rps is None else f"{self.rate_rps:g} requests/s at random"
        return f"{load}, {self.requests} requests of {_range(self.prompts)} + {_range(self.outputs)} tokens"


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting with what was predicted and, where it was, what was measured: a mapping of figures for each run."""

    setting: Setting
    predicted: Mapping[str, float]
    measured: tuple[Mapping[str, float], ...] = ()

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

    def to_dict(self) -> dict[str, Any]:
        def plain(one: Tried) -> dict[str, Any]:
            return {
                **one.setting._asdict(),
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
            "chosen": self.chosen.setting._asdict(),
            "changed": self.chosen is not self.current,
            "met": self.met,
            "points": self.points,
        }


def tune_llm(model_dir: Path, traffic: LlmTraffic, slo: Slo, *, runtime: Runtime, console: Console) -> LlmTuned:
    """Find settings that are surely better under this traffic, on an embedded server of its own.

    Candidates are served side by side and measured in turn. Raises UsageError for what is no vLLM model, Refused when
    the engine does not start.
    """
    arguments = read_arguments(model_dir)
    now = Setting(*(arguments.get(name) or default for name, default in zip(_NAMES, _DEFAULTS, strict=True)))
    with _serving(model_dir, runtime) as place, console.progress("tune", 2 + _ROUNDS) as progress:
        server, repository = place
        _add(server, repository, model_dir, "current", arguments)
        law = _law(server, repository, model_dir, {**arguments, **now._asdict()})
        progress.step(f"a step takes {law.us(1, 1, 100) / 1e3:.1f} ms with one sequence")
        current, found = sweep(now, arguments, traffic, slo, law, _cache_tokens(server))
        for number, one in enumerate(found):
            _add(server, repository, model_dir, f"candidate-{number}", {**arguments, **one.setting._asdict()})
        progress.step(f"{len(found)} of the settings may be better")
        runs = _measured(server, ["current", *(f"candidate-{n}" for n in range(len(found)))], traffic, progress.step)
    current, *tried = (
        Tried(one.setting, one.predicted, tuple(seen)) for one, seen in zip((current, *found), runs, strict=True)
    )
    chosen = choose(current, tried, slo)
    points = 1 + sum(len(one.measured) for one in (current, *tried))
    met = slo.met(chosen.figures) is True
    return LlmTuned(model_dir, traffic, slo, law, current, tuple(tried), chosen, met, points)


def _law(server: EmbeddedServer, repository: Path, model_dir: Path, arguments: Mapping[str, Any]) -> StepTime:
    """The law of the steps; of a model with few places from a copy with more, as one sequence alone tells little."""
    if arguments["max_num_seqs"] >= max(LEVELS):
        return measure_steps(server.grpc_url, "current").law
    places = max(LEVELS)
    budget = max(places, arguments["max_num_batched_tokens"])
    more = {**arguments, "max_num_seqs": places, "max_num_batched_tokens": budget}
    _add(server, repository, model_dir, "roomy", more)
    try:
        return measure_steps(server.grpc_url, "roomy").law
    finally:
        server.unload("roomy")


def sweep(
    now: Setting, arguments: Mapping[str, Any], traffic: LlmTraffic, slo: Slo, law: StepTime, cache_tokens: int
) -> tuple[Tried, list[Tried]]:
    """The current setting, and the best of the others that are predicted to be better."""
    block = int(arguments.get("block_size") or _BLOCK)
    longest = int(arguments.get("max_model_len") or max(traffic.prompts) + max(traffic.outputs))
    chunked = arguments.get("enable_chunked_prefill") is not False
    requests = [
        Generation(at * 1e6, len(ask.prompt), ask.tokens)
        for at, ask in zip(traffic.due_s() or [0.0] * traffic.requests, traffic.asks(), strict=True)
    ]

    def predicted(setting: Setting) -> Tried:
        engine = EngineSettings(*setting, cache_tokens // block, block, chunked_prefill=chunked)
        seen = simulate_llm(engine, law, requests, clients=traffic.clients, seed=traffic.seed)
        return Tried(
            setting, {**seen.figures, "tokens_per_s": seen.tokens_per_s, "throughput_rps": seen.throughput_rps}
        )

    current = predicted(now)
    others = [Setting(seqs, budget) for seqs in _SEQUENCES for budget in _BUDGETS if budget >= seqs]
    usable = [one for one in others if one != now and (chunked or one.max_num_batched_tokens >= longest)]
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


def apply_setting(model_dir: Path, setting: Setting) -> Path:
    """Write the setting into the model's arguments; the others stay as they are."""
    path = _version(model_dir) / FILE
    write_atomic(path, json.dumps({**read_arguments(model_dir), **setting._asdict()}, indent=2) + "\n")
    return path


def read_arguments(model_dir: Path) -> dict[str, Any]:
    """The engine arguments of the newest version. Raises UsageError where there are none."""
    path = _version(model_dir) / FILE
    try:
        arguments = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError("the engine arguments cannot be read", where=path, got=error) from None
    if not isinstance(arguments, dict):
        raise UsageError("not a JSON object", where=path, got=type(arguments).__name__, expected="engine arguments")
    for name in _NAMES:
        value = arguments.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(
                f"`{name}` is no count", where=path, got=json.dumps(value), expected="a whole number from 1"
            )
    return arguments


def _rank(figures: Mapping[str, float], slo: Slo) -> tuple[bool, float]:
    return slo.met(figures) is not False, slo.objective.score(figures) or 0.0


def _gains(one: Mapping[str, float], other: Mapping[str, float], slo: Slo) -> bool:
    """Whether it keeps limits that the other does not, or keeps them and is better by more than the margin."""
    (kept, score), (others, before) = _rank(one, slo), _rank(other, slo)
    return kept > others or (kept == others and score > before * (1 + _MARGIN))


def _version(model_dir: Path) -> Path:
    versions = [entry for entry in model_dir.iterdir() if entry.name.isdecimal()] if model_dir.is_dir() else []
    if not versions:
        raise UsageError("no model directory with a version", where=model_dir, expected=f"NAME/1/{FILE} below it")
    return max(versions, key=lambda entry: int(entry.name))


@contextmanager
def _serving(model_dir: Path, runtime: Runtime) -> Iterator[tuple[EmbeddedServer, Path]]:
    _version(model_dir)
    options = ServerOptions(load_timeout_s=_LOAD_TIMEOUT_S)
    with (
        tempfile.TemporaryDirectory(prefix="tritune-llm-") as folder,
        EmbeddedServer(Path(folder), runtime, options) as server,
    ):
        yield server, Path(folder)


def _add(server: EmbeddedServer, repository: Path, model_dir: Path, name: str, arguments: Mapping[str, Any]) -> None:
    """Serve a copy of the model's version under a name of its own, with these arguments."""
    version = shutil.copytree(_version(model_dir), repository / name / "1")
    (version / FILE).write_text(json.dumps(dict(arguments)), encoding="utf-8")
    config = read_config(model_dir)
    config.name = name
    server.load(name, config)


def _cache_tokens(server: EmbeddedServer) -> int:
    """Tokens that the KV cache holds, as the engine says when it starts."""
    found = _CACHE.search(server.log_path.read_text(encoding="utf-8", errors="replace"))
    return int(found[1].replace(",", "")) if found else 1 << 20


def _measured(
    server: EmbeddedServer, names: Sequence[str], traffic: LlmTraffic, step: Any
) -> list[list[dict[str, float]]]:
    """The figures of each model in each round; rounds take turns forward and backward."""
    asks, due_s = traffic.asks(), traffic.due_s()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(_ROUNDS):
        for name in names if number % 2 == 0 else names[::-1]:
            runs[name].append(figures(generate(server.grpc_url, name, asks, due_s=due_s, clients=traffic.clients)))
        step(f"round {number + 1} of {_ROUNDS} measured")
    return list(runs.values())


def figures(answers: Sequence[Answer]) -> dict[str, float]:
    """Tokens a second, requests a second, and percentiles of TTFT, ITL and latency, under a Measurement's names."""
    span_s = max(a.times_s[-1] for a in answers) - min(a.due_s for a in answers)
    between = [a.itl_s * 1e6 for a in answers if a.itl_s is not None]
    named = {"ttft_": [a.ttft_s * 1e6 for a in answers], "itl_": between, "": [a.latency_s * 1e6 for a in answers]}
    found = {"tokens_per_s": sum(a.tokens for a in answers) / span_s, "throughput_rps": len(answers) / span_s}
    return found | {
        f"{prefix}{name}": value
        for prefix, values in named.items()
        if values
        for name, value in percentiles(values).items()
    }


def _range(lengths: Sequence[int]) -> str:
    low, high = min(lengths), max(lengths)
    return str(low) if low == high else f"{low}–{high}"
