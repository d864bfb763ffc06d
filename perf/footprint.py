"""Whether a setting fits into memory, estimated before it is loaded. Layer: bottom of perf."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perf.grid import Candidate, instances_in_effect

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

T = TypeVar("T")
WEIGHTS, OWN_BYTES = 1.5, 64 << 20
"""What an instance takes: its weights, half of them again (ONNX Runtime packs matrices anew), and a session of its own.
MiniLM's 87 MiB of weights take 190 MiB in each process of the embedded server."""


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes that are free, in what kind of memory, and those that an instance of the model takes."""

    free_bytes: int
    kind: str
    instance_bytes: int

    @classmethod
    def here(cls, model_file: Path, *, gpu: bool) -> Room | None:
        """For a model file with its external data, in this machine's GPU with the least free memory, or its main
        memory; None where that is not known."""
        free = _free_gpu() if gpu else free_main_bytes()
        if free is None:
            return None
        weights = sum(entry.stat().st_size for entry in model_file.parent.iterdir() if entry.is_file())
        return cls(free, "GPU memory" if gpu else "memory", round(WEIGHTS * weights) + OWN_BYTES)

    def refusal(self, one: Candidate, beside: Candidate) -> str | None:
        """Why a setting is not loaded beside the current one; None when it fits."""
        count = instances_in_effect(one.knobs)
        needed = self.bytes_of(one) + self.bytes_of(beside)
        if needed <= self.free_bytes:
            return None
        return (
            f"{count} instance{'s' * (count != 1)} beside those of the current config take about "
            f"{needed / 2**30:.1f} GiB, of {self.free_bytes / 2**30:.1f} GiB of {self.kind} that are free"
        )

    def groups(self, candidates: Sequence[Candidate], beside: Candidate) -> list[list[Candidate]]:
        """Them in their order, those together that fit beside the current one at once."""
        return packed(candidates, self.bytes_of, self.free_bytes - self.bytes_of(beside))

    def bytes_of(self, one: Candidate) -> int:
        """What all instances of a setting take."""
        return instances_in_effect(one.knobs) * self.instance_bytes

    def left_out(self, candidates: Iterable[Candidate], beside: Candidate) -> tuple[str, ...]:
        """Why some of them do not fit, each reason once."""
        reasons = (self.refusal(one, beside) for one in candidates)
        return tuple(dict.fromkeys(reason for reason in reasons if reason))

    def fitting(self, candidates: Iterable[Candidate], beside: Candidate) -> tuple[Candidate, ...]:
        return tuple(one for one in candidates if self.refusal(one, beside) is None)


def packed(things: Sequence[T], bytes_of: Callable[[T], int], free_bytes: int) -> list[list[T]]:
    """Things in their order, those together that fit at once; one that does not fit at all stands alone."""
    found: list[list[T]] = []
    left_bytes = 0
    for one in things:
        needed_bytes = bytes_of(one)
        if not found or needed_bytes > left_bytes:
            found.append([])
            left_bytes = free_bytes
        found[-1].append(one)
        left_bytes -= needed_bytes
    return found


def taken_bytes(config: ModelConfig, model_dir: Path | None) -> int:
    """What all instances of a configured model take in main memory; 0 where its files are not here."""
    if model_dir is None:
        return 0
    files = sum(entry.stat().st_size for entry in model_dir.rglob("*") if entry.is_file())
    counts = [group.count or 2 for group in config.instance_group]
    return max(sum(counts), 1) * (round(WEIGHTS * files) + OWN_BYTES)


def free_main_bytes() -> int | None:
    """What the kernel says can be had without swapping, cut to what is left of the cgroup's limit."""
    known = [*_meminfo(), *_cgroup()]
    return min(known, default=None)


def _meminfo() -> Iterator[int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    yield from (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _cgroup() -> Iterator[int]:
    root = Path("/sys/fs/cgroup")
    try:
        most, used = ((root / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        yield max(0, int(most) - int(used))
    except (OSError, ValueError):  # no cgroup v2, or no limit: `max`
        return


def _free_gpu() -> int | None:
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return min((int(line) << 20 for line in listed.stdout.splitlines() if line.strip()), default=None)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
