"""What a person asks of a config beyond its defaults, as one value that is put over any config. Layer: config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tooling.config.fed import Fed
from tooling.config.knobs import Knobs, apply, read, threads_key
from tooling.config.overlay import merge
from tooling.config.proto import ModelConfig, backend_of, nameless, pb
from tooling.errors import Problem, UsageError
from tooling.pbtxt import paths

_INT32_MAX: Final = 2**31 - 1
_UINT64_MAX: Final = 2**64 - 1
_INSTANCES: Final = ("instance_count", "instance_kind")


@dataclass(frozen=True, slots=True)
class Changes:
    """Settings of a file, then knobs and fed tensors, then assignments: what is nearer to the person who asks wins.

    `settings` are fields under the schema's own names (see `tooling.config.overlay`) and `origin` the file they come
    from; `knobs` are fields of `Knobs` by name; `assignments` are `path=value` (see `tooling.pbtxt.paths`).
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    assignments: tuple[str, ...] = ()
    fed: Fed = field(default_factory=Fed)

    def __bool__(self) -> bool:
        return bool(self.settings or self.knobs or self.fed or self.assignments)

    @property
    def max_batch_size(self) -> int | None:
        """The `max_batch_size` that is asked for, from which shapes follow; None for none or what is no number."""
        asked = self.knobs.get("max_batch_size", self.settings.get("max_batch_size"))
        last = [text for text in self.assignments if re.match(r"-?max_batch_size\b", text)][-1:]
        try:
            asked = paths.apply(pb().ModelConfig(), last).max_batch_size if last else asked
        except UsageError:
            return None
        return asked if type(asked) is int else None

    def apply(self, config: ModelConfig) -> ModelConfig:
        """A copy of the config with everything changed that is asked for. Raises UsageError with all that cannot be."""
        result = pb().ModelConfig()
        result.CopyFrom(config)
        problems: list[Problem] = []
        try:
            merge(result, self.settings, self.origin)
        except UsageError as error:
            problems += error.problems
        for change in (self._apply_knobs, self._feed, self._assign):
            try:
                result = change(result)
            except UsageError as error:
                problems += error.problems
        if not problems:
            problems = [Problem("no value of this field", path, str(number)) for path, number in nameless(result)]
        if problems:
            raise UsageError(problems=problems)
        return result

    def _feed(self, config: ModelConfig) -> ModelConfig:
        self.fed.apply(config)
        return config

    def _assign(self, config: ModelConfig) -> ModelConfig:
        try:
            return paths.apply(config, self.assignments)
        except UsageError as error:
            raise UsageError(problems=[replace(p, where=f"--set {p.where}") for p in error.problems]) from error

    def _apply_knobs(self, config: ModelConfig) -> ModelConfig:
        """Several instance groups, which knobs cannot say, are set aside unless it is the instances that change."""
        if not self.knobs:
            return config
        groups = [] if any(name in self.knobs for name in _INSTANCES) else list(config.instance_group)
        bare = pb().ModelConfig()
        bare.CopyFrom(config)
        if groups:
            bare.ClearField("instance_group")
        knobs = replace(read(bare), **self.knobs)
        problems = list(knob_problems(knobs, backend_of(config)))
        if problems:
            raise UsageError(problems=problems)
        result = apply(knobs, bare)
        result.instance_group.extend(groups)
        return result


def knob_problems(knobs: Knobs, backend: str) -> Iterator[Problem]:
    """Every knob that Triton would refuse or could not use, whatever the model."""
    top = knobs.max_batch_size
    yield from _out_of_range("max_batch_size", top, 0, _INT32_MAX, hint="use 0 for a model that cannot batch")
    if knobs.instance_count is not None:
        yield from _out_of_range(
            "instances", knobs.instance_count, 1, _INT32_MAX, hint="leave it out for Triton's default"
        )
    if knobs.intra_op_threads is not None:
        yield from _out_of_range("threads", knobs.intra_op_threads, 0, _INT32_MAX, hint="0 takes every core")
        if threads_key(backend) is None:
            yield Problem(f"the {backend} backend has no setting for threads", hint="leave threads out")
    yield from _out_of_range("max_queue_delay", knobs.max_queue_delay_us, 0, _UINT64_MAX)
    if not knobs.dynamic_batching:
        for field, value in (
            ("preferred_batch_size", knobs.preferred_batch_size),
            ("max_queue_delay", knobs.max_queue_delay_us),
        ):
            if value:
                yield Problem(
                    f"{field} needs dynamic batching",
                    got="dynamic batching off" if top else "max_batch_size 0, which runs each request alone",
                    expected="dynamic batching with max_batch_size 1 or more",
                    hint=f"leave {field} out, or {'switch dynamic batching on' if top else 'let the model batch'}",
                )
        return
    if top < 1:
        yield Problem(
            "dynamic batching needs batches",
            got=f"max_batch_size {top}",
            expected="max_batch_size 1 or more (with 0 Triton runs each request alone)",
            hint="switch dynamic batching off, or give a max_batch_size",
        )


def _out_of_range(what: str, value: int, low: int, high: int, hint: str | None = None) -> Iterator[Problem]:
    if not low <= value <= high:
        yield Problem(f"{what} is out of range", got=str(value), expected=f"{low} to {high}", hint=hint)
