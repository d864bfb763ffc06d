"""Which study a served model's config came from, and whether the server serves what it chose. Layer: bottom of
rollout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perf.grid import Candidate
from perf.study import FILE_NAME, read_study
from perf.tuned import study_named
from tooling.config.knobs import Knobs, one_group, read
from tooling.errors import UsageError
from tooling.repository import config_path, cpu_name, hardware_name

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig


def study_of(model_dir: Path, studies: Path) -> Path | None:
    """The study that the config of this hardware names in its comments, else the newest of this model in `studies`."""
    for hardware in (hardware_name(), cpu_name(), None):
        path = config_path(model_dir, hardware)
        if named := study_named(path):
            return named
    return newest_of(model_dir.name, studies)


def newest_of(model: str, studies: Path) -> Path | None:
    """The study of this model that was written last."""
    for path in sorted(studies.glob(f"*/{FILE_NAME}"), key=lambda file: -file.stat().st_mtime):
        try:
            named = read_study(path.parent)[0].get("model")
        except UsageError:  # damaged: not the one we look for
            continue
        if isinstance(named, dict) and named.get("name") == model:
            return path.parent
    return None


def other_than(chosen: Candidate, served: ModelConfig) -> list[str]:
    """What the config in force, completed by Triton, has otherwise than a setting: `instance_count 2, not 1`.

    What the setting leaves to Triton is not compared. Raises UsageError where knobs cannot say what is served.
    """
    return [f"{name} {got}, not {wanted}" for name, got, wanted in _differences(chosen.knobs, read(one_group(served)))]


def _differences(wanted: Knobs, served: Knobs) -> Iterator[tuple[str, object, object]]:
    yield from _unequal("max_batch_size", served.max_batch_size, wanted.max_batch_size)
    yield from _unequal("dynamic_batching", served.dynamic_batching, wanted.dynamic_batching)
    yield from _unequal("max_queue_delay_us", served.max_queue_delay_us, wanted.max_queue_delay_us)
    if wanted.instance_count is not None:
        yield from _unequal("instance_count", served.instance_count, wanted.instance_count)
    yield from _unequal("intra_op_threads", served.intra_op_threads or 0, wanted.intra_op_threads or 0)


def _unequal(name: str, got: object, wanted: object) -> Iterator[tuple[str, object, object]]:
    if got != wanted:
        yield name, got, wanted
