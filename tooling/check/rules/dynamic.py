"""Rules about dynamic batching: preferred sizes, priorities, order, queue policies. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tooling.check.finding import Evidence, Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, note, poll
from tooling.config.proto import pb
from tooling.units import format_duration_us

_SOURCE: Final = "ValidateModelConfig (core)"
_FIELD: Final = "dynamic_batching"

PREFERRED_POSITIVE = poll(
    "preferred-size-not-positive",
    "A preferred batch size is 0 or negative.",
    "Preferred sizes are sizes of batches: 1 or more.",
    "max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 0 ] }",
    _SOURCE,
)
PREFERRED_ABOVE = poll(
    "preferred-size-above-max",
    "A preferred batch size is above max_batch_size.",
    "The check runs before a backend could fill in max_batch_size, so preferred sizes without max_batch_size always "
    "fail.",
    "max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 4, 16 ] }",
    _SOURCE,
)
DEFAULT_LEVEL = poll(
    "default-priority-level",
    "default_priority_level is none of the priority levels.",
    "With priority_levels N it must be written, from 1 (first) to N.",
    "max_batch_size: 8\ndynamic_batching { priority_levels: 2 }",
    _SOURCE,
)
POLICY_LEVEL = poll(
    "priority-policy-level",
    "A queue policy is for a level that does not exist.",
    "The keys of priority_queue_policy are levels, 1 to priority_levels.",
    "max_batch_size: 8\ndynamic_batching { priority_levels: 2 default_priority_level: 1 "
    "priority_queue_policy { key: 3 value { max_queue_size: 4 } } }",
    _SOURCE,
)
ORDER_LEVELS = poll(
    "preserve-ordering-with-priorities",
    "preserve_ordering allows one priority level.",
    "Answers cannot be in order of arrival when some requests overtake others.",
    "max_batch_size: 8\ndynamic_batching { preserve_ordering: true priority_levels: 2 default_priority_level: 1 }",
    _SOURCE,
)
ORDER_DELAY = poll(
    "preserve-ordering-with-delay",
    "preserve_ordering does not allow the timeout action DELAY.",
    "A delayed request would hold up the answers of all behind it. DELAY without a timeout is accepted: it never acts.",
    "max_batch_size: 8\ndynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: DELAY "
    "default_timeout_microseconds: 1000 } }",
    _SOURCE,
)
NO_BATCHES = advice(
    "dynamic-batching-without-batches",
    "dynamic_batching has no effect: the model runs each request alone.",
    "With max_batch_size 0 or 1 there is no batch to form; the server says nothing. Queue policies still act.",
    "max_batch_size: 1\ndynamic_batching { }",
    "DynamicBatchScheduler (core)",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
DELAY_WITHOUT_BATCHES = advice(
    "queue-delay-without-batches",
    "max_queue_delay_microseconds has no effect without batches.",
    "The delay lets a batch grow; with max_batch_size 0 or 1 no request waits for another.",
    "max_batch_size: 1\ndynamic_batching { max_queue_delay_microseconds: 100 }",
    "DynamicBatchScheduler (core)",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
PREFERRED_OVERSHOOT = advice(
    "preferred-size-below-max",
    "Batches of other sizes than the preferred ones will run.",
    "Preferred sizes are a hint. Whatever waits goes when the oldest request is late or the batch cannot grow, up to "
    "max_batch_size; with a delay, one request more than the preferred size is common.",
    "max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100 }",
    "DynamicBatchScheduler (core); triton-inference-server/server#8141",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
PREFERRED_SMALL = advice(
    "preferred-size-hurts",
    "A small preferred size closes batches early.",
    "While an instance is busy, a batch is closed as soon as it reaches any preferred size: requests that could have "
    "joined "
    "wait for the next one. Leave preferred sizes out unless a measurement, such as of a TensorRT plan with several "
    "profiles, shows that they help.",
    "max_batch_size: 8\ndynamic_batching { preferred_batch_size: [ 1, 8 ] }",
    "DynamicBatchScheduler (core)",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
QUEUE_POLICY_STALLS = advice(
    "queue-policy-stalls",
    "Queue policies and priorities make the batcher stall.",
    "Since 24.03, with any timeout, override, queue size or priority set, the batcher waits for an idle instance and "
    "can "
    "miss its signal; it then sleeps up to 500 ms. Measured on 2.51: 60 requests took 18.1 s in place of 1.3 s. "
    "Timeouts "
    "are checked late for the same reason.",
    "max_batch_size: 8\ndynamic_batching { default_queue_policy { max_queue_size: 16 } }",
    "DynamicBatchScheduler (core), since its pull request 333",
    evidence=Evidence.RUN,
    since="24.03",
    stage=Stage.POLL,
)
OVERRIDE_WITHOUT_TIMEOUT = advice(
    "timeout-override-without-timeout",
    "allow_timeout_override has no effect without a default timeout.",
    "A request may only shorten the default timeout; without one there is nothing to shorten.",
    "max_batch_size: 8\ndynamic_batching { default_queue_policy { allow_timeout_override: true } }",
    "PolicyQueue::Enqueue (core)",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
POLICIES_WITHOUT_LEVELS = advice(
    "priority-policies-without-levels",
    "priority_queue_policy is ignored: there are no priority levels.",
    "With priority_levels 0 there is one queue, with the default policy.",
    "max_batch_size: 8\ndynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 4 } } }",
    "PriorityQueue (core)",
    evidence=Evidence.RUN,
    stage=Stage.POLL,
)
TIMEOUT_BELOW_DELAY = advice(
    "timeout-below-delay",
    "Requests can expire before a batch forms.",
    "Both fields are microseconds: a timeout that is meant as milliseconds is a thousand times too short.",
    "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 5000 default_queue_policy { "
    "default_timeout_microseconds: 500 } }",
    "DynamicBatchScheduler (core)",
    stage=Stage.POLL,
)
ORDER_BROKEN = advice(
    "preserve-ordering-broken",
    "preserve_ordering does not keep the order in this release.",
    "From 25.09 to 26.07 the place of an answer is taken when it is ready, so answers leave in order of completion.",
    "max_batch_size: 8\ndynamic_batching { preserve_ordering: true }\n--- options\n--release 25.10",
    "DynamicBatchScheduler (core), its pull requests 520 and 523",
    since="25.09",
    until="26.07",
    stage=Stage.POLL,
)
DELAY_LONG = note(
    "queue-delay-above-second",
    "The queue delay is more than a second.",
    "max_queue_delay_microseconds is in microseconds.",
    "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 5000000 }",
    "model_config.proto",
    stage=Stage.POLL,
)
RULES = (
    *(PREFERRED_POSITIVE, PREFERRED_ABOVE, DEFAULT_LEVEL, POLICY_LEVEL, ORDER_LEVELS, ORDER_DELAY, NO_BATCHES),
    *(DELAY_WITHOUT_BATCHES, PREFERRED_OVERSHOOT, PREFERRED_SMALL, QUEUE_POLICY_STALLS, OVERRIDE_WITHOUT_TIMEOUT),
    *(POLICIES_WITHOUT_LEVELS, TIMEOUT_BELOW_DELAY, ORDER_BROKEN, DELAY_LONG),
)


def dynamic_batching(model: Model) -> Iterator[Finding]:
    """What the core refuses, in its order."""
    config = model.config
    if not config.HasField(_FIELD):
        return
    batching, name = config.dynamic_batching, config.name
    if model.written.dynamic_batching.preferred_batch_size:
        yield from preferred(model, (_FIELD,), list(batching.preferred_batch_size), "dynamic batching preferred size")
    levels = batching.priority_levels
    if levels:
        yield from _levels(model, batching, levels)
    if not batching.preserve_ordering:
        return
    if levels > 1:
        yield model.find(
            ORDER_LEVELS,
            f"preserve_ordering needs priority_levels <= 1, and there are {levels}",
            _FIELD,
            "preserve_ordering",
            says=f"Only one priority level is allowed when 'preserve_ordering' is true for {name}",
            hint="drop one of the two",
        )
    for path, policy in policies(batching):
        if policy.default_timeout_microseconds and policy.timeout_action == pb().ModelQueuePolicy.DELAY:
            yield model.find(
                ORDER_DELAY,
                f"{path[0]}: DELAY cannot be combined with preserve_ordering",
                _FIELD,
                *path,
                says=f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}",
                hint="use REJECT, or drop preserve_ordering",
            )


def preferred(model: Model, path: tuple[str, ...], sizes: list[int], what: str) -> Iterator[Finding]:
    """Preferred sizes of a batcher lie in 1 … max_batch_size; `what` is how the server names them."""
    top, name = model.config.max_batch_size, model.config.name
    for index, size in enumerate(sizes):
        where: tuple[str | int, ...] = (*path, "preferred_batch_size", index)
        if size <= 0:
            yield model.find(
                PREFERRED_POSITIVE,
                f"preferred_batch_size {size} is not positive",
                *where,
                says=f"{what} must be positive for {name}",
            )
        elif size > top:
            yield model.find(
                PREFERRED_ABOVE,
                f"preferred_batch_size {size} > max_batch_size {top}",
                *where,
                says=f"{what} must be <= max batch size for {name}",
                hint=f"drop {size}, or raise max_batch_size",
            )


def _levels(model: Model, batching: Any, levels: int) -> Iterator[Finding]:
    name = model.config.name
    if not 1 <= batching.default_priority_level <= levels:
        yield model.find(
            DEFAULT_LEVEL,
            f"default_priority_level {batching.default_priority_level} is not in 1 to {levels}",
            _FIELD,
            "default_priority_level",
            says=f"default priority level must be in range [1, {levels}] for {name}",
            hint=f"write a level from 1 (first) to {levels}",
        )
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            yield model.find(
                POLICY_LEVEL,
                f"priority_queue_policy {level} is not in 1 to {levels}",
                _FIELD,
                "priority_queue_policy",
                level,
                says=f"priority queue policy must have priority level in range [1, {levels}] for {name}",
            )


def policies(batching: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every queue policy that is written, with its path."""
    if batching.HasField("default_queue_policy"):
        yield ("default_queue_policy",), batching.default_queue_policy
    for level, policy in sorted(batching.priority_queue_policy.items()):
        yield ("priority_queue_policy", level), policy


def batching_advice(model: Model) -> Iterator[Finding]:
    """What loads and does not do what is written."""
    written = model.written
    if not written.HasField(_FIELD):
        return
    top, batching = model.completed.max_batch_size, written.dynamic_batching
    if top <= 1:
        yield from _no_batches(model, top)
    else:
        yield from _preferred_advice(model, top)
        if batching.max_queue_delay_microseconds > 1_000_000:
            delay = format_duration_us(batching.max_queue_delay_microseconds)
            yield model.find(DELAY_LONG, f"requests wait up to {delay}", _FIELD, "max_queue_delay_microseconds")
    yield from _policy_advice(model)
    if batching.preserve_ordering:
        yield model.find(
            ORDER_BROKEN,
            f"release {model.target.release.tag} answers in order of completion in spite of preserve_ordering",
            _FIELD,
            "preserve_ordering",
            hint="use 26.08 or later, or put the order into the requests",
        )


def _no_batches(model: Model, top: int) -> Iterator[Finding]:
    batching = model.written.dynamic_batching
    can = model.signature is not None and model.signature.can_batch
    if batching.max_queue_delay_microseconds:
        yield model.find(
            DELAY_WITHOUT_BATCHES,
            f"max_queue_delay_microseconds {batching.max_queue_delay_microseconds} has no effect while "
            f"max_batch_size is {top}",
            _FIELD,
            "max_queue_delay_microseconds",
            fix=(f"-{_FIELD}.max_queue_delay_microseconds",),
        )
    if not any(_acts(policy) for _, policy in policies(batching)) and not batching.priority_levels:
        yield model.find(
            NO_BATCHES,
            f"dynamic_batching has no effect while max_batch_size is {top}"
            + ("; this model is batchable" if can else ""),
            _FIELD,
            hint="write max_batch_size: 8 and dims without the batch axis" if can else "take dynamic_batching out",
        )


def _preferred_advice(model: Model, top: int) -> Iterator[Finding]:
    batching = model.written.dynamic_batching
    sizes = sorted(set(batching.preferred_batch_size))
    where = (_FIELD, "preferred_batch_size")
    if not sizes or sizes[-1] > top or sizes[0] < 1:
        return
    if sizes[-1] < top:
        yield model.find(
            PREFERRED_OVERSHOOT,
            f"batches other than {', '.join(map(str, sizes))} will occur, up to max_batch_size {top}",
            *where,
            hint=f"set max_batch_size to the largest size you want, {sizes[-1]}",
        )
    if sizes[0] < top and (len(sizes) > 1 or sizes == [1]):
        yield model.find(
            PREFERRED_SMALL,
            f"preferred_batch_size {sizes[0]} closes batches early",
            *where,
            hint="leave preferred sizes out unless measured to help",
        )


def _policy_advice(model: Model) -> Iterator[Finding]:
    batching = model.written.dynamic_batching
    stalling = [".".join(map(str, path)) for path, policy in policies(batching) if _acts(policy)]
    if batching.priority_levels:
        stalling.append("priority_levels")
    if stalling:
        yield model.find(
            QUEUE_POLICY_STALLS,
            f"{', '.join(stalling)}: since 24.03 the batcher can stall for 500 ms at a time",
            _FIELD,
            stalling[0].partition(".")[0],
            hint="leave queue policies and priorities out unless they are needed",
        )
    if batching.priority_queue_policy and not batching.priority_levels:
        yield model.find(
            POLICIES_WITHOUT_LEVELS,
            "priority_queue_policy is ignored while priority_levels is 0",
            _FIELD,
            "priority_queue_policy",
            fix=(f"-{_FIELD}.priority_queue_policy",),
        )
    delay = batching.max_queue_delay_microseconds
    for path, policy in policies(batching):
        timeout = policy.default_timeout_microseconds
        if policy.allow_timeout_override and not timeout:
            yield model.find(
                OVERRIDE_WITHOUT_TIMEOUT,
                f"{path[0]}: allow_timeout_override has no effect while default_timeout_microseconds is 0",
                _FIELD,
                *path,
                "allow_timeout_override",
            )
        if 0 < timeout < delay:
            yield model.find(
                TIMEOUT_BELOW_DELAY,
                f"queue timeout {timeout / 1000:g} ms is shorter than the batching delay {delay / 1000:g} ms: requests "
                "can expire before a batch forms",
                _FIELD,
                *path,
                "default_timeout_microseconds",
                hint=f"both are microseconds: 500 ms is {500_000}",
            )


def _acts(policy: Any) -> bool:
    """Whether a queue policy differs from none."""
    return bool(policy.default_timeout_microseconds or policy.allow_timeout_override or policy.max_queue_size)
