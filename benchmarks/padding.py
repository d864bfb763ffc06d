"""Every way to serve texts of mixed lengths, measured: free, one maximum, buckets, merged batches, a model for each.

    python benchmarks/padding.py prepare DIR           export MiniLM, measure its service curve (2 instances × 1 thread)
    python benchmarks/padding.py measure DIR [--seconds 20]      one round of all ways, in turn; may be repeated
    python benchmarks/padding.py report DIR            the table, what the tool chooses, and its share of the best

Eight clients send real sentences and paragraphs made of them (6 to 256 tokens). Rounds alternate their order. Other
programs' share of the cores is shown, as throughput says as much about a busy host as about the way.
"""

from __future__ import annotations

import argparse
import json
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
from perf.profile import ProfileRequest, profile
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


def measure(directory: Path, seconds: float) -> None:
    repository, runs = directory / "repository", directory / "runs.jsonl"
    model = repository / "encoder_model"
    ways = options(choose(directory), read_manifest(model).max_tokens)
    for name, way in ways.items():
        if not (repository / name).exists():
            write_text_pipeline(model, name, way, console=Console())
    number = len(runs.read_text().splitlines()) // len(ways) if runs.exists() else 0
    requests = {
        name: [encode(name, {"text": {"content": [t], "shape": [1, 1]}}, {"text": "TYPE_STRING"}) for t in texts()]
        for name in ways
    }
    with EmbeddedServer(repository, find_runtime(), ServerOptions(strict_config=True)) as server:
        for name in sorted(server.models(), key=lambda name: name in ways):  # what others need goes first
            server.load(name)
        for name in ways if number % 2 == 0 else reversed(ways):
            closed_loop(server.http_url, requests[name], clients=CLIENTS, seconds=1)
            foreign = ForeignLoad(server.pid)
            seen = closed_loop(server.http_url, requests[name], clients=CLIENTS, seconds=seconds)
            run = {
                "way": name,
                "round": number,
                "edges": ways[name].edges,
                "span_s": seen.span_ns / 1e9,
                "latency_ms": (seen.latency_ns / 1e6).round(2).tolist(),
                "foreign_cores": foreign.cores(0.0),
            }
            with runs.open("a") as file:
                file.write(json.dumps(run) + "\n")
            print(f"{NAMES[name]}: {len(seen.sent_ns) / run['span_s']:.1f} requests/s", flush=True)


def report(directory: Path) -> None:
    model = directory / "repository" / "encoder_model"
    choice, lengths = choose(directory), lengths_of(model)
    runs = [json.loads(line) for line in (directory / "runs.jsonl").read_text().splitlines()]
    found: dict[str, list[Any]] = {name: [run for run in runs if run["way"] == name] for name in NAMES}
    rates = {
        name: [len(run["latency_ms"]) / run["span_s"] for run in of_way] for name, of_way in found.items() if of_way
    }
    predicted = {"free": best(choice, "none"), **{way: best(choice, way) for way in ("buckets", "models", "merged")}}
    rows = []
    for name, each in rates.items():
        latency = np.concatenate([run["latency_ms"] for run in found[name]])
        edges = found[name][0]["edges"]
        share = padding_share(lengths, edges) if edges else predicted[name].padding_share
        guess = f"{predicted[name].throughput_rps:.0f}" if name in predicted else ""
        rates_text = f"{np.median(each):.1f} [{min(each):.1f}–{max(each):.1f}]"
        others = max(run["foreign_cores"] or 0 for run in found[name])
        cells = [
            NAMES[name],
            " ".join(map(str, edges)),
            f"{share:.0%}",
            rates_text,
            f"{np.percentile(latency, 50):.0f}",
        ]
        rows.append([*cells, f"{np.percentile(latency, 99):.0f}", guess, f"{others:.1f}"])
    header = ["", "buckets", "padding", "requests/s", "p50 ms", "p99 ms", "predicted/s", "others' cores"]
    names = {"none": "free"}
    chosen = names.get(choice.chosen.padding, choice.chosen.padding)
    share = np.median(rates[chosen]) / max(np.median(each) for each in rates.values())
    facts = {**host_facts(), "clients": CLIENTS, "instances": SETTING.instances, "threads": SETTING.threads}
    print(table(header, rows))
    print(f"\n{len(lengths)} texts, {min(lengths)}–{max(lengths)} tokens, mean {np.mean(lengths):.0f}; {facts}")
    print(f"the tool chooses: {choice.chosen.label}: {share:.2f} × the best measured")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["prepare", "measure", "report"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    asked = parser.parse_args()
    asked.directory.mkdir(parents=True, exist_ok=True)
    if asked.step == "prepare":
        prepare(asked.directory)
    elif asked.step == "measure":
        measure(asked.directory, asked.seconds)
    else:
        report(asked.directory)


if __name__ == "__main__":
    main()
