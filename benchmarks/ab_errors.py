"""How often `tritune compare` errs: equal configurations called different, and a slower one not found.

A model of the Python backend that sleeps is compared with itself and with one that sleeps 10 % longer, each try a whole
`tritune compare --budget 55s` with a server of its own. Each try adds a line to FILE with its verdict and the host's
load; the same command goes on from there, at most --minutes at a time. `--simulate` shows the error rates of the rule
itself for runs that scatter by a known share; it needs no server.

    python benchmarks/ab_errors.py FILE [--tries 40] [--minutes 4] [--calm 0.6]
    python benchmarks/ab_errors.py --simulate
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from perf.compare import LOOKS, judge
from perf.process import ForeignLoad

SLEEP_MS = 10.0
SLOWER = 1.10
KINDS = {"equal": SLEEP_MS, "slower": SLEEP_MS * SLOWER}
CONFIG = """
backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "sleep_ms" value { string_value: "%g" } }
"""
MODEL = """
import json
import time

import triton_python_backend_utils as utils


class TritonPythonModel:
    def initialize(self, args):
        self.sleep_s = float(json.loads(args["model_config"])["parameters"]["sleep_ms"]["string_value"]) / 1e3

    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep(self.sleep_s)
            x = utils.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(utils.InferenceResponse([utils.Tensor("y", x)]))
        return answers
"""


def repository(root: Path) -> Path:
    """The sleeping model as `sleeper`."""
    model = root / "models" / "sleeper"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(MODEL)
    (model / "config.pbtxt").write_text(CONFIG % SLEEP_MS)
    return model


def one_try(kind: str, number: int, root: Path, model: Path) -> dict[str, object]:
    """One comparison as a user runs it."""
    other = f"parameters[sleep_ms]={KINDS[kind]:g}"
    command = [sys.executable, "-c", "from tooling.cli import entry; entry()", "compare", str(model), other]
    command += ["--budget", "55s", "--concurrency", "4", "--study", str(root / f"{kind}-{number}"), "--json", "-q"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    answer = json.loads(done.stdout)
    if answer["data"] is None:
        raise SystemExit(done.stderr)
    (compared,) = answer["data"]["compared"]
    return {
        "kind": kind,
        "try": number,
        "wall_s": round(time.monotonic() - began, 1),
        "load": round(os.getloadavg()[0], 2),
        "foreign_cores": answer["data"]["foreign_cores"],
        "word": compared["word"],
        **compared["verdict"],
    }


def results(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_until_calm(cores: float, until: float) -> None:
    """Wait until other programs use fewer cores, over three seconds."""
    while time.monotonic() < until:
        foreign = ForeignLoad(os.getpid())
        time.sleep(3)
        if (foreign.cores(0.0) or 0.0) < cores:
            return


def run(path: Path, tries: int, minutes: float, calm: float) -> None:
    """The tries that the file lacks, of both kinds in turn."""
    until = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        model = repository(root)
        for number in range(tries):
            for kind in KINDS:
                if any((r["kind"], r["try"]) == (kind, number) for r in results(path)):
                    continue
                wait_until_calm(calm, until)
                if time.monotonic() > until:
                    return
                found = one_try(kind, number, root, model)
                with path.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(
                    kind,
                    number,
                    found["word"],
                    f"{found['wall_s']} s, others {found['foreign_cores']} cores",
                    flush=True,
                )


def summary(path: Path) -> Iterator[str]:
    for kind, right in (("equal", "tie"), ("slower", "worse")):
        found = [r for r in results(path) if r["kind"] == kind]
        outcomes, pairs = (Counter(str(r[name]) for r in found) for name in ("outcome", "pairs"))
        yield f"{kind}: {outcomes[right]} of {len(found)} {right} ({dict(outcomes)}; tries by pairs: {dict(pairs)})"
        for name in ("wall_s", "foreign_cores"):
            values = sorted(float(str(r[name])) for r in found)
            yield (
                f"    {name}: {values[len(values) // 2]:g} [{values[0]:g}–{values[-1]:g}]" if values else "    no tries"
            )


def simulate(runs: int = 20_000) -> Iterator[str]:
    """The rule on log-normal runs: what it says of equal sides and of one that is 10 % slower."""
    import numpy as np

    rng = np.random.default_rng(0)
    for scatter in (0.01, 0.03, 0.05, 0.10, 0.15):
        sigma = float(np.sqrt(np.log1p(scatter**2)))
        for ratio in (1.0, 1 / SLOWER):
            noise = rng.normal(0, sigma, (runs, LOOKS[-1], 2))
            gains = np.log(ratio) + noise[:, :, 1] - noise[:, :, 0]
            outcomes = Counter(decide(row) for row in gains)
            shares = ", ".join(f"{word} {count / runs:.2%}" for word, count in sorted(outcomes.items()))
            yield f"runs scatter by {scatter:.0%}, B {'equal' if ratio == 1 else '10 % slower'}: {shares}"


def decide(gains: object) -> str:
    for look in LOOKS:
        verdict = judge(list(gains[:look]))  # type: ignore[index]
        if verdict.outcome != "undecided":
            break
    return verdict.outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--tries", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--calm", type=float, default=0.6, help="begin a try when others use fewer cores")
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_args()
    if options.simulate:
        lines = simulate()
    elif options.file:
        run(options.file, options.tries, options.minutes, options.calm)
        lines = summary(options.file)
    else:
        parser.error("give FILE or --simulate")
    for line in lines:
        print(line)


if __name__ == "__main__":
    main()
