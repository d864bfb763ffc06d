"""A ModelConfig from a signature and knobs, refused with Triton's own rules where it could not load. Layer: config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tooling.config.knobs import Knobs, apply
from tooling.config.names import name_problem
from tooling.config.proto import ModelConfig, pb
from tooling.errors import Problem, UsageError
from tooling.signature.spec import ModelSignature, TensorSpec

_INT32_MAX = 2**31 - 1
_UINT64_MAX = 2**64 - 1


def build_config(signature: ModelSignature, name: str, knobs: Knobs) -> ModelConfig:
    """The config that serves this model with these knobs; `platform` and the file name are left for Triton to fill in.

    Raises UsageError with every rule that is broken at once.
    """
    problems = [p for p in (name_problem(name), *knob_problems(knobs), *_tensor_problems(signature, knobs)) if p]
    if problems:
        raise UsageError(problems=problems)
    config = pb().ModelConfig(name=name, backend=signature.backend)
    batching = knobs.max_batch_size > 0
    for tensor in signature.required_inputs if batching else signature.inputs:
        _fill(config.input.add(optional=tensor.optional), tensor, batching)
    for tensor in signature.outputs:
        _fill(config.output.add(), tensor, batching)
    return apply(knobs, config)


def _fill(target: Any, tensor: TensorSpec, batching: bool) -> None:
    """Name, type and dims of one input or output.

    With batching Triton adds the first axis itself, and a tensor with no other axis is `dims: [1]` reshaped to nothing.
    A scalar without batching is `dims: [1]` as well, but an empty reshape is refused there.
    """
    target.name = tensor.name
    target.data_type = pb().DataType.Value(tensor.data_type)
    dims = tensor.dims[1:] if batching else tensor.dims
    target.dims[:] = dims or [1]
    if batching and not dims:
        target.reshape.SetInParent()


def knob_problems(knobs: Knobs) -> Iterator[Problem]:
    """Every knob that Triton would refuse or could not use, whatever the model."""
    top = knobs.max_batch_size
    yield from _out_of_range("max_batch_size", top, 0, _INT32_MAX, hint="use 0 for a model that cannot batch")
    if knobs.instance_count is not None:
        yield from _out_of_range(
            "instances", knobs.instance_count, 1, _INT32_MAX, hint="leave it out for Triton's default"
        )
    if knobs.intra_op_threads is not None:
        yield from _out_of_range("threads", knobs.intra_op_threads, 0, _INT32_MAX, hint="0 takes every core")
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
                    hint=f"leave {field} out, or let the model batch",
                )
        return
    if top < 1:
        yield Problem(
            "dynamic batching needs batches",
            got=f"max_batch_size {top}",
            expected="max_batch_size 1 or more (with 0 Triton runs each request alone)",
            hint="switch dynamic batching off, or give a max_batch_size",
        )
    for size in knobs.preferred_batch_size:
        if not 1 <= size <= max(top, 1):
            yield Problem(
                "preferred_batch_size must be positive and at most max_batch_size",
                got=str(size),
                expected=f"1 to {top}" if top > 0 else "max_batch_size 1 or more",
                hint="leave preferred sizes out unless measured to help",
            )


def _out_of_range(what: str, value: int, low: int, high: int, hint: str | None = None) -> Iterator[Problem]:
    if not low <= value <= high:
        yield Problem(f"{what} is out of range", got=str(value), expected=f"{low} to {high}", hint=hint)


def _tensor_problems(signature: ModelSignature, knobs: Knobs) -> Iterator[Problem]:
    where = str(signature.path)
    for tensor in (*signature.inputs, *signature.outputs):
        if 0 in tensor.dims:
            yield Problem(
                f"tensor `{tensor.name}` has an axis of length 0",
                where=where,
                got=f"shape {list(tensor.dims)}",
                expected="axes of 1 or more, or -1 for any length",
                hint="export the model with an axis of any length there",
            )
    if knobs.max_batch_size > 0:
        for tensor in signature.unbatchable:
            yield Problem(
                f"max_batch_size {knobs.max_batch_size} needs a free first axis in every input and output; "
                f"`{tensor.name}` has none",
                where=where,
                got=f"shape {list(tensor.dims)}",
                expected="shape [-1, …]",
                hint="export the model with a dynamic batch axis, or use max_batch_size 0",
            )
