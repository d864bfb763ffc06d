"""What the simulator predicts for MiniLM from a measured curve, against perf_analyzer on the embedded server.

    python benchmarks/sim_live.py measure REPOSITORY DIR [--seconds 5] [--runs 2] [--calm 0.1] [--for 230]
    python benchmarks/sim_live.py table DIR

`measure` takes the curve of each setting of instances and threads, then runs every config under every load, and keeps
all of it in DIR. It ends after `--for` seconds and goes on when called again, with a new curve, so it can be run in the
quiet hours of a machine. A run or a curve begins when other programs used no more than `--calm` cores for a second
(after half a minute at the latest); if they used more meanwhile it is made again, twice at most, and the calmest is
kept. REPOSITORY holds the exported model `minilm`, such as the one that `make quickstart` makes.

`table` predicts each point and counts how many are within 10 % on throughput and 20 % on p99. Curve and runs are
minutes apart, in which a virtual machine may change its speed by a third: a short reference run before and after each
run tells the speed, and the prediction is made at it. The table shows that factor, every run by itself, and the cores
that other programs used.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

from perf.analyzer import PerfAnalyzer, find_perf_analyzer
from perf.client import closed_loop, encode
from perf.curve import ServiceCurve, Setting, read_curve, write_curve
from perf.grid import Grid
from perf.input_data import batch_tensors, write_input_data
from perf.measurement import Measurement
from perf.process import ForeignLoad
from perf.profile import compute_by_rows, profile
from perf.profile_request import ProfileRequest
from perf.whatif import Question, what_if
from perf.workload import Workload
from tooling.config.knobs import Knobs, apply, describe, from_dict, read, to_dict
from tooling.console import Console
from tooling.repository import read_config
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer
from tooling.signature.onnx_file import read_onnx

CONFIGS = (
    Knobs(max_batch_size=8, instance_count=1, intra_op_threads=1),
    Knobs(max_batch_size=4, instance_count=1, intra_op_threads=1),
    Knobs(max_batch_size=8, instance_count=1, intra_op_threads=1, preferred_batch_size=(4,)),
    Knobs(max_batch_size=8, instance_count=1, intra_op_threads=2),
    Knobs(max_batch_size=8, instance_count=1, intra_op_threads=2, max_queue_delay_us=3_000),
    Knobs(max_batch_size=4, instance_count=1, intra_op_threads=2, max_queue_delay_us=10_000),
    Knobs(max_batch_size=8, instance_count=2, intra_op_threads=1),
    Knobs(max_batch_size=8, instance_count=2, intra_op_threads=1, max_queue_delay_us=3_000),
    Knobs(max_batch_size=8, instance_count=2, intra_op_threads=1, dynamic_batching=False),
)
REFERENCE = 16
"""The length of the reference runs."""
LENGTHS = ((REFERENCE,), (12, 16, 24))
LOADS = (
    Workload(concurrency=1, lengths=LENGTHS[0]),
    Workload(concurrency=8, lengths=LENGTHS[0]),
    Workload(concurrency=6, lengths=LENGTHS[1]),
    Workload(request_rate=50, lengths=LENGTHS[0]),
)
POINTS = "points.jsonl"
SEEDS = 8


def wait_for_calm(server_pid: int | None, calm_cores: float) -> None:
    """Until other programs used no more for a second, or half a minute has passed."""
    for _ in range(30):
        foreign = ForeignLoad(server_pid)
        time.sleep(1)
        if (foreign.cores(0.0) or 0.0) <= calm_cores:
            return


def curve_of(setting: Setting, model_dir: Path, calm_cores: float) -> ServiceCurve:
    """The calmest of up to three curves, as of runs."""
    request = ProfileRequest(
        model_dir=model_dir,
        grid=Grid(instances=(setting.instances,), threads=(setting.threads,)),
        lengths=LENGTHS[1],
        traffic=LENGTHS[0],
        budget_s=45,
    )
    found: list[ServiceCurve] = []
    for _ in range(3):
        wait_for_calm(None, calm_cores)
        found.append(profile(request, runtime=find_runtime(), console=Console(show_progress=False)))
        if (found[-1].foreign_cores or 0.0) <= calm_cores:
            break
    return min(found, key=lambda curve: curve.foreign_cores or 0.0)


@dataclass(frozen=True)
class Bench:
    """A loaded server and what runs on it; `rows` are those of its largest batch."""

    server: EmbeddedServer
    analyzer: PerfAnalyzer
    model_dir: Path
    scratch: Path
    options: argparse.Namespace
    rows: int

    def point(self, load: Workload) -> dict[str, Any]:
        """One run of perf_analyzer between two reference runs; the calmest of up to three."""
        self._analyze(load, 300)
        found: list[dict[str, Any]] = []
        for _ in range(3):
            wait_for_calm(self.server.pid, self.options.calm)
            before = self._reference_ms()
            counted = compute_by_rows(self.server, "minilm")
            seen = self._analyze(load, round(self.options.seconds * 1_000 / 3.6))  # three windows of 1.2 × this
            executions = since(counted, compute_by_rows(self.server, "minilm"))
            references = (before, self._reference_ms())
            if seen.foreign_cores is not None:
                found.append({"measurement": seen.to_dict(), "reference_ms": references, "executions": executions})
                if seen.foreign_cores <= self.options.calm:
                    break
        return min(found, key=lambda run: float(run["measurement"]["foreign_cores"]))

    def _analyze(self, load: Workload, window_ms: int) -> Measurement:
        signature = read_onnx(self.model_dir / "1" / "model.onnx")
        data = write_input_data(self.scratch / "requests.json", signature, load, self.model_dir / "tokenizer")
        where: dict[str, Any] = {"raw_dir": self.scratch / "raw", "server_pid": self.server.pid}
        return self.analyzer.measure("minilm", self.server.grpc_url, load, data.path, window_ms=window_ms, **where)

    def _reference_ms(self) -> float:
        """Mean time of an execution of a full batch that the client made, with one in flight: it waits for no delay."""
        signature, rows = read_onnx(self.model_dir / "1" / "model.onnx"), self.rows
        tensors = batch_tensors(signature, rows, REFERENCE, self.model_dir / "tokenizer", batching=True)
        request = encode("minilm", tensors, {spec.name: spec.data_type for spec in signature.inputs})
        counted = compute_by_rows(self.server, "minilm")
        closed_loop(self.server.http_url, [request], clients=1, seconds=0.4)
        time.sleep(0.02)  # Triton counts an execution after its answers
        return since(counted, compute_by_rows(self.server, "minilm"))[rows][1]


def since(before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]) -> dict[int, tuple[int, float]]:
    """Executions and their mean ms by rows, between two counts."""
    found = {}
    for rows, (count, spent_ns) in after.items():
        count, spent_ns = count - before.get(rows, (0, 0))[0], spent_ns - before.get(rows, (0, 0))[1]
        if count:
            found[rows] = count, round(spent_ns / count / 1e6, 3)
    return found


def measure(options: argparse.Namespace) -> None:
    """Run what DIR lacks, every point once before any is run again, until the time is up."""
    until = time.monotonic() + options.limit
    model_dir, directory = options.repository.absolute() / "minilm", options.directory
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "repository.json").write_text(json.dumps(str(options.repository.absolute())))
    done = Counter(map(key, points(directory)))
    for number, setting in product(range(options.runs), dict.fromkeys(map(setting_of, CONFIGS))):
        missing = [(k, w) for k in CONFIGS for w in LOADS if setting_of(k) == setting and done[k, w] <= number]
        if not missing or time.monotonic() > until:
            continue
        curve = curve_of(setting, model_dir, options.calm)
        name = f"curve-{len(list(directory.glob('curve-*.json')))}.json"
        write_curve(curve, directory / name)
        run_points(missing, options, name, until)


def run_points(wanted: list[tuple[Knobs, Workload]], options: argparse.Namespace, curve: str, until: float) -> None:
    model_dir, analyzer = options.repository.absolute() / "minilm", find_perf_analyzer(find_runtime())
    base = read_config(model_dir)
    with tempfile.TemporaryDirectory() as scratch, EmbeddedServer(model_dir.parent, find_runtime()) as server:
        for knobs, group in groupby(wanted, lambda pair: pair[0]):
            server.load("minilm", apply(replace(knobs, instance_kind=read(base).instance_kind), base))
            bench = Bench(server, analyzer, model_dir, Path(scratch), options, knobs.max_batch_size)
            for _, load in group:
                if time.monotonic() > until:
                    return
                point = {"knobs": to_dict(knobs), "load": load.model_dump(), "curve": curve, **bench.point(load)}
                with (options.directory / POINTS).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(point) + "\n")


def points(directory: Path) -> Iterator[dict[str, Any]]:
    if (directory / POINTS).exists():
        for line in (directory / POINTS).read_text("utf-8").splitlines():
            yield json.loads(line)


def key(point: dict[str, Any]) -> tuple[Knobs, Workload]:
    return from_dict(point["knobs"]), Workload(**point["load"])


def setting_of(knobs: Knobs) -> Setting:
    return Setting(knobs.instance_count or 0, knobs.intra_op_threads or 0)


def at_speed(curve: ServiceCurve, factor: float) -> ServiceCurve:
    """The curve of a machine on which everything takes `factor` times as long."""

    def slower(values: Iterable[float]) -> tuple[float, ...]:
        return tuple(value * factor for value in values)

    runs = [
        run.model_copy(
            update={
                "sent_us": slower(run.sent_us),
                "latency_us": slower(run.latency_us),
                "batches": tuple(b.model_copy(update={"compute_us": b.compute_us * factor}) for b in run.batches),
            }
        )
        for run in curve.runs
    ]
    return curve.model_copy(update={"runs": tuple(runs)})


def predict(point: dict[str, Any], curve: ServiceCurve, config: Any) -> tuple[float, float, float]:
    """Requests/s and p99 in us that the simulator says at the speed of the machine beside the run, and that speed over
    the curve's. The mean of some seeds: which client starts first is chance, and may decide who shares a batch."""
    knobs, load = key(point)
    times = {rows: ms for (rows, length), ms in curve.of(setting_of(knobs)).points.items() if length == REFERENCE}
    speed = statistics.fmean(point["reference_ms"]) / np.interp(knobs.max_batch_size, list(times), list(times.values()))
    config = apply(replace(knobs, instance_kind=read(config).instance_kind), config)
    count = max(500, point["measurement"]["requests"])  # as long as the run: clients may fall into step only later
    question = Question(config, at_speed(curve, speed), load, requests=count)
    guesses = [what_if(question, (read(config),), seed=seed)[0].prediction for seed in range(SEEDS)]
    p99_us = statistics.fmean(guess.p99_us or 0.0 for guess in guesses)
    return statistics.fmean(guess.throughput_rps for guess in guesses), p99_us, speed


def table(directory: Path) -> None:
    """A row for each point, of the mean of its runs, and how many are as near as they should be."""
    config = read_config(Path(json.loads((directory / "repository.json").read_text("utf-8"))) / "minilm")
    curves = {path.name: read_curve(path) for path in directory.glob("curve-*.json")}
    grouped: dict[tuple[Knobs, Workload], list[dict[str, Any]]] = {(k, w): [] for k in CONFIGS for w in LOADS}
    for point in points(directory):
        grouped[key(point)].append(point)
    print("| config | load | requests/s | predicted | off | p99 ms | predicted | off | speed | other cores |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    near = []
    for (knobs, load), runs in grouped.items():
        if runs:
            text, *found = row(knobs, load, runs, [predict(run, curves[run["curve"]], config) for run in runs])
            print(text)
            near.append(found)
    if not near:
        raise SystemExit(f"{directory} holds no point yet")
    both = sum(all(found) for found in near)
    rates, p99s = (sum(column) for column in zip(*near, strict=True))
    print(f"\nof {len(near)} points: throughput within 10 % in {rates}, p99 within 20 % in {p99s}, both in {both}")


def row(
    knobs: Knobs, load: Workload, runs: list[dict[str, Any]], guesses: list[tuple[float, float, float]]
) -> tuple[str, bool, bool]:
    seen = [Measurement.from_dict(run["measurement"]) for run in runs]
    rates, p99s, speeds = zip(*guesses, strict=True)
    cells = [describe(knobs), f"{load}, length {', '.join(map(str, load.lengths))}"]
    offs = []
    for real, predicted in (
        ([m.throughput_rps or 0 for m in seen], statistics.fmean(rates)),
        ([(m.p99_us or 0) / 1e3 for m in seen], statistics.fmean(p99s) / 1e3),
    ):
        offs.append(predicted / statistics.fmean(real) - 1)
        cells += [" ".join(f"{value:.1f}" for value in real), f"{predicted:.1f}", f"{offs[-1]:+.0%}"]
    cells.append(" ".join(f"{speed:.2f}" for speed in speeds))
    cells.append(" ".join(str(m.foreign_cores) if m.ok else m.status for m in seen))
    return f"| {' | '.join(cells)} |", abs(offs[0]) <= 0.10, abs(offs[1]) <= 0.20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("repository", type=Path)
    measuring.add_argument("directory", type=Path)
    measuring.add_argument("--seconds", type=float, default=5, help="of a run")
    measuring.add_argument("--runs", type=int, default=2, help="of each point")
    measuring.add_argument("--calm", type=float, default=0.1, help="cores that other programs may use during a run")
    measuring.add_argument("--for", type=float, default=230, dest="limit", help="seconds, then begin no further run")
    commands.add_parser("table").add_argument("directory", type=Path)
    options = parser.parse_args()
    if options.command == "table":
        table(options.directory)
        return
    print(f"load average {os.getloadavg()[0]:.1f} before")
    measure(options)


if __name__ == "__main__":
    main()
