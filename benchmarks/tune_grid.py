"""How near `tritune tune` comes to the best of a measured grid, for MiniLM under several kinds of traffic.

For each scenario: one tuning; a grid of 68 settings, each measured for a second; then the best five of the grid, what
the tuning chose and the config as it was, all loaded at once and measured in turn. Prints the share of the best that
the choice reaches, and what the tuning took.

    python benchmarks/tune_grid.py REPOSITORY DIRECTORY [--scenario NAME] [--seconds 170]

REPOSITORY holds the exported model `minilm`. Everything measured is kept in DIRECTORY, a file a scenario, and the same
command goes on where it stopped: `--seconds` ends a piece, so that a shared machine can be had in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from perf.analyzer import find_perf_analyzer
from perf.input_data import write_input_data
from perf.lengths import fit_to_model, sentence_lengths
from perf.measurement import Measurement
from perf.slo import Slo, Term
from perf.trial import together
from perf.workload import Workload
from tooling.config.knobs import Knobs, apply, describe, from_dict, read, to_dict
from tooling.errors import Refused
from tooling.repository import read_config
from tooling.runtime import find_runtime
from tooling.server import EmbeddedServer
from tooling.signature.onnx_file import read_onnx

ROUNDS = 16
TOP = 5
WINDOW_MS = 300


@dataclass(frozen=True)
class Scenario:
    """Traffic, demands, and the same as options of `tritune tune`; without lengths those of real sentences."""

    workload: Workload
    slo: str

    @property
    def limits(self) -> tuple[Term, ...]:
        return Slo.parse(self.slo).terms

    @property
    def options(self) -> list[str]:
        w = self.workload
        load = ["--concurrency", w.concurrency] if w.concurrency else ["--request-rate", w.request_rate]
        lengths = ["--lengths", ",".join(map(str, w.lengths))] if w.lengths else []
        return [*map(str, load), *lengths, "--slo", self.slo]


SCENARIOS = {
    "throughput": Scenario(Workload(concurrency=8), "throughput"),
    "loose": Scenario(Workload(concurrency=8), "p99<250ms,throughput"),
    "tight": Scenario(Workload(request_rate=40), "p99<100ms,p95"),
    "mixed": Scenario(Workload(concurrency=16, lengths=(12, 24, 48)), "throughput"),
}
SPLITS = tuple(product((1, 2), (1, 2)))
BATCHING = (
    {"dynamic_batching": False},
    *({"max_batch_size": size} for size in (2, 4, 8, 16, 32, 64)),
    *({"max_batch_size": 8, "max_queue_delay_us": us} for us in (1_000, 2_000, 5_000, 10_000, 50_000)),
    *({"max_batch_size": 16, "max_queue_delay_us": us} for us in (2_000, 5_000, 20_000)),
    {"max_batch_size": 8, "max_queue_delay_us": 5_000, "preferred_batch_size": (4,)},
    {"max_batch_size": 4, "max_queue_delay_us": 50_000, "preferred_batch_size": (2,)},
)


class Piece:
    """The file of a scenario: its records, and whether there is time left for another."""

    def __init__(self, path: Path, until: float) -> None:
        self.path, self._until = path, until
        self.records: list[dict[str, Any]] = []
        if path.exists():
            self.records = [json.loads(line) for line in path.read_text().splitlines()]

    def keep(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]

    @property
    def more(self) -> bool:
        return time.monotonic() < self._until


class Machine:
    """A server with the model under any number of names, and perf_analyzer with a scenario's requests."""

    def __init__(self, stack: ExitStack, model_dir: Path, workload: Workload, scratch: Path) -> None:
        tokenizer = model_dir / "tokenizer"
        lengths = workload.lengths or fit_to_model(sentence_lengths(tokenizer), model_dir, asked=False)
        self._workload = workload.model_copy(update={"lengths": lengths})
        self.config = read_config(model_dir)
        self._data = write_input_data(
            scratch / "input.json", read_onnx(model_dir / "1/model.onnx"), self._workload, tokenizer
        )
        self._model_dir, self._scratch, self._names = model_dir, scratch, set[str]()
        self._server = stack.enter_context(EmbeddedServer(model_dir.parent, find_runtime()))
        self._analyzer = find_perf_analyzer(find_runtime())

    @property
    def data(self) -> Path:
        """The file of requests."""
        return self._data.path

    def load(self, knobs: Knobs, name: str) -> None:
        if name not in self._names:
            self._server.alias(name, self._model_dir)
            self._names.add(name)
        config = apply(knobs, self.config)
        config.name = name
        self._server.load(name, config)
        self.measure(name)

    def measure(self, name: str) -> Measurement:
        """One run, threads on other CPUs than before as in a tuning, lest a setting is judged by its place. Its files
        stay, since percentiles are those of all requests of several runs."""
        self._server.scatter()
        (self._scratch / "raw").mkdir(exist_ok=True)
        return self._analyzer.measure(
            name,
            self._server.grpc_url,
            self._workload,
            self._data.path,
            raw_dir=Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._scratch / "raw")),
            window_ms=WINDOW_MS,
            server_pid=self._server.pid,
        )


def grid(base: Knobs) -> Iterator[Knobs]:
    for (instances, threads), batching in product(SPLITS, BATCHING):
        yield replace(base, instance_count=instances, intra_op_threads=threads, **batching)


def tune(piece: Piece, model_dir: Path, scenario: Scenario, study: Path) -> None:
    """One tuning as a user runs it."""
    command = [sys.executable, "-c", "from tooling.cli import entry; entry()", "tune", str(model_dir), "--json"]
    begin = time.monotonic()
    done = subprocess.run([*command, "--study", str(study), *scenario.options], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    data = json.loads(done.stdout)["data"]
    trials = {t["id"]: t for t in (data["default"], *data["trials"])}
    piece.keep(
        {
            "kind": "tune",
            "wall_s": time.monotonic() - begin,
            "points": data["points"],
            "runs": data["runs"],
            "method": data["method"],
            "knobs": trials[data["chosen"]]["knobs"] if data["chosen"] else None,
            "conclusion": data["conclusion"],
        }
    )


def measure_grid(piece: Piece, machine: Machine) -> None:
    known = {json.dumps(record["knobs"]) for record in piece.of("grid")}
    for knobs in grid(read(machine.config)):
        if json.dumps(to_dict(knobs)) in known:
            continue
        if not piece.more:
            return
        try:
            machine.load(knobs, "minilm.grid")
            point = machine.measure("minilm.grid").to_dict()
        except Refused as refusal:
            point = {"status": str(refusal)}
        piece.keep({"kind": "grid", "knobs": to_dict(knobs), "point": point})


def merit(slo: Slo, points: list[Measurement]) -> tuple[bool, float]:
    """Whether the runs together keep the limits, and the goal; larger is better."""
    figures = together(points) if points and all(p.ok for p in points) else {}
    return bool(figures) and slo.met(figures) is not False, slo.objective.score(figures) or 0.0


def measure_top(piece: Piece, machine: Machine, slo: Slo) -> None:
    """The grid's best, the choice and the config as it was, all loaded, in turn."""
    found = [(Measurement.from_dict(r["point"]), r["knobs"]) for r in piece.of("grid") if "load" in r["point"]]
    ranked = sorted(found, key=lambda pair: merit(slo, [pair[0]]), reverse=True)
    names = {f"minilm.top{n}": knobs for n, (_, knobs) in enumerate(ranked[:TOP])}
    chosen = piece.of("tune")[0]["knobs"] or to_dict(read(machine.config))
    names |= {"minilm.ours": chosen, "minilm.default": to_dict(read(machine.config))}
    for name, knobs in names.items():
        machine.load(from_dict(knobs), name)
    for number in range(len(piece.of("round")), ROUNDS):
        if not piece.more:
            return
        order = list(names) if number % 2 == 0 else list(reversed(names))
        points = {name: machine.measure(name).to_dict() for name in order}
        piece.keep({"kind": "round", "points": points, "knobs": names})


def of_the_best(points: dict[str, list[Measurement]], slo: Slo) -> str:
    """Our share of the best of the grid, which one half of the rounds names and the other half measures, both ways.

    The largest of five noisy figures lies above what any of the five is worth.
    """
    ratios = []
    halves = [[n for n in range(len(points["minilm.ours"])) if n // 2 % 2 == half] for half in (0, 1)]
    for naming, judging in (halves, halves[::-1]):
        tops = [key for key in points if key.startswith("minilm.top")]
        best = max(tops, key=lambda key: merit(slo, [points[key][n] for n in naming]))
        ours, others = (merit(slo, [points[key][n] for n in judging])[1] for key in ("minilm.ours", best))
        ratios.append(ours / others)
    return f"{statistics.geometric_mean(ratios):.2f}"


def summary(name: str, piece: Piece, slo: Slo) -> str:
    tuned = piece.of("tune")[0]
    rounds = [r for r in piece.of("round") if all(point["status"] == "ok" for point in r["points"].values())]
    points = {key: [Measurement.from_dict(r["points"][key]) for r in rounds] for key in rounds[0]["points"]}
    ours, default = merit(slo, points["minilm.ours"]), merit(slo, points["minilm.default"])
    others = statistics.fmean(p.foreign_cores or 0 for values in points.values() for p in values)
    cells = [
        name,
        describe(from_dict(rounds[0]["knobs"]["minilm.ours"])),
        f"{tuned['points']} in {tuned['runs']} runs, {tuned['wall_s']:.0f} s",
        of_the_best(points, slo) if ours[0] else "limits not kept",
        f"{ours[1] / default[1]:.2f}" if default[0] else "the config as it was fails",
        f"{len(piece.of('grid'))}",
        f"{others:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--scenario", choices=SCENARIOS, action="append")
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    model_dir, until = options.repository.absolute() / "minilm", time.monotonic() + options.seconds
    rows = []
    for name in options.scenario or SCENARIOS:
        scenario, slo = SCENARIOS[name], Slo.parse(SCENARIOS[name].slo)
        scratch = options.directory.absolute() / name
        scratch.mkdir(parents=True, exist_ok=True)
        piece = Piece(scratch / "records.jsonl", until)
        if not piece.of("tune") and piece.more:
            tune(piece, model_dir, scenario, scratch / "study")
        if len(piece.of("round")) < ROUNDS and piece.more:
            with ExitStack() as stack:
                machine = Machine(stack, model_dir, scenario.workload, scratch)
                measure_grid(piece, machine)
                if len(piece.of("grid")) == len(SPLITS) * len(BATCHING) and piece.more:
                    measure_top(piece, machine, slo)
        if len(piece.of("round")) == ROUNDS:
            rows.append(summary(name, piece, slo))
    print(
        "| scenario | chosen | points, time | of the best of the grid | of the config as it was | grid | other cores |"
    )
    print("|---|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
