"""Measure one load of a model and say where the time of a request goes. Layer: above bottleneck and operands."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.bottleneck import Cause, Facts, Split, as_table, causes, to_dict
from perf.input_check import check_input_data, expected_inputs
from perf.input_data import write_input_data
from perf.lengths import fit_to_model, sentence_lengths, traffic_lengths
from perf.measurement import FOREIGN_CORES, Measurement
from perf.operands import Base, request_signature
from perf.preflight import cache_cautions, fitted, notes
from perf.target import RunningTarget, Target, Variant
from perf.trace import read_trace
from perf.transport import Transport
from perf.waste import Padding, file_padding, fixed_shape_padding
from perf.workload import Workload
from tooling.config.knobs import read
from tooling.console import Console, table
from tooling.errors import ExternalError, Refused, TrituneError
from tooling.repository import usable_cores

if TYPE_CHECKING:
    from perf.analyzer import PerfAnalyzer

_RUNS, _MOST_RUNS = 3, 6
_WINDOW_MS = 600
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_TRACED = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "-1"}
_CLIENT_COLUMNS = ("Client Send", "Client Recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to look at: a model as it is configured, under which traffic. `raw` keeps perf_analyzer's files; `traced`
    asks for a run more under Triton's own trace."""

    base: Base
    workload: Workload
    raw: Path
    input_file: Path | None = None
    tokenizer_dir: Path | None = None
    vocab_size: int | None = None
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer: what was measured, and the causes, what matters most first. `trace` holds the µs of each part for
    every traced request, `trace_file` where Triton wrote it."""

    model: str
    workload: str
    facts: Facts
    causes: tuple[Cause, ...]
    latency_us: tuple[float, float]
    runs: int
    foreign_cores: float | None
    trace: dict[str, list[float]]
    trace_file: str | None

    def text(self) -> str:
        split = self.facts.split
        low, high = (value / 1e3 for value in self.latency_us)
        head = (
            f"{self.model} · {self.workload} · {self.facts.throughput_rps:.4g} requests/s · "
            f"mean latency {split.total_us / 1e3:.3g} [{low:.3g}–{high:.3g}] ms in {self.runs} runs"
        )
        first, *others = (str(cause) for cause in self.causes)
        lines = [head, "", as_table(split), "", *self.notes, f"bottleneck  {first}"]
        lines += [f"also        {other}" for other in others]
        return "\n".join([*lines, *self._traced()])

    @property
    def notes(self) -> list[str]:
        """What limits the answer, with a blank line after it."""
        if (self.foreign_cores or 0) < FOREIGN_CORES:
            return []
        return [f"Other programs used {self.foreign_cores:.1f} cores: all times are longer for it.", ""]

    def _traced(self) -> Iterator[str]:
        if self.trace:
            rows = [
                (name.replace("_", " "), f"{times[len(times) // 2]:.0f}", f"{times[int(0.99 * len(times))]:.0f}")
                for name, times in self.trace.items()
            ]
            count = max(len(times) for times in self.trace.values())
            yield from ("", table((f"{count} traced requests", "p50 us", "p99 us"), rows))
        if self.trace_file:
            yield from ("", f"trace   {self.trace_file}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "workload": self.workload,
            **to_dict(self.facts),
            "causes": [{"kind": c.kind, "figure": c.figure, "knob": c.knob} for c in self.causes],
            "latency_us": list(self.latency_us),
            "runs": self.runs,
            "foreign_cores": self.foreign_cores,
            "trace": {
                name: {
                    "p50_us": times[len(times) // 2],
                    "p99_us": times[int(0.99 * len(times))],
                    "requests": len(times),
                }
                for name, times in self.trace.items()
            },
            "trace_file": self.trace_file,
        }


def diagnose(question: Question, *, target: Target, analyzer: PerfAnalyzer, console: Console) -> Diagnosis:
    """Measure the model as it is configured, in three runs that others did not disturb, or the calmest of six.

    Raises Refused or ExternalError when it cannot be measured.
    """
    base, config = question.base, question.base.config
    signature, batching = request_signature(base), config.max_batch_size > 0
    tokenizer = question.tokenizer_dir or (base.model_dir or Path()) / "tokenizer"
    asked = question.workload.lengths
    lengths: tuple[int, ...] = ()
    if question.input_file is None:
        lengths = traffic_lengths(asked, signature, tokenizer, batching=batching, texts=question.workload.texts)
    if base.model_dir and lengths:
        lengths = fit_to_model(lengths, base.model_dir, asked=bool(asked))
    workload = fitted(question.workload.model_copy(update={"lengths": lengths}), config)
    for note in notes(config):
        console.info(note)
    file = question.input_file
    if file is None:
        file = question.raw / "input.json"
        write_input_data(file, signature, workload, tokenizer, batching=batching, vocab_size=question.vocab_size)
        padding = fixed_shape_padding(signature, lengths or _real(tokenizer), batching=batching)
    else:
        check_input_data(file, expected_inputs(config), rows=workload.batch[0] if batching else 1)
        padding = file_padding(file, signature)
    for caution in cache_cautions([config], left_out=not isinstance(target, RunningTarget)):
        console.warning(caution)
    with target:
        sample = _Sample(question, workload, file, target, analyzer)
        points = sample.run(console)
        facts = _facts(question, workload, points, target.config_in_force(sample.name), target, padding)
        trace, trace_file = sample.traced() if question.traced else ({}, None)
    cores = [p.foreign_cores for p in points if p.foreign_cores is not None]
    latencies = [p.avg_us or 0 for p in points]
    ends = "–".join(str(length) for length in sorted({min(lengths), max(lengths)})) if lengths else ""
    return Diagnosis(
        base.name,
        f"{workload}, {ends} tokens" if ends else str(workload),
        facts,
        tuple(causes(facts)),
        (min(latencies), max(latencies)),
        len(points),
        round(statistics.fmean(cores), 2) if cores else None,
        trace,
        trace_file,
    )


def _real(tokenizer: Path) -> tuple[int, ...]:
    """Lengths of real text for a model of a fixed length, which requests do not show; none without its tokenizer."""
    try:
        return sentence_lengths(tokenizer)
    except TrituneError:
        return ()


class _Sample:
    """Runs of one load on one target."""

    def __init__(
        self, question: Question, workload: Workload, file: Path, target: Target, analyzer: PerfAnalyzer
    ) -> None:
        self._question, self._workload, self._file = question, workload, file
        self._target, self._analyzer = target, analyzer
        base = question.base
        self.name = target.serve(Variant("current", base.config, base.model_dir)).name

    def run(self, console: Console) -> Sequence[Measurement]:
        """The calmest runs, after one that is thrown away."""
        with console.progress("measuring", _RUNS + 1) as progress:
            self._measure("warm-up")
            progress.step("warm")
            points: list[Measurement] = []
            while sum(not p.disturbed for p in points) < _RUNS and len(points) < _MOST_RUNS:
                point = self._measure(f"run-{len(points) + 1}")
                if not point.ok:
                    kind = Refused if point.status == "saturated" else ExternalError
                    raise kind(f"{point.status}: {point.message}", where=self.name, hint=point.hint)
                points.append(point)
                progress.step(f"{point.throughput_rps:.4g} requests/s{', disturbed' if point.disturbed else ''}")
        return sorted(points, key=lambda p: p.foreign_cores or 0)[:_RUNS]

    def traced(self) -> tuple[dict[str, list[float]], str | None]:
        """A run more with every request traced; its parts, where the file is on this machine, and its name."""
        with self._tracing() as name:
            self._measure("traced")
        time.sleep(0.2)  # the file is written when the settings change
        written = sorted(Path(name).parent.glob(f"{Path(name).name}*"))
        return (read_trace(written[-1]), str(written[-1])) if written else ({}, f"{name} on the server's host")

    @contextmanager
    def _tracing(self) -> Iterator[str]:
        """Trace settings for the block; those of before, the model's own or the server's, are back afterwards."""
        before = self._target.trace(self.name)
        try:
            found = self._target.trace(self.name, _TRACED)
        except Refused as refusal:
            raise Refused(
                "the server has no trace file",
                where=self._target.url,
                got=refusal.problems[0].what,
                hint="start it with --trace-config=triton,file=FILE --trace-config=level=OFF",
            ) from refusal
        try:
            yield str(found["trace_file"])
        finally:
            self._target.trace(self.name, {name: before[name] for name in _TRACED})

    def _measure(self, where: str) -> Measurement:
        point = self._analyzer.measure(
            self.name,
            self._target.url,
            self._workload,
            self._file,
            raw_dir=self._question.raw / where,
            window_ms=_WINDOW_MS,
            transport=Transport(self._target.protocol),
            batching=self._question.base.config.max_batch_size > 0,
            server_pid=self._target.pid,
        )
        self._target.check(self.name)
        return point


def _facts(
    question: Question,
    workload: Workload,
    points: Sequence[Measurement],
    config: dict[str, Any],
    target: Target,
    padding: Padding | None,
) -> Facts:
    knobs = read(question.base.config)
    local = target.pid is not None or target.url.rpartition(":")[0] in _LOCAL
    cores = usable_cores() if local else None
    groups = config.get("instance_group", [])
    cpu_only = all(group.get("kind") == "KIND_CPU" for group in groups)
    onnx = question.base.config.backend == "onnxruntime"
    busy = [p.client_overhead_percent for p in points if p.client_overhead_percent is not None]

    def mean(name: str) -> float:
        return statistics.fmean(getattr(p, name) or 0.0 for p in points)

    compute = mean("compute_input_us"), mean("compute_infer_us"), mean("compute_output_us")
    client_us = statistics.fmean(_client_us(p) for p in points)
    return Facts(
        split=Split.of(mean("avg_us"), client_us, mean("queue_us"), compute),
        throughput_rps=mean("throughput_rps"),
        mean_batch=statistics.fmean(p.mean_batch or 1.0 for p in points),
        instances=sum(int(group["count"]) * max(1, len(group.get("gpus", []))) for group in groups) or 1,
        max_batch_size=knobs.max_batch_size,
        dynamic_batching="dynamic_batching" in config,
        delay_us=int(config.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0)),
        threads=(knobs.intra_op_threads or cores) if onnx and cpu_only else None,
        cores=cores,
        clients=workload.concurrency,
        client_busy_percent=statistics.fmean(busy) if busy else None,
        lengths=max(1, len(set(workload.lengths))),
        padding=padding,
        executed=_executed(points) if config.get("response_cache", {}).get("enable") else 1.0,
    )


def _executed(points: Sequence[Measurement]) -> float:
    """The share of the rows that the model itself answered."""
    sent = sum((point.requests or 0) * point.rows for point in points)
    return min(1.0, sum(point.inference_count or 0 for point in points) / sent) if sent else 1.0


def _client_us(point: Measurement) -> float:
    """What perf_analyzer's client library spent on packing, sending and unpacking a request."""
    try:
        with (Path(point.raw_dir) / "result.csv").open(encoding="utf-8", newline="") as file:
            row = next(csv.DictReader(file))
        return sum(float(row[column]) for column in _CLIENT_COLUMNS)
    except (OSError, StopIteration, LookupError, ValueError):
        return 0.0
