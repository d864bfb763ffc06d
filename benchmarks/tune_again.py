"""How often `tritune tune` names the same winner, or one that is equal to it, when it is asked the same thing again.

    python benchmarks/tune_again.py REPOSITORY DIRECTORY [--times 10] [-- OPTIONS OF tune]

REPOSITORY holds the exported model `minilm`. Each tuning has a study of its own in DIRECTORY; the same command goes on
where it stopped. Winners that differ from the most frequent one are then compared with it in pairs, on one server.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
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


def winner(data: dict[str, Any]) -> tuple[Knobs, str, float]:
    """The knobs, what was said, and the seconds it took."""
    trials = {trial["id"]: trial for trial in (data["default"], *data["trials"])}
    taken = trials[data["chosen"] or "default"]
    return from_dict(taken["knobs"]), data["conclusion"], data["spent_s"]


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
    return ",".join(f"{name}={value}" for name, value in known.items() if value is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("options", nargs="*", default=DEFAULT)
    options = parser.parse_args()
    model_dir = (options.repository / "minilm").absolute()
    asked = options.options or DEFAULT
    found = []
    for number in range(options.times):
        study = options.directory / f"study-{number}"
        found.append(winner(ask("tune", model_dir, *asked, "--study", study)))
        print(f"{number + 1}: {describe(found[-1][0])} · {found[-1][2]:.0f} s · {found[-1][1]}", flush=True)
    counts = Counter(knobs for knobs, _, _ in found)
    (usual, same), *others = counts.most_common()
    for number, (other, count) in enumerate(others):
        sides = (words(usual), words(other))
        study = options.directory / f"compare-{number}"
        verdict = ask("compare", *sides, "--model", model_dir, *asked, "--study", study)
        said = verdict["compared"][0]["word"] or verdict["compared"][0]["failed"]
        same += count if str(said).startswith("tie") else 0
        print(f"{describe(other)} ({count}×) against {describe(usual)}: {said}")
    print(f"the same winner, or a tie with it: {same} of {len(found)}")


if __name__ == "__main__":
    main()
