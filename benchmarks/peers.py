"""`tritune tune` beside Triton's Model Analyzer: measurements, time, and what each choice is worth, on one machine.

    python benchmarks/peers.py REPOSITORY DIRECTORY [--mode quick|brute] [--scenario throughput]

REPOSITORY holds the exported model `minilm`. Model Analyzer is installed into an environment of its own in DIRECTORY
and drives the embedded server in its remote mode, with the same requests and the same perf_analyzer, every call of
which is counted. Then its choice, ours and the config as it was are loaded on one server and measured in turn. A
scenario is one of those of `tune_grid.py` with clients: Model Analyzer searches the number of clients itself. What was
done is kept in DIRECTORY; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from google.protobuf.json_format import ParseDict
from tune_grid import ROUNDS, SCENARIOS, Machine, Piece, Scenario, tune

from perf.analyzer import find_perf_analyzer
from perf.measurement import Measurement
from perf.trial import together
from tooling.config.knobs import Knobs, describe, from_dict, read, to_dict
from tooling.config.proto import pb
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer

PEER = "triton-model-analyzer==1.58.0"
BRUTE = {
    "run_config_search_max_instance_count": 2,
    "run_config_search_max_model_batch_size": 64,
    "run_config_search_min_concurrency": 8,
    "run_config_search_max_concurrency": 8,
}
"""Its brute search as wide as the grid of `tune_grid.py`, at our number of clients: as it comes it takes 495 runs."""
LONGEST_S = 3 * 3600


def install(directory: Path) -> Path:
    """The model-analyzer program."""
    program = directory / "env" / "bin" / "model-analyzer"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", directory / "env"], check=True)
        subprocess.run([program.with_name("pip"), "install", "--quiet", PEER], check=True)
    return program


def counting(directory: Path) -> Path:
    """perf_analyzer as a program that notes each call."""
    found, program = find_perf_analyzer(find_runtime()), directory / "perf_analyzer.sh"
    libraries = found.env.get("LD_LIBRARY_PATH", "")
    lines = [f'echo call >> "{directory / "calls"}"', f'export LD_LIBRARY_PATH="{libraries}"']
    program.write_text("\n".join(["#!/bin/sh", *lines, f'exec {" ".join(found.command)} "$@"', ""]))
    program.chmod(0o755)
    (directory / "calls").write_text("")
    return program


def peer(piece: Piece, model_dir: Path, scenario: Scenario, mode: str, directory: Path, data: Path) -> None:
    """One search of Model Analyzer, as its documentation runs it."""
    program, analyzer = install(directory), counting(directory)
    out, export, checkpoints = (directory / name for name in ("variants", "export", "checkpoints"))
    for old in (out, export, checkpoints):
        shutil.rmtree(old, ignore_errors=True)
    limits = [term for term in scenario.limits if term.metric == "p99"]
    asked: dict[str, Any] = {"cpu_only": True, "perf_analyzer_flags": {"input-data": str(data)}}
    if limits:
        asked["constraints"] = {"perf_latency_p99": {"max": int(limits[0].limit / 1e3)}}
    with EmbeddedServer(model_dir.parent, find_runtime()) as server:
        config = {
            "model_repository": str(model_dir.parent),
            "profile_models": {model_dir.name: asked},
            "run_config_search_mode": mode,
            "triton_launch_mode": "remote",
            "triton_http_endpoint": server.http_url,
            "triton_grpc_endpoint": server.grpc_url,
            "triton_metrics_url": f"http://{server.metrics_url}/metrics",
            "client_protocol": "grpc",
            "output_model_repository_path": str(out),
            "override_output_model_repository": True,
            "checkpoint_directory": str(checkpoints),
            "perf_analyzer_path": str(analyzer),
            "export_path": str(export),
            "skip_detailed_reports": True,
            **(BRUTE if mode == "brute" else {}),
        }
        (directory / "config.yaml").write_text(yaml.safe_dump(config))
        begin = time.monotonic()
        done = subprocess.run(
            [program, "profile", "-f", directory / "config.yaml"], capture_output=True, text=True, timeout=LONGEST_S
        )
        wall_s = time.monotonic() - begin
    (directory / f"{mode}.log").write_text(done.stdout + done.stderr)
    measured = list(_measured(checkpoints, model_dir.name))
    piece.keep(
        {
            "kind": mode,
            "wall_s": wall_s,
            "runs": len((directory / "calls").read_text().split()),
            "points": len(measured),
            "knobs": _best(measured, limits[0].limit / 1e3 if limits else None),
        }
    )


def _measured(checkpoints: Path, name: str) -> Iterator[tuple[dict[str, Any], dict[str, float]]]:
    """What stands in its last checkpoint: the config of each variant, and the figures of each measurement of it."""
    last = max(checkpoints.glob("*.ckpt"), key=lambda path: int(path.stem))
    for config, runs in json.loads(last.read_text())["ResultManager.results"]["_results"][name].values():
        model = config["_model_run_configs"][0]["_model_config_variant"]["model_config"]
        for run in runs.values():
            (one,) = run["_model_config_measurements"]
            yield model, {tag: value["_value"] for tag, value in one["_non_gpu_data"]}


def _best(measured: Sequence[tuple[dict[str, Any], dict[str, float]]], limit_ms: float | None) -> dict[str, Any] | None:
    """The knobs of the variant with the most throughput that keeps the limit, whatever the number of its clients."""
    able = [pair for pair in measured if limit_ms is None or pair[1]["perf_latency_p99"] <= limit_ms]
    if not able:
        return None
    config, _ = max(able, key=lambda pair: pair[1]["perf_throughput"])
    return to_dict(read(ParseDict(config, pb().ModelConfig())))


def measure_rounds(piece: Piece, machine: Machine, sides: dict[str, Knobs]) -> None:
    """All choices on one server, in turn."""
    for name, knobs in sides.items():
        machine.load(knobs, f"minilm.{name}")
    for number in range(len(piece.of("round")), ROUNDS):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        piece.keep({"kind": "round", "points": {name: machine.measure(f"minilm.{name}").to_dict() for name in order}})


def show(piece: Piece, mode: str) -> None:
    rounds = piece.of("round")
    print("| | points | runs of perf_analyzer | wall s | requests/s | p99 ms | against the config as it was |")
    print("|---|---|---|---|---|---|---|")
    for name, kind in (("default", ""), ("tritune", "tune"), ("model-analyzer", mode)):
        if name not in rounds[0]["points"]:
            print(f"| {name}: no setting kept the limit | | | | | | |")
            continue
        points = [Measurement.from_dict(r["points"][name]) for r in rounds]
        figures = together(points)
        ratios = [r["points"][name]["throughput_rps"] / r["points"]["default"]["throughput_rps"] for r in rounds]
        taken = piece.of(kind)[0] if kind else {}
        label = f"{name} {mode if kind == mode else ''}: {describe(from_dict(taken['knobs']))}" if kind else name
        effort = [str(taken.get("points", "")), str(taken.get("runs", "")), f"{taken['wall_s']:.0f}" if taken else ""]
        spread = f"{statistics.median(ratios):.2f}× [{min(ratios):.2f}–{max(ratios):.2f}]"
        cells = [label, *effort, f"{figures['throughput_rps']:.1f}", f"{figures['p99_us'] / 1e3:.0f}", spread]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--mode", choices=("quick", "brute"), default="quick")
    parser.add_argument(
        "--scenario", choices=[name for name, s in SCENARIOS.items() if s.workload.concurrency], default="throughput"
    )
    options = parser.parse_args()
    directory = options.directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    scenario, model_dir = SCENARIOS[options.scenario], (options.repository / "minilm").absolute()
    piece = Piece(directory / f"{options.scenario}-{options.mode}.jsonl", float("inf"))
    with ExitStack() as stack:
        machine = Machine(stack, model_dir, scenario.workload, directory)
        if not piece.of("tune"):
            tune(piece, model_dir, scenario, directory / f"study-{options.scenario}")
        if not piece.of(options.mode):
            peer(piece, model_dir, scenario, options.mode, directory, machine.data)
        base = read(machine.config)
        sides = {"default": base, "tritune": from_dict(piece.of("tune")[0]["knobs"] or to_dict(base))}
        if found := piece.of(options.mode)[0]["knobs"]:
            sides["model-analyzer"] = from_dict(found)
        measure_rounds(piece, machine, sides)
    show(piece, options.mode)


if __name__ == "__main__":
    main()
