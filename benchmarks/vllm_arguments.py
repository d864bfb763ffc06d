"""Write tooling/data/vllm_arguments.yaml from the sources of every vLLM that a Triton release holds.

    python benchmarks/vllm_arguments.py SOURCES

SOURCES holds a directory for each version, as an unpacked wheel: SOURCES/0.5.5/vllm/engine/arg_utils.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from tooling.llm.argument_reader import read_arguments
from tooling.llm.arguments import FACTS, version_key
from tooling.releases import releases


def main(sources: Path) -> None:
    versions = sorted({release.vllm for release in releases() if release.vllm}, key=version_key)
    lines = [
        "# What the engine arguments of vLLM take, by the first version (of Triton's releases) that takes it so;",
        "# ~: it is gone. A type is int, float, bool, str, list, dict or any; a value in quotes is one of a few texts.",
        "# Made by benchmarks/vllm_arguments.py from the versions' own sources.",
        f"versions: [{', '.join(versions)}]",
        "arguments:",
    ]
    spans: dict[str, dict[str, str | None]] = {}
    for version in versions:
        read = {name: " | ".join(types) for name, types in read_arguments(sources / version / "vllm").items()}
        for name in {*read, *spans}:
            before = list(spans.get(name, {}).values())
            now = read.get(name)
            if (before[-1] if before else None) != now:
                spans.setdefault(name, {})[version] = now
    for name, found in sorted(spans.items()):
        entries = ", ".join(f'"{version}": {_text(types)}' for version, types in found.items())
        lines.append(f"  {name}: {{{entries}}}")
    text = "\n".join(lines) + "\n"
    assert yaml.safe_load(text)["arguments"].keys() == spans.keys()
    FACTS.write_text(text, encoding="utf-8")
    print(f"{len(spans)} arguments of {len(versions)} versions")


def _text(types: str | None) -> str:
    return "~" if types is None else f'"{types}"' if "'" in types or "|" in types else types


if __name__ == "__main__":
    main(Path(sys.argv[1]))
