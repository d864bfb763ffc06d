"""The measured service times of a model on one machine: the raw runs, what follows from them, how well a law fits.
Layer: above sim; reads and writes its file.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from perf.grid import split_in_effect
from perf.sim import Machine, Scatter, ServiceModel
from perf.sim.scenario import TIMER_LATENESS_US
from perf.validation import validated
from tooling.config.knobs import Knobs
from tooling.errors import UsageError
from tooling.repository import read_json, write_atomic

Point = tuple[int, int]
"""Rows and length of one execution."""


class Setting(NamedTuple):
    """How many instances, and threads in each; 0 where ONNX Runtime chooses them (every core, each thread pinned)."""

    instances: int
    threads: int

    def __str__(self) -> str:
        instances = f"{self.instances} instance{'s' * (self.instances != 1)}"
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}" if self.threads else "every core"
        return f"{instances} × {threads}"


CURVES = Path(".tritune") / "curves"
_QUANTILES = 200
_ALIKE = 1.6
"""Executions that take up to so many times as long scatter alike."""
_LEAST_FACTOR = 0.05
_LAW = ("", "·rows", "·rows·length", "·rows·length²")
_GOOD_FIT = 0.15


Count = Annotated[int, Field(ge=1, le=1_000_000)]
Moment = Annotated[float, Field(ge=0, le=1e12)]
Duration = Annotated[float, Field(gt=0, le=1e8)]
"""Up to 100 s, as the simulator takes."""


class Batch(BaseModel):
    """Executions of one size in a run, and the mean of what Triton says they took: input, inference and output."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rows: Count
    executions: Count
    compute_us: Duration


class CurveRun(BaseModel):
    """One short run: `clients` that each keep one request of `rows` rows in flight, of `lengths` in turn, at a model of
    `instances` instances with `threads` threads each (0: see `Setting`). `sent_us` and `latency_us` are the requests as
    the clients saw them, in order."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    threads: Annotated[int, Field(ge=0, le=1_000_000)]
    instances: Count
    clients: Count
    rows: Count
    lengths: tuple[Count, ...] = Field(min_length=1)
    sent_us: tuple[Moment, ...] = Field(min_length=1)
    latency_us: tuple[Duration, ...] = Field(min_length=1)
    batches: tuple[Batch, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> CurveRun:
        if len(self.sent_us) != len(self.latency_us):
            raise ValueError("`sent_us` and `latency_us` must be equally long")
        if max(batch.rows for batch in self.batches) < self.rows:
            raise ValueError("`batches` hold no execution with the rows of a request")
        return self

    @property
    def point(self) -> Point | None:
        """What it executed, if all requests were alike."""
        return (self.rows, self.lengths[0]) if len(self.lengths) == 1 else None

    @property
    def executions(self) -> int:
        return sum(batch.executions for batch in self.batches)

    @property
    def compute_us(self) -> float:
        """Mean of an execution."""
        return sum(batch.executions * batch.compute_us for batch in self.batches) / self.executions

    @property
    def between_us(self) -> float:
        """What passes between executions of an instance that always has one waiting, until its last one ends.

        Requests that shared an execution end together, so the instances' last ends are that many requests apart.
        """
        ends = sorted(sent + latency for sent, latency in zip(self.sent_us, self.latency_us, strict=True))
        shared = max(batch.rows for batch in self.batches) // self.rows
        last = ends[::-1][: self.instances * shared : shared]
        there_us = sum(last) - len(last) * min(self.sent_us)
        return there_us / self.executions - self.compute_us


class ServiceCurve(BaseModel):
    """Every run of a profile and what it holds for. `lengths` are those of the traffic it was made for, `left_out` what
    there was no time for, by setting."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schema_version: Literal[1] = 1
    kind: Literal["service_curve"] = "service_curve"
    tool: dict[str, Any]
    server: dict[str, Any]
    host: dict[str, Any]
    model: dict[str, Any]
    started: str
    wall_s: float
    foreign_cores: float | None = None
    lengths: tuple[Count, ...] = Field(min_length=1)
    left_out: dict[str, tuple[str, ...]] = {}
    runs: tuple[CurveRun, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> ServiceCurve:
        for place, names in (("host", {"cpu": str, "cores": int}), ("model", {"name": str})):
            for name, kind in names.items():
                if not isinstance(getattr(self, place).get(name), kind):
                    raise ValueError(f"`{place}.{name}` is missing or of another type")
        for setting in self.settings:
            points = self.of(setting).busy(1)
            rows, lengths = ({point[axis] for point in points} for axis in (0, 1))
            if not points or len(points) < len(rows) * len(lengths):
                raise ValueError(f"{setting}: a run of one client is missing for some pair of rows and length")
        return self

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings that were measured, ascending."""
        return tuple(sorted({Setting(run.instances, run.threads) for run in self.runs}))

    def setting(self, knobs: Knobs) -> Setting:
        """The setting that these knobs make. Where the curve holds no measurement of threads that ONNX Runtime
        chooses, one with as many as there are cores stands for it."""
        found = Setting(*split_in_effect(knobs))
        return found if found.threads or found in self.settings else found._replace(threads=int(self.host["cores"]))

    def of(self, setting: Setting) -> Series:
        """What was measured with a setting; idle instances too slow others down, so each stands for itself.

        Raises UsageError for one that was not measured.
        """
        if setting not in self.settings:
            raise UsageError(
                "the curve was not measured for this setting",
                where=f"service curve of {self.model['name']}",
                got=str(setting),
                expected=", ".join(map(str, self.settings)),
                hint="measure it with `tritune profile MODEL_DIR "
                f"--instances {setting.instances} --threads {setting.threads}`",
            )
        return Series(tuple(run for run in self.runs if (run.instances, run.threads) == setting))


@dataclass(frozen=True, slots=True)
class Fit:
    """A law for the ms of an execution, `terms` × (1, rows, rows × length, rows × length²), and by how much it misses
    each point, as a share of it. It tells whether reading between the points is safe; predictions read the points."""

    terms: tuple[float, ...]
    residuals: Mapping[Point, float]

    @property
    def worst(self) -> float:
        return max(map(abs, self.residuals.values()))

    @property
    def good(self) -> bool:
        """Whether no point is further than 15 % from the law."""
        return self.worst <= _GOOD_FIT

    def __str__(self) -> str:
        parts = (f"{term:+.3g}{name}" for term, name in zip(self.terms, _LAW, strict=True) if term)
        return f"{' '.join(parts).lstrip('+')} ms"


@dataclass(frozen=True)
class Series:
    """The runs of one setting, and what follows from them. Times without a unit in the name are ms."""

    runs: tuple[CurveRun, ...]

    def busy(self, clients: int) -> dict[Point, list[CurveRun]]:
        """The runs with so many executions at a time and none waiting, by what they executed."""
        found: dict[Point, list[CurveRun]] = {}
        for run in self.runs:
            if run.point and run.clients == clients <= run.instances:
                found.setdefault(run.point, []).append(run)
        return found

    @cached_property
    def points(self) -> dict[Point, float]:
        """An execution while the other instances are idle: the median of the runs, as some are disturbed."""
        return {point: _typical_us(runs) / 1e3 for point, runs in sorted(self.busy(1).items())}

    @cached_property
    def slowdown(self) -> tuple[float, ...]:
        """How much slower an execution is with 1, 2, … instances busy; between measured numbers on a line. It is
        below 1 where a machine that idles in between takes its time to wake up."""
        known = {1: 1.0}
        for count in sorted({run.clients for run in self.runs if 1 < run.clients <= run.instances}):
            ratios = [_typical_us(runs) / 1e3 / self.points[point] for point, runs in self.busy(count).items()]
            known[count] = statistics.geometric_mean(ratios)
        most = max(known)
        return tuple(float(f) for f in np.interp(range(1, most + 1), list(known), list(known.values())))

    @cached_property
    def dispatch_us(self) -> float:
        """What passes between two executions of a busy instance."""
        return self._over(run.between_us for run in self._crowd(merged=False))

    @cached_property
    def merge_us(self) -> float:
        """What each further request adds to an execution that Triton merged, against rows sent together."""
        whole = self._crowd(merged=False)
        turns = [
            batch.compute_us + run.between_us
            for run in self._crowd(merged=True)
            for batch in run.batches
            if batch.rows == whole[0].rows
        ]
        if not turns:
            return 0.0
        more_us = statistics.median(turns) - _typical_us(whole) - self.dispatch_us
        return max(0.0, more_us / (whole[0].rows - 1) / self.slowdown[-1])

    @cached_property
    def spin(self) -> float:
        """How much slower executions are while the batcher spins, which two lengths in turn make it do all the time."""
        mixed = [run for run in self.runs if len(run.lengths) > 1]
        if not mixed:
            return 1.0
        alone = statistics.fmean(self.points[1, length] for length in mixed[0].lengths)
        single_us = (batch.compute_us for run in mixed for batch in run.batches if batch.rows == 1)
        return max(1.0, statistics.median(single_us) / 1e3 / alone / self.slowdown[-1])

    @cached_property
    def client_us(self) -> float:
        """What the way to the server and back adds for a lone client."""
        lone = [run for (rows, _), runs in self.busy(1).items() if rows == 1 for run in runs]
        return self._over(statistics.fmean(run.latency_us) - run.compute_us - self.dispatch_us for run in lone)

    @cached_property
    def scatter(self) -> Scatter:
        """Single executions over what is typical of their point, whole slow runs included; of mean 1.

        The factors of a point are those of all points that take about as long: one alone was executed too seldom.
        """
        found = [(self.points[run.point], factors) for run, factors in self._factors() if run.point]
        pools = {
            time: np.sort(np.concatenate([factors for near, factors in found if 1 / _ALIKE < near / time < _ALIKE]))
            for time in sorted(set(self.points.values()))
        }
        places = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        factors = [np.quantile(pool, places) for pool in pools.values()]
        ranks = [
            (np.searchsorted(pools[time], own) + np.searchsorted(pools[time], own, "right")) / 2 / len(pools[time])
            for time, own in found
        ]
        return Scatter(
            tuple(pools),
            tuple(tuple((row / row.mean()).tolist()) for row in factors),
            tuple(tuple(row.tolist()) for row in ranks),
        )

    def _factors(self) -> Iterator[tuple[CurveRun, Any]]:
        """The runs with nothing waiting, and their executions over what is typical of so many at a time."""
        for clients in range(1, len(self.slowdown) + 1):
            for runs in self.busy(clients).values():
                typical_us = _typical_us(runs)
                for run in runs:
                    latency_us = np.asarray(run.latency_us)
                    took_us = latency_us - latency_us.mean() + run.compute_us
                    yield run, np.maximum(took_us / typical_us, _LEAST_FACTOR)

    def uncertainty(self, point: Point) -> float:
        """Twice the standard error of a point's runs, as a share of it."""
        means = [run.compute_us for run in self.busy(1)[point]]
        return relative_error(means)

    @cached_property
    def fit(self) -> Fit:
        """The law of least relative squares; one length or one number of rows leaves the terms it cannot tell at 0."""
        times = np.array(list(self.points.values()))
        rows, lengths = (np.array(column, dtype=float) for column in zip(*self.points, strict=True))
        columns = np.stack([np.ones_like(rows), rows, rows * lengths, rows * lengths**2], axis=1)
        used = _independent(columns)
        terms = np.zeros(columns.shape[1])
        terms[used] = np.linalg.lstsq(columns[:, used] / times[:, None], np.ones_like(times), rcond=None)[0]
        missed = columns @ terms / times - 1
        return Fit(tuple(terms.tolist()), dict(zip(self.points, missed.tolist(), strict=True)))

    def service(self) -> ServiceModel:
        """The points for the simulator, with what stands between executions and what merging adds."""
        points = {
            (rows, length): time + (self.dispatch_us + self.merge_us * (rows - 1)) / 1e3
            for (rows, length), time in self.points.items()
        }
        return ServiceModel.measured(points, slowdown=self.slowdown, scatter=self.scatter, spin=self.spin)

    def machine(self) -> Machine:
        return Machine(client_overhead_us=round(self.client_us), timer_lateness_us=TIMER_LATENESS_US)

    def _crowd(self, *, merged: bool) -> list[CurveRun]:
        """The runs with more clients than instances, of single rows that Triton merges or of batches it cannot."""
        largest = max(rows for rows, _ in self.points)
        return [r for r in self.runs if r.point and r.clients > r.instances and (r.rows < largest) == merged]

    @staticmethod
    def _over(values: Iterable[float]) -> float:
        """The median of what cannot be negative; 0 where nothing was measured."""
        return max(0.0, statistics.median([*values] or [0.0]))


def relative_error(values: Sequence[float]) -> float:
    """Twice the standard error of the mean, as a share of it; infinite for a single value."""
    if len(values) < 2:
        return math.inf
    return 2 * statistics.stdev(values) / math.sqrt(len(values)) / statistics.fmean(values)


def _typical_us(runs: Iterable[CurveRun]) -> float:
    return statistics.median(run.compute_us for run in runs)


def _independent(columns: Any) -> list[int]:
    """The columns that add something to those before them."""
    used: list[int] = []
    scaled = columns / columns.max(axis=0)
    for column in range(columns.shape[1]):
        if np.linalg.matrix_rank(scaled[:, [*used, column]], tol=1e-6) > len(used):
            used.append(column)
    return used


def curve_path(model: str, hardware: str) -> Path:
    """Where the curve of a model on this hardware is kept."""
    return CURVES / f"{model}-{hardware}.json"


def write_curve(curve: ServiceCurve, path: Path) -> None:
    """Write it as JSON; `read_curve` gives the same back. Raises UsageError for a path that cannot be written."""
    write_atomic(path, curve.model_dump_json(indent=1) + "\n")


def read_curve(path: Path) -> ServiceCurve:
    """A stored curve. Raises UsageError when there is none or it is damaged."""
    hint = "measure one with `tritune profile MODEL_DIR`, or name one with --curve: a study has its own, curve.json"
    return validated(ServiceCurve, read_json(path, expected="a curve that `tritune profile` wrote", hint=hint), path)
