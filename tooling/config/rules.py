"""Rules of Triton's core for schedulers, instances and policies, whatever the backend. Layer: config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from tooling.config.proto import ModelConfig, backend_of, pb
from tooling.errors import Problem

_CORRID_TYPES: Final = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")
_FALSE_TRUE: Final = ("int32_false_true", "fp32_false_true", "bool_false_true")


def problems(config: ModelConfig) -> Iterator[Problem]:
    """Every rule of the core that the scheduler, the instances or a policy of `config` breaks."""
    scheduler = config.WhichOneof("scheduling_choice")
    if scheduler == "dynamic_batching":
        yield from _dynamic_problems(config)
    elif scheduler == "sequence_batching":
        yield from _sequence_problems(config)
    yield from _instance_problems(config)
    yield from _cache_problems(config)
    policy = config.version_policy
    if policy.HasField("latest") and policy.latest.num_versions == 0:
        yield Problem("version_policy loads no version", got="latest 0", expected="latest with num_versions 1 or more")
    if policy.HasField("specific") and not policy.specific.versions:
        yield Problem(
            "version_policy loads no version", got="specific without versions", expected="at least one version"
        )


def preferred_problems(sizes: list[int], top: int, where: str) -> Iterator[Problem]:
    """Preferred batch sizes lie in 1 … max_batch_size."""
    for size in sizes:
        if not 1 <= size <= max(top, 1):
            yield Problem(
                f"{where} must be positive and at most max_batch_size",
                got=str(size),
                expected=f"1 to {top}" if top > 0 else "max_batch_size 1 or more",
                hint="leave preferred sizes out unless measured to help",
            )


def _dynamic_problems(config: ModelConfig) -> Iterator[Problem]:
    batching, top = config.dynamic_batching, config.max_batch_size
    levels = batching.priority_levels
    yield from preferred_problems(list(batching.preferred_batch_size), top, "preferred_batch_size")
    if levels and not 1 <= batching.default_priority_level <= levels:
        yield Problem(
            "default_priority_level is no level",
            got=str(batching.default_priority_level),
            expected=f"1 (first) to {levels}",
        )
    for level in batching.priority_queue_policy:
        if not levels or not 1 <= level <= levels:
            yield Problem(
                f"priority_queue_policy {level} is for no level",
                got=f"priority_levels {levels}",
                expected=f"1 to {levels}" if levels else "priority_levels 1 or more (without, Triton ignores it)",
            )
    if batching.preserve_ordering and levels > 1:
        yield Problem("preserve_ordering needs priority_levels <= 1", got=str(levels), hint="drop one of the two")
    for name, policy in _policies(batching):
        delays = policy.timeout_action == pb().ModelQueuePolicy.DELAY and policy.default_timeout_microseconds > 0
        if delays and batching.preserve_ordering:
            yield Problem(f"{name} cannot delay requests", got="DELAY with preserve_ordering", expected="REJECT")
        if policy.allow_timeout_override and not policy.default_timeout_microseconds:
            yield Problem(
                f"{name}.allow_timeout_override has no effect",
                got="default_timeout_microseconds 0",
                expected="a default timeout, which a request may shorten",
            )
        timeout, delay = policy.default_timeout_microseconds, batching.max_queue_delay_microseconds
        if 0 < timeout < delay:
            yield Problem(
                f"{name} lets requests expire before a batch forms",
                got=f"default_timeout_microseconds {timeout}, max_queue_delay_microseconds {delay}",
                expected="a timeout above the delay",
                hint="give both with their unit, like 500ms",
            )


def _policies(batching: Any) -> Iterator[tuple[str, Any]]:
    if batching.HasField("default_queue_policy"):
        yield "default_queue_policy", batching.default_queue_policy
    for level, policy in batching.priority_queue_policy.items():
        yield f"priority_queue_policy {level}", policy


def _sequence_problems(config: ModelConfig) -> Iterator[Problem]:
    batching = config.sequence_batching
    names = Counter(entry.name for entry in batching.control_input)
    for name, count in names.items():
        if not name:
            yield Problem("a sequence control has no name", expected="the name of the model's input that takes it")
        elif count > 1:
            yield Problem(
                f"control input `{name}` stands twice", got=f"{count} entries", expected="one, with its controls"
            )
    controls = [(entry.name, control) for entry in batching.control_input for control in entry.control]
    kinds = Counter(control.kind for _, control in controls)
    kind_name = pb().ModelSequenceBatching.Control.Kind.Name
    for kind, count in kinds.items():
        if count > 1:
            yield Problem(f"{kind_name(kind)} is given to {count} tensors", expected="one tensor")
    for name, control in controls:
        yield from _control_problems(name, control, kind_name(control.kind))
    if batching.HasField("oldest"):
        sizes = list(batching.oldest.preferred_batch_size)
        yield from preferred_problems(sizes, config.max_batch_size, "oldest.preferred_batch_size")
    if batching.HasField("direct") and not 0 <= batching.direct.minimum_slot_utilization <= 1:
        got = f"{batching.direct.minimum_slot_utilization:g}"
        yield Problem("minimum_slot_utilization is a share of the slots", got=got, expected="0 to 1")


def _control_problems(name: str, control: Any, kind: str) -> Iterator[Problem]:
    given = [field for field in _FALSE_TRUE if getattr(control, field)]
    if control.kind == pb().ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID:
        data_type = pb().DataType.Name(control.data_type)
        if data_type not in _CORRID_TYPES:
            yield Problem(f"{kind} `{name}` cannot be {data_type}", expected=", ".join(_CORRID_TYPES))
        if given:
            yield Problem(
                f"{kind} `{name}` takes no false and true values", got=", ".join(given), expected="data_type only"
            )
        return
    if len(given) != 1:
        yield Problem(
            f"{kind} `{name}` needs its values for false and true",
            got=", ".join(given) or "none",
            expected=f"one of {', '.join(_FALSE_TRUE)}, such as `int32_false_true: [0, 1]`",
        )
    for field in given:
        if len(getattr(control, field)) != 2:
            yield Problem(
                f"{kind} `{name}`: {field} has two values", got=str(len(getattr(control, field))), expected="2"
            )


def _instance_problems(config: ModelConfig) -> Iterator[Problem]:
    kind_name = pb().ModelInstanceGroup.Kind.Name
    for number, group in enumerate(config.instance_group):
        where = f"instance_group {group.name or number}"
        kind = kind_name(group.kind)
        if group.gpus and kind in ("KIND_CPU", "KIND_MODEL"):
            yield Problem(
                f"{kind} must not list gpus", where, str(list(group.gpus)), hint="remove gpus, or use KIND_GPU"
            )
        if any(gpu < 0 for gpu in group.gpus):
            yield Problem("a GPU has no negative number", where, str(list(group.gpus)))
        if group.count < 0:
            yield Problem("count is negative", where, str(group.count), "1 or more (0: Triton's default)")
        if group.profile and backend_of(config) not in ("tensorrt", ""):
            yield Problem("profile is for TensorRT plans only", where, f"backend {backend_of(config)}")
        for profile in group.profile:
            if not profile.isdecimal():
                yield Problem("profile is the number of a profile", where, f"`{profile}`", "0 or more")
        for resource in group.rate_limiter.resources:
            if not resource.name or resource.count < 1:
                got = f"`{resource.name}`, count {resource.count}"
                yield Problem("a rate limiter resource needs a name and a count", where, got, "1 or more")


def _cache_problems(config: ModelConfig) -> Iterator[Problem]:
    if not config.response_cache.enable:
        return
    if config.HasField("sequence_batching"):
        yield Problem("the response cache does not work with sequence batching", hint="switch one of the two off")
    if config.model_transaction_policy.decoupled:
        yield Problem("the response cache does not work with decoupled responses", hint="switch one of the two off")
