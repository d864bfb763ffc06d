"""How often `tritune tune` names the same winner, or declares a tie with it, when it is asked the same thing again.

    python benchmarks/tune_again.py REPOSITORY DIRECTORY [--times 10] [-- OPTIONS OF tune]

REPOSITORY holds the exported model `minilm`. Each tuning has a study of its own in DIRECTORY; the same command goes on
where it stopped. Of a winner that differs from the most frequent one it says whether that tuning declared a tie with
the other ("not told apart"), and then whether `tritune compare` finds one, on one server.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tooling.config.knobs import Knobs, describe, from_dict

ENTRY = [sys.executable, "-c", "from tooling.cli import entry; entry()"]
DEFAULT = ["--concurrency", "8"]


def ask(command: str, *words: str | Path) -> dict[str, Any]:
    """The answer of a command; exit 1 is one too."""
    done = subprocess.run([*ENTRY, command, *map(str, words), "--json"], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    data: dict[str, Any] = json.loads(done.stdout)["data"]
    return data


@dataclass(frozen=True)
class Winner:
    """What a tuning chose, what it could not tell apart from that, what it said, and the seconds it took."""

    knobs: Knobs
    edges: tuple[int, ...]
    ties: frozenset[Knobs]
    said: str
    spent_s: float

    @classmethod
    def of(cls, data: dict[str, Any]) -> Winner:
        trials = {trial["id"]: trial for trial in (data["default"], *data["trials"])}
        taken = trials[data["chosen"] or "default"]
        ties = frozenset(
            from_dict(trials[tie["id"]]["knobs"]) for tie in data["ties"] if not trials[tie["id"]]["edges"]
        )
        return cls(from_dict(taken["knobs"]), tuple(taken["edges"]), ties, data["conclusion"], data["spent_s"])


def words(knobs: Knobs) -> str:
    """The knobs as a side of `tritune compare`."""
    known = {
        "instances": knobs.instance_count,
        "threads": knobs.intra_op_threads,
        "max-batch-size": knobs.max_batch_size,
        "delay": f"{knobs.max_queue_delay_us}us",
        "batching": "on" if knobs.dynamic_batching else "off",
    }
    if not knobs.dynamic_batching:
        del known["delay"]
    said = [f"{name}={value}" for name, value in known.items() if value is not None]
    return ",".join([*said, *(f"dynamic_batching.preferred_batch_size+={size}" for size in knobs.preferred_batch_size)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("options", nargs="*", default=DEFAULT)
    options = parser.parse_args()
    model_dir = (options.repository / "minilm").absolute()
    asked = options.options or DEFAULT
    found: list[Winner] = []
    for number in range(options.times):
        study = options.directory / f"study-{number}"
        found.append(Winner.of(ask("tune", model_dir, *asked, "--study", study)))
        one = found[-1]
        print(
            f"{number + 1}: {describe(one.knobs)}{' padded' * bool(one.edges)} · {one.spent_s:.0f} s · {one.said}",
            flush=True,
        )
    usual = Counter((one.knobs, one.edges) for one in found).most_common(1)[0][0]
    same = declared = 0
    for number, one in enumerate(found):
        if (one.knobs, one.edges) == usual:
            same += 1
            continue
        declared += usual[0] in one.ties and not usual[1]
        said = "not told apart by the tuning" if usual[0] in one.ties else "told apart, or not measured, by the tuning"
        if not one.edges:
            sides = (words(usual[0]), words(one.knobs))
            study = options.directory / f"compare-{number}"
            verdict = ask("compare", *sides, "--model", model_dir, *asked, "--study", study)["compared"][0]
            said = f"{said}; compared: {verdict['word'] or verdict['failed']}"
        print(f"{number + 1}, {describe(one.knobs)}, against {describe(usual[0])}: {said}", flush=True)
    print(f"the same winner: {same}, or a declared tie with it: {same + declared} of {len(found)}")


if __name__ == "__main__":
    main()
