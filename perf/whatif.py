"""What would happen under other settings, loads and lengths, by simulation on a measured curve. Layer: above curve and
buckets, pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from perf.buckets import BucketPlan, judge, plan_buckets
from perf.curve import Series, ServiceCurve, Setting
from perf.grid import Grid
from perf.sim import Arrivals, BatcherConfig, Prediction, simulate
from tooling.config.knobs import Knobs, apply, describe, read, to_dict
from tooling.console import table
from tooling.errors import UsageError

if TYPE_CHECKING:
    from perf.workload import Workload
    from tooling.config.proto import ModelConfig

REQUESTS = 20_000
_WARM_UP = 1_000
_MANY_FOREIGN_CORES = 0.3
_BEHIND = 0.97
"""A server that answers less than this share of what is sent falls behind."""


@dataclass(frozen=True, slots=True)
class Question:
    """A config and the traffic to play on it."""

    config: ModelConfig
    curve: ServiceCurve
    workload: Workload
    requests: int = REQUESTS

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths asked for, else those that the curve was made for."""
        return self.workload.lengths or self.curve.lengths

    def arrivals(self) -> Arrivals:
        workload = self.workload.model_copy(update={"lengths": self.lengths})
        return Arrivals.of(workload, self.requests)

    def __str__(self) -> str:
        low, high = min(self.lengths), max(self.lengths)
        spread = f", length {low}" if low == high else f", lengths {low}–{high}"
        return f"{self.workload}{spread if high > 1 else ''}"

    def spread(self, servers: int) -> Question:
        """What one of so many servers gets, when each request goes to any of them alike: at random times, as random.

        Raises UsageError for traffic that is no rate.
        """
        rate = self.workload.request_rate
        if rate is None:
            raise UsageError(
                "only a rate can be spread over servers",
                where="--replicas",
                got=str(self.workload),
                expected="--request-rate",
            )
        return replace(self, workload=self.workload.model_copy(update={"request_rate": rate / servers}))


@dataclass(frozen=True, slots=True)
class Answer:
    """What is predicted for one setting, and whether it falls behind the rate: latencies then only tell how long the
    simulated run was."""

    label: str
    details: dict[str, Any]
    prediction: Prediction
    saturated: bool

    def to_dict(self) -> dict[str, Any]:
        return {"setting": self.label, **self.details, "saturated": self.saturated, **self.prediction.to_dict()}

    def row(self) -> list[str]:
        p = self.prediction
        times = ["saturated"] * 4 if self.saturated else [_ms(us) for us in (p.avg_us, p.p50_us, p.p90_us, p.p99_us)]
        busy = f"{p.stages[0].utilisation:.0%}"
        return [self.label, f"{p.throughput_rps:.1f}", *times, f"{p.mean_batch or 0:.2f}", busy]


HEADER = ["predicted", "requests/s", "avg ms", "p50 ms", "p90 ms", "p99 ms", "mean batch", "busy"]


def settings(question: Question, grid: Grid, preferred: tuple[int, ...] | None = None) -> tuple[Knobs, ...]:
    """Every combination of the values asked for, after the config as it is where the curve holds that.

    Preferred sizes above one of several largest batches are left out there. Raises UsageError for one above them all.
    """
    base = read(question.config)
    largest = max(grid.max_batch_sizes or (base.max_batch_size,))
    if preferred and max(preferred) > largest:
        raise UsageError(
            "a preferred size is above the largest batch",
            where="--preferred-batch-size",
            got=max(preferred),
            expected=f"≤ {largest}",
            hint="raise it with --max-batch-size",
        )
    asked = product(
        grid.instances or (base.instance_count,),
        grid.threads or (base.intra_op_threads,),
        grid.max_batch_sizes or (base.max_batch_size,),
        grid.delays_us or (base.max_queue_delay_us,),
    )
    found = [base] if _setting(question, base) in question.curve.settings else []
    for instances, threads, size, delay in asked:
        sizes = base.preferred_batch_size if preferred is None else preferred
        knobs = replace(
            base,
            instance_count=instances,
            intra_op_threads=threads,
            max_batch_size=size,
            dynamic_batching=size > 0,
            preferred_batch_size=tuple(p for p in sizes if p <= size),
            max_queue_delay_us=delay if size else 0,
        )
        found.append(knobs)
    return tuple(dict.fromkeys(found))


def measured(question: Question, tries: Sequence[Knobs]) -> tuple[tuple[Knobs, ...], tuple[str, ...]]:
    """Those of several combinations whose setting the curve holds, and a note for each setting that it lacks.

    Raises UsageError where it holds none but that of the config as it is.
    """
    lacking = sorted({_setting(question, k) for k in tries} - set(question.curve.settings))
    found = tuple(k for k in tries if _setting(question, k) not in lacking)
    if lacking and set(found) <= {read(question.config)}:
        question.curve.of(lacking[0])
    command = "tritune profile MODEL_DIR --instances {0.instances} --threads {0.threads}"
    return found, tuple(f"left out, as the curve does not hold {s}: `{command.format(s)}` measures it" for s in lacking)


def what_if(question: Question, tries: Sequence[Knobs], *, seed: int = 0) -> tuple[Answer, ...]:
    """A prediction for each setting. Raises UsageError for one that was not measured or that is not simulated."""
    found = []
    for knobs in tries:
        series, batcher = _series(question, knobs)
        prediction = simulate(
            batcher, question.arrivals(), series.service(), machine=series.machine(), warm_up=_warm(question), seed=seed
        )
        found.append(Answer(describe(knobs), {"knobs": to_dict(knobs)}, prediction, _behind(question, prediction)))
    return tuple(found)


def with_buckets(
    question: Question, knobs: Knobs, most: int, *, seed: int = 0
) -> tuple[tuple[BucketPlan, Answer], ...]:
    """The best edges for each number of buckets up to `most`, and free lengths last, each played on the traffic."""
    series, batcher = _series(question, knobs)
    service = series.service()
    plans = plan_buckets(
        Counter(question.lengths),
        service,
        max_batch_size=max(1, batcher.max_batch_size),
        instances=batcher.instance_count,
        max_edges=most,
    )
    found = []
    for plan in plans:
        prediction = judge(
            plan, batcher, question.arrivals(), service, machine=series.machine(), warm_up=_warm(question), seed=seed
        )
        found.append((plan, Answer(_label(plan), {}, prediction, _behind(question, prediction))))
    return tuple(found)


def caveats(question: Question, tries: Sequence[Knobs]) -> Iterator[str]:
    """What makes these predictions less certain."""
    lengths, batch = question.lengths, max(k.max_batch_size for k in tries)
    for setting in sorted({_setting(question, k) for k in tries}):
        series = question.curve.of(setting)
        if left_out := question.curve.left_out.get(str(setting)):
            yield f"with {setting} these were not measured, for want of time: {', '.join(left_out)}"
        rows, measured = ({point[axis] for point in series.points} for axis in (0, 1))
        if len(measured) > 1 and not min(measured) <= min(lengths) <= max(lengths) <= max(measured):
            yield f"lengths {min(lengths)}–{max(lengths)} reach beyond the measured {min(measured)}–{max(measured)}"
        if batch > max(rows):
            yield f"batches of {batch} reach beyond the measured {max(rows)} rows"
        if not series.fit.good:
            yield (
                f"with {setting} no simple law fits the curve (off by {series.fit.worst:.0%}): "
                "profile again on a quiet machine, or with more --rows and --lengths"
            )
    others = question.curve.foreign_cores or 0
    if others > _MANY_FOREIGN_CORES:
        yield f"other programs used {others:.1f} cores while the curve was measured"
    if question.config.response_cache.enable:
        yield "answers from the response cache are not predicted: every request is taken to be executed"
    if not BatcherConfig.from_model_config(question.config).prefetch:
        yield "Triton can stall for up to 500 ms with this queue policy or priorities; that is not predicted here"


def bucket_table(found: Sequence[tuple[BucketPlan, Answer]]) -> str:
    """A row for each number of edges."""
    header = [HEADER[0], "edges", "padding", "equal shape", "full queue/s", *HEADER[1:]]
    rows = []
    for plan, answer in found:
        label, *figures = answer.row()
        rows.append(
            [
                label,
                str(len(plan.edges)),
                f"{plan.padding_waste:.0%}",
                f"{plan.batchability:.0%}",
                f"{plan.throughput_rps:.1f}",
                *figures,
            ]
        )
    return table(header, rows)


def _series(question: Question, knobs: Knobs) -> tuple[Series, BatcherConfig]:
    setting = _setting(question, knobs)
    batcher = BatcherConfig.from_model_config(apply(knobs, question.config), instance_count=setting.instances)
    return question.curve.of(setting), batcher


def _setting(question: Question, knobs: Knobs) -> Setting:
    return question.curve.setting(knobs)


def _warm(question: Question) -> int:
    return min(_WARM_UP, question.requests // 10)


def _behind(question: Question, prediction: Prediction) -> bool:
    workload = question.workload
    return workload.mode == "request_rate" and prediction.throughput_rps < _BEHIND * workload.level


def _label(plan: BucketPlan) -> str:
    if plan.free:
        return "free lengths"
    return "padded to " + " ".join(map(str, plan.edges))


def _ms(us: float | None) -> str:
    return "–" if us is None else f"{us / 1e3:.1f}"
