"""A ModelConfig from a signature, knobs and settings, refused with Triton's own rules. Layer: config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tooling.config import backends, onnxruntime_options, release_rules, rules, tensor_rules, warmup
from tooling.config.knobs import Knobs, apply, threads_key
from tooling.config.names import name_problem
from tooling.config.overlay import merge
from tooling.config.proto import ModelConfig, pb
from tooling.errors import Problem, UsageError
from tooling.releases import Release
from tooling.signature.spec import ModelSignature, TensorSpec

_NONE: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
_INT32_MAX = 2**31 - 1
_UINT64_MAX = 2**64 - 1


def build_config(
    signature: ModelSignature,
    name: str,
    knobs: Knobs,
    *,
    file: str = "",
    settings: Mapping[str, Mapping[str, Any]] = _NONE,
    folder: Path | None = None,
    release: Release | None = None,
) -> ModelConfig:
    """The config that serves this model with these knobs.

    `file` is the model file's name where it is not the backend's usual one. `settings` are any other fields under the
    schema's own names, by their origin for messages, put over the result in order (see `tooling.config.overlay`).
    `folder` is the model directory, for files that they name, `release` the Triton it is for. Raises UsageError with
    every rule that is broken at once: of the knobs, of Triton's core, of the backend, of the release.
    """
    found = [p for p in (name_problem(name), *knob_problems(knobs, signature.backend)) if p]
    if found:
        raise UsageError(problems=[*found, *_tensor_problems(signature, knobs.max_batch_size)])
    batching = knobs.max_batch_size > 0
    config = backends.begin(signature, name, file)
    for tensor in backends.listed_inputs(signature, batching=batching):
        _fill(config.input.add(optional=tensor.optional), tensor, batching)
    for tensor in signature.outputs:
        _fill(config.output.add(), tensor, batching)
    config = apply(knobs, config)
    for where, fields in settings.items():
        merge(config, fields, where)
    backends.finish(config, signature)
    tensor_rules.drop_fed_by_triton(config)
    found = [*_tensor_problems(signature, config.max_batch_size), *config_problems(config, signature, folder)]
    if release is not None:
        found += release_rules.problems(config, release)
    if (config.name, config.max_batch_size) != (name, knobs.max_batch_size):  # every shape follows from the latter
        found.append(
            Problem(
                "settings may not change the name or max_batch_size",
                got=f"`{config.name}`, {config.max_batch_size}",
                expected=f"`{name}`, {knobs.max_batch_size}",
            )
        )
    if found:
        raise UsageError(problems=found)
    return config


def config_problems(config: ModelConfig, signature: ModelSignature, folder: Path | None) -> Iterator[Problem]:
    """Every rule of Triton's core and of the backend that the config breaks; `folder` is the model directory."""
    yield from tensor_rules.problems(config, folder)
    yield from rules.problems(config)
    yield from warmup.problems(config, folder)
    yield from backends.problems(config, signature)
    if signature.backend == "onnxruntime":
        yield from onnxruntime_options.problems(config, signature)


def _fill(target: Any, tensor: TensorSpec, batching: bool) -> None:
    """Name, type and dims of one input or output.

    With batching Triton adds the first axis itself, and a tensor with no other axis is `dims: [1]` reshaped to nothing.
    A scalar without batching is `dims: [1]` as well, but an empty reshape is refused there.
    """
    target.name = tensor.name
    target.data_type = pb().DataType.Value(tensor.data_type)
    target.is_shape_tensor = tensor.shape_tensor
    dims = tensor.dims[1:] if batching else tensor.dims
    if tensor.shape_tensor:  # values, one for each axis; with batching Triton adds the first
        dims = (tensor.dims[0] - 1,) if batching else tensor.dims
    target.dims[:] = dims or [1]
    if batching and not dims:
        target.reshape.SetInParent()


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
    yield from rules.preferred_problems(list(knobs.preferred_batch_size), top, "preferred_batch_size")


def _out_of_range(what: str, value: int, low: int, high: int, hint: str | None = None) -> Iterator[Problem]:
    if not low <= value <= high:
        yield Problem(f"{what} is out of range", got=str(value), expected=f"{low} to {high}", hint=hint)


def _tensor_problems(signature: ModelSignature, max_batch_size: int) -> Iterator[Problem]:
    """What the file's own tensors and limits stand against."""
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
    if max_batch_size < 1:
        return
    for tensor in signature.unbatchable:
        yield Problem(
            f"max_batch_size {max_batch_size} needs a free first axis in every input and output; "
            f"`{tensor.name}` has none",
            where=where,
            got=f"shape {list(tensor.dims)}",
            expected="shape [-1, …]",
            hint="export the model with a dynamic batch axis, or use max_batch_size 0",
        )
    limit = signature.max_batch_size
    if limit is not None and max_batch_size > limit and not signature.profiles:  # profiles have a rule of their own
        yield Problem(
            f"max_batch_size {max_batch_size} is more than the model says of itself",
            where=where,
            got=f"{limit}",
            expected=f"at most {limit}",
            hint="call set_max_batch_size in auto_complete_config" if signature.backend == "python" else None,
        )
