"""What the simulator needs to know of one model's scheduler. Layer: sim, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tooling.config.proto import ModelConfig
from tooling.errors import Problem, UsageError

MAX_LEVELS = MAX_INSTANCES = 1_000  # each costs a record that is gone through again and again


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Triton's ModelQueuePolicy of one priority level; zeros mean no timeout and no limit."""

    timeout_action: str = "REJECT"
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class BatcherConfig:
    """One model's dynamic batcher. Names and defaults are those of Triton's ModelConfig, durations in microseconds.

    `shape_checked`: some input has a free dimension without ragged batching, or is a shape tensor, so that only
    requests of equal shape share a batch. `optional_inputs`: some input is optional, so that only requests with the
    same inputs do. Raises UsageError for values that Triton refuses.
    """

    max_batch_size: int
    dynamic_batching: bool = True
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    instance_count: int = 1
    shape_checked: bool = False
    optional_inputs: bool = False
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = tuple(self._problems())
        if problems:
            raise UsageError(problems=problems)

    def _problems(self) -> list[Problem]:
        levels = self.priority_levels
        rules = [
            ("max_batch_size", self.max_batch_size, 0 <= self.max_batch_size < 2**31, "0 or more, in 32 bits"),
            ("max_queue_delay_us", self.max_queue_delay_us, self.max_queue_delay_us >= 0, "0 or more"),
            (
                "instance_count",
                self.instance_count,
                1 <= self.instance_count <= MAX_INSTANCES,
                _limit(1, MAX_INSTANCES),
            ),
            ("priority_levels", levels, 0 <= levels <= MAX_LEVELS, _limit(0, MAX_LEVELS)),
        ]
        rules += [
            ("preferred_batch_size", size, 1 <= size <= self.max_batch_size, f"1 to {self.max_batch_size}")
            for size in self.preferred_batch_size
        ]
        if levels:
            named = (self.default_priority_level, *self.priority_queue_policy)
            rules += [("priority level", level, 1 <= level <= levels, f"1 to {levels}") for level in named]
        return [
            Problem(f"`{name}` is out of range", where="batcher", got=str(got), expected=expected)
            for name, got, fine, expected in rules
            if not fine
        ]

    def policy(self, level: int) -> QueuePolicy:
        """The queue policy of a level; without priorities there is only level 0, with the default policy."""
        if self.priority_levels == 0:
            return self.default_queue_policy
        return self.priority_queue_policy.get(level, self.default_queue_policy)

    @property
    def prefetch(self) -> bool:
        """Whether payloads are staged ahead: not with priorities or a default queue policy (Triton 24.03 and later)."""
        policy = self.default_queue_policy
        asked = policy.default_timeout_us or policy.allow_timeout_override or policy.max_queue_size
        return not self.priority_levels and not asked

    @classmethod
    def from_model_config(cls, config: ModelConfig, *, instance_count: int | None = None) -> BatcherConfig:
        """The batcher of a protobuf ModelConfig.

        `instance_count` stands in where the config leaves the number of instances to Triton (then 1 by default).
        Raises UsageError for a model with another scheduler.
        """
        scheduler = config.WhichOneof("scheduling_choice")
        if scheduler not in (None, "dynamic_batching"):
            raise UsageError(
                "this scheduler is not simulated",
                where=config.name or None,
                got=f"`{scheduler}`",
                expected="`dynamic_batching` or none",
                hint="simulate the steps of an ensemble as stages in a row" if "ensemble" in scheduler else None,
            )
        batching = config.dynamic_batching
        return cls(
            max_batch_size=config.max_batch_size,
            dynamic_batching=scheduler == "dynamic_batching",
            preferred_batch_size=tuple(batching.preferred_batch_size),
            max_queue_delay_us=batching.max_queue_delay_microseconds,
            instance_count=_instances(config) or instance_count or 1,
            shape_checked=any(i.is_shape_tensor or (-1 in i.dims and not i.allow_ragged_batch) for i in config.input),
            optional_inputs=any(i.optional for i in config.input),
            preserve_ordering=batching.preserve_ordering,
            priority_levels=batching.priority_levels,
            default_priority_level=batching.default_priority_level,
            default_queue_policy=_policy(batching.default_queue_policy),
            priority_queue_policy={level: _policy(p) for level, p in batching.priority_queue_policy.items()},
        )


def _limit(least: int, most: int) -> str:
    return f"{least} to {most} (a limit of the simulator)"


def _instances(config: ModelConfig) -> int:
    return sum(g.count * max(1, len(g.gpus)) for g in config.instance_group if not g.passive)


def _policy(message: ModelConfig) -> QueuePolicy:
    return QueuePolicy(
        timeout_action="DELAY" if message.timeout_action else "REJECT",
        default_timeout_us=message.default_timeout_microseconds,
        allow_timeout_override=message.allow_timeout_override,
        max_queue_size=message.max_queue_size,
    )
