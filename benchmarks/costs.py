"""What the commands cost: wall time, processor time and peak memory of whole processes, median with range.

    python benchmarks/costs.py [--runs N] [--only start|build|export]

`start` is every command's `--help` and the cheapest thing that each can really do; `build` a project of two small
models and one of MiniLM, built for the first time, again, and after each kind of change. Peak memory and processor time
are the kernel's own figures of the finished process and of those that it waited for (wait4); what is smaller than this
process shows as large as it. On a busy host processor time says more than wall time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

TRITUNE = str(Path(sys.executable).parent / "tritune")
ROOT = Path(__file__).resolve().parents[1]
PROJECT = """version: 1
release: "24.10"
owner: search
models:
  one:
    config: {max_batch_size: 4, from: more.yaml}
    tune: false
  two:
    tune: false
deploy:
  compose: {gpus: none}
"""


class Cost(NamedTuple):
    """What one process took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def run(*argv: str, place: Path | None = None, may_fail: bool = False) -> Cost:
    """One process, in `place`."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [TRITUNE, *argv], cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and not may_fail:
        raise SystemExit(f"tritune {' '.join(argv)} ended with {process.returncode}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def report(name: str, costs: list[Cost]) -> None:
    def shown(values: list[float], digits: int) -> str:
        return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}–{max(values):.{digits}f}]"

    walls, cpus, peaks = ([cost[index] for cost in costs] for index in range(3))
    print(f"| {name} | {shown(walls, 2)} | {shown(cpus, 2)} | {max(peaks):.0f} | {len(costs)} |", flush=True)


def commands() -> Iterator[str]:
    """Every command by its words."""
    from tooling.cli.app import app
    from tooling.cli.commands import register

    register(app)
    for one in app.registered_commands:
        yield one.name or (one.callback.__name__ if one.callback else "").replace("_", "-")
    for group in app.registered_groups:
        for one in group.typer_instance.registered_commands if group.typer_instance else ():
            yield f"{group.name} {one.name or (one.callback.__name__ if one.callback else '').replace('_', '-')}"


def write_project(root: Path) -> None:
    """Two models of one operator, and the file that describes them."""
    for name, factor in (("one", 2.0), ("two", 3.0)):
        write_onnx(root / "model_repository" / name / "1" / "model.onnx", factor)
    (root / "more.yaml").write_text("version_policy: {all: {}}\n")
    (root / "tritune.yaml").write_text(PROJECT)


def write_onnx(path: Path, factor: float) -> None:
    import onnx
    from onnx import TensorProto, helper

    value = helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor])
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "factor"], ["y"])], "g", tensors[:1], tensors[1:], [value])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def start(folder: Path, runs: int) -> None:
    write_project(folder)
    run("build", place=folder)
    shutil.copytree(ROOT / "tests" / "perf" / "samples", folder / "samples")
    (folder / "study").mkdir()
    shutil.copy(folder / "samples" / "study_of_format_2.jsonl", folder / "study" / "study.jsonl")
    for words in ("--version", "--help", *(f"{name} --help" for name in commands())):
        report(f"`{words}`", [run(*words.split(), place=folder) for _ in range(runs)])
    calls = (
        "init --source bundled:minilm --no-tune --force --file new.yaml",
        "build", "build --dry-run", "build --frozen",
        "gen-config model_repository/two", "check model_repository", "study best study", "report study -o new.html",
        "deploy compose model_repository --gpus none -o new --force",
        "deploy split --name m --percent 5 -o new --force",
        "completion bash", "runtime show", "restore", "doctor",
    )  # fmt: skip
    for words in calls:
        report(f"`{words}`", [run(*words.split(), place=folder, may_fail=words == "doctor") for _ in range(runs)])


def build(folder: Path, runs: int) -> None:
    write_project(folder / "first")
    changes: dict[str, Callable[[Path, int], object]] = {
        "again, nothing changed": lambda root, turn: None,
        "a file only touched": lambda root, turn: os.utime(root / "model_repository/two/1/model.onnx"),
        "an option": lambda root, turn: edit(root / "tritune.yaml", "max_batch_size: 4", f"max_batch_size: {8 + turn}"),
        "a file of an option": lambda root, turn: (root / "more.yaml").write_text(
            f"version_policy: {{latest: {{num_versions: {turn + 1}}}}}\n"
        ),
        "a model": lambda root, turn: write_onnx(root / "model_repository/two/1/model.onnx", 4.0 + turn),
        "what it made": lambda root, turn: (root / "model_repository/two/config.pbtxt").unlink(),
        "the release": lambda root, turn: edit(root / "tritune.yaml", '"24.10"', '"25.01"'),
        "the owner": lambda root, turn: edit(root / "tritune.yaml", "owner: search", f"owner: ads-{turn}"),
    }
    firsts = []
    for turn in range(runs):
        shutil.copytree(folder / "first", folder / f"build {turn}")
        firsts.append(run("build", place=folder / f"build {turn}"))
    report("two small models, first build", firsts)
    run("build", place=folder / "build 0")
    time.sleep(2.1)  # what changed within the last two seconds is read again
    for name, change in changes.items():
        costs = []
        for turn in range(runs):
            root = folder / f"{name} {turn}"
            shutil.copytree(folder / "build 0", root)
            change(root, turn)
            costs.append(run("build", place=root))
        report(f"two small models, {name}", costs)
    large = folder / "minilm"
    large.mkdir()
    run("init", "--source", "bundled:minilm", "--no-tune", "--deploy", "compose", place=large)
    report("MiniLM, first build (export)", [run("build", place=large)])
    run("build", place=large)
    time.sleep(2.1)
    run("build", place=large)
    report("MiniLM, again, nothing changed", [run("build", place=large) for _ in range(runs)])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new))


def export(folder: Path, runs: int) -> None:
    model, repository = folder / "repository" / "minilm", folder / "repository"
    words = ["export", "bundled:minilm", "--repository", str(repository), "--name", "minilm", "--force"]
    run(*words)  # a warm file cache, as on a developer's machine
    report("export MiniLM", [run(*words) for _ in range(max(1, runs // 2))])
    report("gen-config MiniLM", [run("gen-config", str(model), "--force") for _ in range(runs)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=("start", "build", "export"))
    given = parser.parse_args()
    os.environ["TRITUNE_EXPORT_CACHE"] = tempfile.mkdtemp()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs at the start\n")
    print("| what | wall s | processor s | peak MiB | runs |\n|---|---|---|---|---|")
    for part in (start, build, export):
        if given.only in (None, part.__name__):
            with tempfile.TemporaryDirectory() as folder:
                part(Path(folder), given.runs)
    shutil.rmtree(os.environ["TRITUNE_EXPORT_CACHE"])
    print(f"\nload average {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
