"""The few settings people tune, as one frozen value that is read from and applied to a ModelConfig. Layer: config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tooling.config.proto import ModelConfig, backend_of, enum_text, pb
from tooling.errors import UsageError, suggest
from tooling.units import format_duration_us

KINDS = ("auto", "cpu", "gpu", "model")
THREADS_KEY = "intra_op_thread_count"
_THREADS_KEYS = {
    "onnxruntime": THREADS_KEY,
    "": THREADS_KEY,  # a config that leaves the backend to Triton
    "openvino": "INFERENCE_NUM_THREADS",
    "pytorch": "INTRA_OP_THREAD_COUNT",
}


@dataclass(frozen=True, slots=True)
class Knobs:
    """Batching, instances and threads of one model; None means that the choice is left to Triton.

    `apply(read(config), config) == config` holds for every config with at most one instance group.
    """

    max_batch_size: int = 8
    dynamic_batching: bool = True
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    instance_count: int | None = None
    instance_kind: str = "auto"
    intra_op_threads: int | None = None


def apply(knobs: Knobs, config: ModelConfig) -> ModelConfig:
    """A copy of `config` with these knobs; every other field (queue policies, GPU lists, parameters) stays as it is.

    Raises UsageError where the config holds what knobs cannot express (see `read`), or asks for dynamic batching of a
    model that has another scheduler.
    """
    result = pb().ModelConfig()
    result.CopyFrom(config)
    current = read(config)
    result.max_batch_size = knobs.max_batch_size
    _apply_batching(knobs, result)
    _apply_instances(knobs, result)
    _apply_threads(knobs, current, result)
    return result


def threads_key(backend: str) -> str | None:
    """The parameter that sets an instance's threads; None for a backend that has none."""
    return _THREADS_KEYS.get(backend)


def _apply_threads(knobs: Knobs, current: Knobs, result: ModelConfig) -> None:
    key = threads_key(backend_of(result))
    if knobs.intra_op_threads == current.intra_op_threads:
        return
    if key is None:
        raise UsageError(
            "the backend has no setting for threads", got=f"`{backend_of(result)}`", hint="leave threads out"
        )
    if knobs.intra_op_threads is None:
        del result.parameters[key]
    else:
        result.parameters[key].string_value = str(knobs.intra_op_threads)


def _apply_batching(knobs: Knobs, result: ModelConfig) -> None:
    scheduler = result.WhichOneof("scheduling_choice")
    if not knobs.dynamic_batching:
        if scheduler == "dynamic_batching":
            result.ClearField("dynamic_batching")
        return
    if scheduler not in (None, "dynamic_batching"):
        raise UsageError(
            "dynamic batching cannot be added to a model that has another scheduler",
            where=result.name or None,
            got=f"`{scheduler}`",
            expected="none or `dynamic_batching`",
            hint=f"remove `{scheduler}` from the config first, or leave dynamic batching off",
        )
    batching = result.dynamic_batching
    batching.SetInParent()
    batching.preferred_batch_size[:] = knobs.preferred_batch_size
    batching.max_queue_delay_microseconds = knobs.max_queue_delay_us


def _apply_instances(knobs: Knobs, result: ModelConfig) -> None:
    if (knobs.instance_count, knobs.instance_kind) == _read_instances(result):
        return
    group = result.instance_group[0] if result.instance_group else result.instance_group.add()
    group.count = knobs.instance_count or 0
    group.kind = pb().ModelInstanceGroup.Kind.Value(f"KIND_{knobs.instance_kind.upper()}")
    if group == pb().ModelInstanceGroup():
        del result.instance_group[0]


def _read_instances(config: ModelConfig) -> tuple[int | None, str]:
    if not config.instance_group:
        return None, "auto"
    group = config.instance_group[0]
    return group.count or None, enum_text(pb().ModelInstanceGroup.Kind, group.kind).removeprefix("KIND_").lower()


def read(config: ModelConfig) -> Knobs:
    """The knobs that `config` is set to.

    Raises UsageError where knobs cannot say it: several instance groups, or a thread count that is not a whole number.
    """
    if len(config.instance_group) > 1:
        raise UsageError(
            "a config with several instance groups cannot be tuned as one",
            where=config.name or None,
            got=f"{len(config.instance_group)} instance groups",
            expected="at most one",
            hint="keep one `instance_group` in the config",
        )
    count, kind = _read_instances(config)
    batching = config.dynamic_batching
    return Knobs(
        max_batch_size=config.max_batch_size,
        dynamic_batching=config.HasField("dynamic_batching"),
        preferred_batch_size=tuple(batching.preferred_batch_size),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        instance_count=count,
        instance_kind=kind,
        intra_op_threads=_read_threads(config),
    )


def _read_threads(config: ModelConfig) -> int | None:
    key = threads_key(backend_of(config))
    if key is None or key not in config.parameters:
        return None
    text = config.parameters[key].string_value
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise UsageError(
            f"parameter `{key}` is not a number",
            where=config.name or None,
            got=f"`{text}`",
            expected="a whole number (0 or less: every core)",
        )
    return int(text)


def one_group(config: ModelConfig) -> ModelConfig:
    """`config` with its instance groups, where there are several, as one: the first, with the instances of all."""
    if len(config.instance_group) < 2:
        return config
    result = pb().ModelConfig()
    result.CopyFrom(config)
    count = sum(group.count or 1 for group in config.instance_group if not group.passive)
    del result.instance_group[1:]
    result.instance_group[0].count = max(count, 1)
    result.instance_group[0].passive = False
    return result


def describe(knobs: Knobs) -> str:
    """One short line for people: `2 instances × 1 thread, batch ≤ 8, delay 2ms`."""
    count = knobs.instance_count
    kind = "" if knobs.instance_kind == "auto" else f"{knobs.instance_kind.upper()} "
    text = f"default {kind}instances" if count is None else f"{count} {kind}instance{'s' * (count != 1)}"
    if knobs.intra_op_threads is not None:
        text += f" × {knobs.intra_op_threads} thread{'s' * (knobs.intra_op_threads != 1)}"
    if knobs.max_batch_size == 0:
        return f"{text}, no batching"
    text += f", batch ≤ {knobs.max_batch_size}"
    if not knobs.dynamic_batching:
        return f"{text}, requests not merged"
    if knobs.preferred_batch_size:
        text += f", preferred {' '.join(map(str, knobs.preferred_batch_size))}"
    return (
        f"{text}, delay {format_duration_us(knobs.max_queue_delay_us)}"
        if knobs.max_queue_delay_us
        else f"{text}, no delay"
    )


def to_dict(knobs: Knobs) -> dict[str, Any]:
    """The knobs as JSON values, under their own names."""
    return {**asdict(knobs), "preferred_batch_size": list(knobs.preferred_batch_size)}


def from_dict(data: Mapping[str, Any]) -> Knobs:
    """The knobs of `to_dict`. Raises UsageError for a name that is not a knob."""
    known = [field.name for field in fields(Knobs)]
    for name in data:
        if name not in known:
            raise UsageError("unknown knob", got=f"`{name}`", expected=", ".join(known), hint=suggest(name, known))
    values = dict(data)
    if "preferred_batch_size" in values:
        values["preferred_batch_size"] = tuple(values["preferred_batch_size"])
    return Knobs(**values)
