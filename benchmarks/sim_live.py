"""What the simulator predicts for MiniLM from a measured curve, against perf_analyzer on the embedded server.

For each number of instances and threads, measures the curve, then every setting under every load for some seconds, and
prints a table and how many points are within 10 % on throughput and within 20 % on p99. The figures say as much about
the quiet of the machine as about the simulator: the last column is how many cores other programs used.

    python benchmarks/sim_live.py REPOSITORY [--seconds 6] [--settings N]

REPOSITORY holds the exported model `minilm`, such as the one that `make quickstart` makes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from perf.analyzer import PerfAnalyzer, find_perf_analyzer
from perf.curve import ServiceCurve, Setting
from perf.grid import Grid
from perf.input_data import write_input_data
from perf.measurement import Measurement
from perf.profile import ProfileRequest, profile
from perf.sim import Prediction
from perf.whatif import Question, what_if
from perf.workload import Workload
from tooling.config.knobs import Knobs, apply, describe, read
from tooling.console import Console
from tooling.repository import read_config
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer
from tooling.signature.onnx_file import read_onnx

SETTINGS = (
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
LENGTHS = ((16,), (12, 16, 24))
LOADS = (
    Workload(concurrency=1, lengths=LENGTHS[0]),
    Workload(concurrency=8, lengths=LENGTHS[0]),
    Workload(concurrency=6, lengths=LENGTHS[1]),
    Workload(request_rate=50, lengths=LENGTHS[0]),
)


def curve_of(setting: Setting, model_dir: Path) -> ServiceCurve:
    """The curve of one setting, measured now: the runs it predicts follow at once."""
    request = ProfileRequest(
        model_dir=model_dir,
        grid=Grid(instances=(setting.instances,), threads=(setting.threads,)),
        lengths=(12, 16, 24),
        traffic=LENGTHS[0],
        budget_s=45,
    )
    return profile(request, runtime=find_runtime(), console=Console(show_progress=False))


def measure(
    server: EmbeddedServer, analyzer: PerfAnalyzer, model_dir: Path, load: Workload, scratch: Path, seconds: float
) -> Measurement:
    """One discarded run of a third of a second a window, then one of `seconds`."""
    signature = read_onnx(model_dir / "1" / "model.onnx")
    data = write_input_data(scratch / "requests.json", signature, load, model_dir / "tokenizer")
    where: dict[str, Any] = {"raw_dir": scratch / "raw", "server_pid": server.pid}
    analyzer.measure("minilm", server.grpc_url, load, data.path, window_ms=300, **where)
    window_ms = round(seconds * 1_000 / 3.6)  # a run is three windows of 1.2 × this
    return analyzer.measure("minilm", server.grpc_url, load, data.path, window_ms=window_ms, **where)


def off(predicted: float | None, seen: float | None) -> float:
    return predicted / seen - 1 if predicted and seen else float("nan")


def row(knobs: Knobs, load: Workload, seen: Measurement, guess: Prediction) -> tuple[str, bool, bool]:
    """A row of the table, and whether throughput and p99 are as near as they should be."""
    rate, p99 = off(guess.throughput_rps, seen.throughput_rps), off(guess.p99_us, seen.p99_us)
    cells = [
        describe(knobs),
        f"{load}, length {', '.join(map(str, load.lengths))}",
        f"{seen.throughput_rps or 0:.1f}",
        f"{guess.throughput_rps:.1f}",
        f"{rate:+.0%}",
        f"{(seen.p99_us or 0) / 1e3:.1f}",
        f"{(guess.p99_us or 0) / 1e3:.1f}",
        f"{p99:+.0%}",
        str(seen.foreign_cores) if seen.ok else seen.status,
    ]
    return f"| {' | '.join(cells)} |", abs(rate) <= 0.10, abs(p99) <= 0.20


def play(model_dir: Path, seconds: float, settings: Sequence[Knobs]) -> Iterator[tuple[bool, bool]]:
    """Measure and predict every load under every setting, printing a row for each."""
    base, analyzer = read_config(model_dir), find_perf_analyzer(find_runtime())
    for setting, group in groupby(settings, lambda k: Setting(k.instance_count or 0, k.intra_op_threads or 0)):
        curve = curve_of(setting, model_dir)
        print(f"| curve of {setting} | {curve.wall_s:.0f} s |" + " |" * 6 + f" {curve.foreign_cores} |", flush=True)
        with tempfile.TemporaryDirectory() as scratch, EmbeddedServer(model_dir.parent, find_runtime()) as server:
            for knobs in group:
                config = apply(replace(knobs, instance_kind=read(base).instance_kind), base)
                server.load("minilm", config)
                for load in LOADS:
                    seen = measure(server, analyzer, model_dir, load, Path(scratch), seconds)
                    (answer,) = what_if(Question(config, curve, load), (read(config),))
                    text, rate, p99 = row(knobs, load, seen, answer.prediction)
                    print(text, flush=True)
                    yield rate, p99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--settings", type=int, default=len(SETTINGS), help="only the first N")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} before\n")
    print("| setting | load | requests/s | predicted | off | p99 ms | predicted | off | other cores |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    found = list(play(options.repository.absolute() / "minilm", options.seconds, SETTINGS[: options.settings]))
    rates, p99s = (sum(column) for column in zip(*found, strict=True))
    both = sum(rate and p99 for rate, p99 in found)
    print(f"\nof {len(found)} points: throughput within 10 % in {rates}, p99 within 20 % in {p99s}, both in {both}")
    print(f"load average {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
