"""What the simulator predicts for MiniLM from a measured curve, against perf_analyzer on the embedded server.

Measures the curve (or takes the one in FILE), then every setting under every load, each for some seconds, and prints a
table and how many points are within 10 % on throughput and within 20 % on p99. The figures say as much about the quiet
of the machine as about the simulator: the last column is how many cores other programs used.

    python benchmarks/sim_live.py REPOSITORY [--curve FILE] [--seconds 6] [--points N]

REPOSITORY holds the exported model `minilm`, such as the one that `make quickstart` makes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from perf.analyzer import PerfAnalyzer, find_perf_analyzer
from perf.curve import ServiceCurve, read_curve, write_curve
from perf.grid import Grid
from perf.input_data import write_input_data
from perf.measurement import Measurement
from perf.profile import ProfileRequest, profile
from perf.whatif import Question, what_if
from perf.workload import Workload
from tooling.config.knobs import Knobs, apply, describe, read
from tooling.config.proto import ModelConfig
from tooling.console import Console
from tooling.repository import read_config
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer
from tooling.signature.onnx_file import read_onnx

SETTINGS = (
    Knobs(max_batch_size=8, instance_count=1, intra_op_threads=1),
    Knobs(max_batch_size=8, instance_count=1, intra_op_threads=2),
    Knobs(max_batch_size=8, instance_count=2, intra_op_threads=1),
    Knobs(max_batch_size=8, instance_count=2, intra_op_threads=1, max_queue_delay_us=3_000),
    Knobs(max_batch_size=8, instance_count=1, intra_op_threads=2, max_queue_delay_us=3_000),
    Knobs(max_batch_size=4, instance_count=1, intra_op_threads=1),
    Knobs(max_batch_size=8, instance_count=1, intra_op_threads=1, preferred_batch_size=(4,)),
    Knobs(max_batch_size=8, instance_count=2, intra_op_threads=1, dynamic_batching=False),
    Knobs(max_batch_size=4, instance_count=1, intra_op_threads=2, max_queue_delay_us=10_000),
)
LENGTHS = ((16,), (12, 16, 24))
LOADS = (
    Workload(concurrency=1, lengths=LENGTHS[0]),
    Workload(concurrency=8, lengths=LENGTHS[0]),
    Workload(concurrency=6, lengths=LENGTHS[1]),
    Workload(request_rate=50, lengths=LENGTHS[0]),
)


def points(most: int) -> Iterator[tuple[Knobs, Workload]]:
    """Every setting under every load, those of one setting together."""
    yield from [(knobs, load) for knobs in SETTINGS for load in LOADS][:most]


def measured_curve(model_dir: Path, file: Path | None, console: Console) -> ServiceCurve:
    if file is not None and file.exists():
        return read_curve(file)
    request = ProfileRequest(
        model_dir=model_dir,
        grid=Grid(instances=(1, 2), threads=(1, 2)),
        lengths=(12, 16, 24),
        traffic=(16,),
        budget_s=120,
    )
    curve = profile(request, runtime=find_runtime(), console=console)
    if file is not None:
        write_curve(curve, file)
    return curve


def measure(
    server: EmbeddedServer, analyzer: PerfAnalyzer, model_dir: Path, load: Workload, scratch: Path, seconds: float
) -> Measurement:
    """One discarded run of a third of a second a window, then one of `seconds`."""
    signature = read_onnx(model_dir / "1" / "model.onnx")
    data = write_input_data(scratch / "requests.json", signature, load, model_dir / "tokenizer")
    where = {"raw_dir": scratch / "raw", "server_pid": server.pid}
    analyzer.measure("minilm", server.grpc_url, load, data.path, window_ms=300, **where)
    window_ms = round(seconds * 1_000 / 3.6)  # a run is three windows of 1.2 × this
    return analyzer.measure("minilm", server.grpc_url, load, data.path, window_ms=window_ms, **where)


def off(predicted: float | None, seen: float | None) -> float:
    return predicted / seen - 1 if predicted and seen else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--curve", type=Path)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--points", type=int, default=len(SETTINGS) * len(LOADS))
    options = parser.parse_args()
    model_dir = options.repository.absolute() / "minilm"
    console = Console()
    print(f"load average {os.getloadavg()[0]:.1f} before", flush=True)
    curve = measured_curve(model_dir, options.curve, console)
    base = read_config(model_dir)
    print(f"curve measured in {curve.wall_s:.0f} s, other programs used {curve.foreign_cores} cores")
    print("| setting | load | requests/s | predicted | off | p99 ms | predicted | off | other cores |")
    print("|---|---|---|---|---|---|---|---|---|")
    analyzer, loaded = find_perf_analyzer(find_runtime()), None
    within_rate = within_p99 = within_both = total = 0
    with tempfile.TemporaryDirectory() as scratch, EmbeddedServer(options.repository, find_runtime()) as server:
        for knobs, load in points(options.points):
            config: ModelConfig = apply(replace(read(base), **_differences(knobs)), base)
            if loaded != knobs:
                server.load("minilm", config)
                loaded = knobs
            seen = measure(server, analyzer, model_dir, load, Path(scratch), options.seconds)
            (answer,) = what_if(Question(config, curve, load), (knobs,))
            guess = answer.prediction
            rate, p99 = off(guess.throughput_rps, seen.throughput_rps), off(guess.p99_us, seen.p99_us)
            total += 1
            within_rate += abs(rate) <= 0.10
            within_p99 += abs(p99) <= 0.20
            within_both += abs(rate) <= 0.10 and abs(p99) <= 0.20
            print(
                f"| {describe(knobs)} | {load}, length {', '.join(map(str, load.lengths))} "
                f"| {seen.throughput_rps or 0:.1f} | {guess.throughput_rps:.1f} | {rate:+.0%} "
                f"| {(seen.p99_us or 0) / 1e3:.1f} | {(guess.p99_us or 0) / 1e3:.1f} | {p99:+.0%} "
                f"| {seen.foreign_cores} {'' if seen.ok else seen.status} |",
                flush=True,
            )
    print(f"\nthroughput within 10 %: {within_rate} of {total}; p99 within 20 %: {within_p99}; both: {within_both}")
    print(f"load average {os.getloadavg()[0]:.1f} after")


def _differences(knobs: Knobs) -> dict[str, object]:
    return {name: getattr(knobs, name) for name in Knobs.__dataclass_fields__ if name != "instance_kind"}


if __name__ == "__main__":
    main()
