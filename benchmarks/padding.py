"""Every way to serve texts of mixed lengths, measured: free, one maximum, buckets, merged batches, a model for each.

    python benchmarks/padding.py prepare DIR           export MiniLM, measure its service curve (2 instances × 1 thread)
    python benchmarks/padding.py measure DIR [--seconds 6] [--rounds 5]    all ways in turn; may be repeated
    python benchmarks/padding.py report DIR            the table, what the tool chooses, and its share of the best

Eight clients send real sentences and paragraphs made of them (up to 256 tokens). Rounds alternate their order.
Requests a second say as much about a busy host as about the way, so they are also given for each second of a core that
server and clients got: on a host with nothing else to do, that times its cores is what a way can serve.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from export.manifest import read_manifest
from export.run import export_model
from export.source import bundled_minilm
from export.text_pipeline import TextOptions, write_text_pipeline
from perf.client import closed_loop, encode
from perf.curve import Setting, read_curve, write_curve
from perf.grid import Grid
from perf.lengths import sentences, token_lengths
from perf.padding import Choice, Way, choose_padding, padding_share
from perf.process import ForeignLoad
from perf.profile import profile
from perf.profile_request import ProfileRequest
from perf.provenance import host_facts
from perf.sim import BatcherConfig
from tooling.config.build import build_config
from tooling.config.knobs import Knobs
from tooling.config.render import render
from tooling.console import Console, table
from tooling.repository import MODEL_FILE, read_config, write_atomic
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer, ServerOptions
from tooling.signature.onnx_file import read_onnx

CLIENTS = 8
SETTING = Setting(instances=2, threads=1)
PARAGRAPHS = (1, 1, 1, 2, 4, 8)  # sentences in a text, each size over all sentences
NAMES = {
    "free": "free lengths",
    "maximum": "all padded to the maximum",
    "buckets": "buckets in one model",
    "models": "a model for each bucket",
    "merged": "padded in the merged batch",
}


def texts() -> list[str]:
    """Sentences, and paragraphs of two to eight of them, in random order."""
    every = sentences()
    made = [" ".join(every[i : i + size]) for size in PARAGRAPHS for i in range(0, len(every), size)]
    return [made[i] for i in np.random.default_rng(0).permutation(len(made))]


def lengths_of(model: Path) -> list[int]:
    limit = read_manifest(model).max_tokens
    return [min(n, limit) for n in token_lengths(texts(), model / "tokenizer")]


def prepare(directory: Path) -> None:
    repository = directory / "repository"
    model = export_model(bundled_minilm(), repository, "encoder_model", console=Console()).model_dir
    knobs = Knobs(max_batch_size=8, instance_count=SETTING.instances, intra_op_threads=SETTING.threads)
    write_atomic(model / "config.pbtxt", render(build_config(read_onnx(model / "1" / MODEL_FILE), model.name, knobs)))
    request = ProfileRequest(
        model_dir=model,
        grid=Grid(instances=(SETTING.instances,), threads=(SETTING.threads,)),
        lengths=(8, 32, 96, 256),
        traffic=tuple(lengths_of(model)),
        budget_s=60,
    )
    write_curve(profile(request, runtime=find_runtime(), console=Console()), directory / "curve.json")


def choose(directory: Path) -> Choice:
    """What `tritune export --padding auto` decides."""
    model = directory / "repository" / "encoder_model"
    series = read_curve(directory / "curve.json").of(SETTING)
    config = BatcherConfig.from_model_config(read_config(model), instance_count=SETTING.instances)
    return choose_padding(
        lengths_of(model), series.service(), config, concurrency=CLIENTS, bucket_instances=1, machine=series.machine()
    )


def best(choice: Choice, padding: str) -> Way:
    return max((way for way in choice.ways if way.padding == padding), key=lambda way: way.throughput_rps)


def options(choice: Choice, limit: int) -> dict[str, TextOptions]:
    """The ways that are measured; of each kind with buckets, the edges that are predicted to be best."""
    return {
        "free": TextOptions(),
        "maximum": TextOptions("buckets", (limit,)),
        "buckets": TextOptions("buckets", best(choice, "buckets").edges),
        "models": TextOptions("models", best(choice, "models").edges),
        "merged": TextOptions("merged"),
    }


def measure(directory: Path, seconds: float, rounds: int) -> None:
    repository, runs = directory / "repository", directory / "runs.jsonl"
    model = repository / "encoder_model"
    ways = options(choose(directory), read_manifest(model).max_tokens)
    for name, way in ways.items():
        if not (repository / name).exists():
            write_text_pipeline(model, name, way, console=Console())
    with EmbeddedServer(repository, find_runtime(), ServerOptions(strict_config=True)) as server:
        for name in sorted(server.models(), key=lambda name: name in ways):  # what others need goes first
            server.load(name)
        for number in range(rounds):
            for name in ways if number % 2 == 0 else reversed(ways):
                run = {"way": name, "edges": ways[name].edges, **run_once(server, name, seconds)}
                with runs.open("a") as file:
                    file.write(json.dumps(run) + "\n")
                print(f"{NAMES[name]}: {run['requests'] / run['span_s']:.1f} requests/s", flush=True)


def run_once(server: EmbeddedServer, name: str, seconds: float) -> dict[str, Any]:
    requests = [encode(name, {"text": {"content": [t], "shape": [1, 1]}}, {"text": "TYPE_STRING"}) for t in texts()]
    closed_loop(server.http_url, requests, clients=CLIENTS, seconds=0.5)
    foreign = ForeignLoad(server.pid)
    before_s = cpu_s(server.pid)
    seen = closed_loop(server.http_url, requests, clients=CLIENTS, seconds=seconds)
    own_s = cpu_s(server.pid) - before_s
    return {
        "requests": len(seen.sent_ns),
        "span_s": seen.span_ns / 1e9,
        "latency_ms": (seen.latency_ns / 1e6).round(2).tolist(),
        "cpu_s": own_s,
        "foreign_cores": foreign.cores(0.0),
    }


def cpu_s(server_pid: int) -> float:
    """CPU seconds of the server's processes and of this one, the clients."""
    pids, ticks = [server_pid], 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
        ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK") + time.process_time()


def report(directory: Path) -> None:
    model = directory / "repository" / "encoder_model"
    choice, lengths = choose(directory), lengths_of(model)
    runs = [json.loads(line) for line in (directory / "runs.jsonl").read_text().splitlines()]
    found: dict[str, list[Any]] = {name: [run for run in runs if run["way"] == name] for name in NAMES}
    found = {name: of_way for name, of_way in found.items() if of_way}
    rates = {name: [run["requests"] / run["span_s"] for run in of_way] for name, of_way in found.items()}
    per_core = {
        name: sum(run["requests"] for run in of_way) / sum(run["cpu_s"] for run in of_way)
        for name, of_way in found.items()
    }
    predicted = {"free": best(choice, "none"), **{way: best(choice, way) for way in ("buckets", "models", "merged")}}
    rows = []
    for name, each in rates.items():
        latency = np.concatenate([run["latency_ms"] for run in found[name]])
        edges = found[name][0]["edges"]
        rows.append(
            [
                NAMES[name],
                " ".join(map(str, edges)),
                f"{padding_share(lengths, edges) if edges else predicted[name].padding_share:.0%}",
                f"{np.median(each):.1f} [{min(each):.1f}–{max(each):.1f}]",
                f"{per_core[name]:.1f}",
                f"{np.percentile(latency, 50):.0f}",
                f"{np.percentile(latency, 99):.0f}",
                f"{predicted[name].throughput_rps:.0f}" if name in predicted else "",
            ]
        )
    header = ["", "buckets", "padding", "requests/s", "per core s", "p50 ms", "p99 ms", "predicted/s"]
    print(table(header, rows))
    chosen = choice.chosen.padding.replace("none", "free")
    others = np.mean([run["foreign_cores"] for run in runs])
    facts = {**host_facts(), "clients": CLIENTS, "instances": SETTING.instances, "threads": SETTING.threads}
    print(f"\n{len(lengths)} texts, {min(lengths)}–{max(lengths)} tokens, mean {np.mean(lengths):.0f}; {facts}")
    print(f"{len(runs) // len(found)} rounds; other programs used {others:.1f} cores")
    share, core_share = (np.median(rates[chosen]) / max(map(np.median, rates.values())), per_core[chosen])
    print(f"the tool chooses {choice.chosen.label}: {share:.2f} × the best of them in requests/s,", end=" ")
    print(f"{core_share / max(per_core.values()):.2f} × per second of a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["prepare", "measure", "report"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    asked.directory.mkdir(parents=True, exist_ok=True)
    if asked.step == "prepare":
        prepare(asked.directory)
    elif asked.step == "measure":
        measure(asked.directory, asked.seconds, asked.rounds)
    else:
        report(asked.directory)


if __name__ == "__main__":
    main()
