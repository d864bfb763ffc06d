"""Several models measured at the same time on one server, each under its own traffic. Layer: above tune_request."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.compare import round_order
from perf.grid import Candidate
from perf.input_data import write_input_data
from perf.measurement import Measurement
from perf.study import Record, Study, measurement_of
from perf.tune_request import Plan, TuneRequest, tokenizer_of
from tooling.errors import ExternalError, Refused
from tooling.server.embedded import EmbeddedServer

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer


@dataclass(frozen=True, slots=True)
class Part:
    """One of the models: what is asked of it, all that follows, and how much its gain counts."""

    request: TuneRequest
    plan: Plan
    weight: float

    @property
    def name(self) -> str:
        return self.plan.model_dir.name


Choice = Mapping[str, Candidate]
"""A setting for each model, by its name."""
Points = Mapping[str, Sequence[Measurement]]


class Together:
    """All models on one server under their own traffic at the same time; `spent_s` counts what was recalled too."""

    def __init__(self, parts: Sequence[Part], study: Study, server: EmbeddedServer, analyzer: PerfAnalyzer) -> None:
        self._parts, self._study, self._server, self._analyzer = parts, study, server, analyzer
        self._known = {_key(r): r for r in study.records if r["record"] == "measurement"}
        self._loaded: dict[str, Candidate] = {}
        self._inputs = {part.name: self._write(part) for part in parts}
        self._window_ms = max(part.plan.window_ms for part in parts)
        self._mark = time.monotonic()
        self._ready = False
        self.spent_s, self.runs = 0.0, 0

    def _write(self, part: Part) -> Path:
        plan = part.plan
        path = self._study.directory / f"input-{part.name}.json"
        tokenizer, batching = tokenizer_of(part.request, plan.model_dir), plan.config.max_batch_size > 0
        return write_input_data(path, plan.signature, plan.workload, tokenizer, batching=batching).path

    def pair(self, choice: Choice, stage: str, number: int) -> tuple[dict[str, Measurement], dict[str, Measurement]]:
        """One run of all with the configs as they are, and one with the choice."""
        sides = {side: self._side(choice, stage, number, side) for side in round_order("AB", number)}
        return sides["A"], sides["B"]

    def _side(self, choice: Choice, stage: str, number: int, side: str) -> dict[str, Measurement]:
        identity = {"candidate": _id(choice), "stage": stage, "pair": number, "side": side, "attempt": 1}
        keys = {part.name: _key({"record": "measurement", "model": part.name, **identity}) for part in self._parts}
        if not all(key in self._known for key in keys.values()):
            self._measure(choice, identity)
        found = {}
        for name, key in keys.items():
            found[name], spent_s = measurement_of(self._known[key], self._study.path)
            self.spent_s += spent_s
        self.runs += 1
        for name, point in found.items():
            if not point.ok:
                kind = Refused if point.status == "saturated" else ExternalError
                raise kind(f"{name} cannot be measured: {point.status}: {point.message}", hint=point.hint)
        return found

    def _measure(self, choice: Choice, identity: Record) -> None:
        names = self._serve(choice) if identity["side"] == "B" else self._own()
        self._server.scatter()
        where = "-".join(str(identity[part]) for part in ("stage", "candidate", "pair", "side")).replace(" ", "_")
        points = self._run(names, where)
        now = time.monotonic()
        spent_s, self._mark = now - self._mark, now
        for name, point in points.items():
            record = {"record": "measurement", "model": name, **identity, "raw": f"raw/{where}/{name}"}
            kept = self._study.append({**record, "spent_s": round(spent_s, 3), "measurement": point.to_dict()})
            self._known[_key(kept)] = kept
            spent_s = 0.0

    def _run(self, names: Mapping[str, str], where: str) -> dict[str, Measurement]:
        def one(part: Part) -> Measurement:
            return self._analyzer.measure(
                names[part.name],
                self._server.grpc_url,
                part.plan.workload,
                self._inputs[part.name],
                raw_dir=self._study.directory / "raw" / where / part.name,
                window_ms=self._window_ms,
                server_pid=self._server.pid,
                batching=part.plan.config.max_batch_size > 0,
                statistics=lambda: self._server.stats(names[part.name]),
            )

        with ThreadPoolExecutor(len(self._parts)) as pool:
            points = list(pool.map(one, self._parts))
        self._server.require_alive("while it was measured")
        return {part.name: point for part, point in zip(self._parts, points, strict=True)}

    def _own(self) -> dict[str, str]:
        """Every model as it is configured, loaded and warm."""
        names = {part.name: part.name for part in self._parts}
        if not self._ready:
            for part in self._parts:
                self._server.load(part.name, part.plan.config)
            self._run(names, "warm-up")
            self._ready = True
        return names

    def _serve(self, choice: Choice) -> dict[str, str]:
        """The names under which the models of a choice answer; those that are not changed keep their own."""
        names, fresh = self._own(), False
        for part in self._parts:
            wanted = choice[part.name]
            if wanted.changed:
                fresh |= self._load(part, wanted)
                names[part.name] = _second(part.name)
        if fresh:
            self._run(names, "warm-up")
        return names

    def _load(self, part: Part, wanted: Candidate) -> bool:
        name = _second(part.name)
        if self._loaded.get(name) == wanted:
            return False
        if name not in self._loaded:
            self._server.alias(name, part.plan.model_dir)
        config = part.plan.variant(wanted).config
        config.name = name
        self._server.load(name, config)
        self._loaded[name] = wanted
        return True


def _second(name: str) -> str:
    return f"{name}.candidate"


def _id(choice: Choice) -> str:
    return " ".join(f"{name}={one.id}" for name, one in choice.items())


def _key(record: Record) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in ("candidate", "stage", "pair", "side", "attempt", "model"))
