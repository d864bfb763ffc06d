"""Valid request payloads for perf_analyzer from a signature and a tokenizer. Layer: above workload."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from perf.workload import Workload
from tooling.signature.spec import ModelSignature


@dataclass(frozen=True, slots=True)
class InputData:
    """A written input file: its path, the number of requests in it, and their lengths in order."""

    path: Path
    steps: int
    lengths: tuple[int, ...]


def write_input_data(
    path: Path,
    signature: ModelSignature,
    workload: Workload,
    tokenizer_dir: Path | None = None,
    *,
    batching: bool = True,
    vocab_size: int | None = None,
) -> InputData:
    raise NotImplementedError
