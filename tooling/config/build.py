"""A ModelConfig from a signature, or from the one there was; it fits the model, or is refused. Layer: config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tooling.config import backends, onnxruntime_options, warmup
from tooling.config.changes import Changes, knob_problems
from tooling.config.fed import drop_fed
from tooling.config.knobs import Knobs, apply
from tooling.config.labels import name_labels
from tooling.config.names import name_problem
from tooling.config.proto import ModelConfig, pb
from tooling.errors import Problem, UsageError
from tooling.signature.spec import ModelSignature, TensorSpec

_NONE: Final = Changes()


class Unfit(UsageError):
    """A config that does not fit its model. `config` is that config, so that the rest of it can be judged as well."""

    def __init__(self, config: ModelConfig, problems: Iterable[Problem]) -> None:
        super().__init__(problems=problems)
        self.config = config


def build_config(
    signature: ModelSignature,
    name: str,
    knobs: Knobs,
    *,
    file: str = "",
    changes: Changes = _NONE,
    folder: Path | None = None,
) -> ModelConfig:
    """The config that serves this model with these knobs, and with the changes put over them.

    `file` is the model file's name where it is not the backend's usual one. `folder` is the model directory, for files
    that the config names. Raises UsageError for what cannot be asked of any model, Unfit with all that does not fit
    this one and its backend; what Triton refuses whatever the model is left to `tooling.check`.
    """
    asked = changes.max_batch_size  # every shape follows from it
    if asked is not None:
        knobs = replace(knobs, max_batch_size=asked, dynamic_batching=knobs.dynamic_batching and asked > 1)
    found = [p for p in (name_problem(name), *knob_problems(knobs, signature.backend)) if p]
    if found:
        raise UsageError(problems=[*found, *_tensor_problems(signature, knobs.max_batch_size)])
    batching = knobs.max_batch_size > 0
    config = backends.begin(signature, name, file)
    for tensor in backends.listed_inputs(signature, batching=batching):
        _fill(config.input.add(optional=tensor.optional), tensor, batching)
    for tensor in signature.outputs:
        _fill(config.output.add(), tensor, batching)
    if batching:
        name_labels(config, signature, folder)
    try:
        config = changes.apply(apply(knobs, config))
    except UsageError as error:
        raise UsageError(problems=[*error.problems, *_tensor_problems(signature, knobs.max_batch_size)]) from error
    backends.finish(config, signature)
    drop_fed(config)
    return _fitting(config, _problems(config, name, signature, folder))


def change_config(
    present: ModelConfig,
    name: str,
    signature: ModelSignature | None,
    changes: Changes,
    *,
    folder: Path | None = None,
) -> ModelConfig:
    """A copy of a config that a person wrote, with what is asked for changed and all else as it was.

    Where batching comes or goes, the shapes that follow from the model follow. `signature` is None where no model file
    says what the model takes. Raises UsageError and Unfit as `build_config` does.
    """
    config = changes.apply(present)
    drop_fed(config)
    found = [] if signature is None else list(_follow_batching(config, present, signature))
    return _fitting(config, [*found, *_problems(config, name, signature, folder)])


def _fitting(config: ModelConfig, problems: Iterable[Problem]) -> ModelConfig:
    found = list(problems)
    if found:
        raise Unfit(config, found)
    return config


def _problems(
    config: ModelConfig, name: str, signature: ModelSignature | None, folder: Path | None
) -> Iterator[Problem]:
    """What keeps the config from serving the model `name` with this signature."""
    if config.name not in ("", name):
        yield Problem(
            "a model must have the name of its directory", "name", f"`{config.name}`", f"`{name}`", "leave the name out"
        )
    yield from warmup.problems(config, folder)
    if signature is not None:
        yield from _tensor_problems(signature, config.max_batch_size)
        yield from backends.problems(config, signature)
        if signature.backend == "onnxruntime":
            yield from onnxruntime_options.problems(config, signature)


def _follow_batching(config: ModelConfig, present: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """Where batching came or went, give every tensor that has the model's own shape its new one."""
    batching = config.max_batch_size > 0
    if batching == (present.max_batch_size > 0):
        return
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        known = {spec.name: spec for spec in specs}
        before = {tensor.name: _shape(tensor) for tensor in getattr(present, kind)}
        for tensor in getattr(config, kind):
            spec = known.get(tensor.name)
            if spec is None or _shape(tensor) != before.get(tensor.name):  # no tensor of the model, or changed already
                continue
            usual = type(tensor)()
            _fill_shape(usual, spec, not batching)
            if _shape(tensor) == _shape(usual):
                _fill_shape(tensor, spec, batching)
            else:
                yield Problem(
                    f"the shape of `{tensor.name}` does not follow from the model's",
                    got=f"dims {list(tensor.dims)} with max_batch_size {present.max_batch_size}",
                    expected=f"dims {list(usual.dims)}, or its new dims in the same command",
                    hint=f"--set '{kind}[{tensor.name}].dims=[…]'",
                )


def _shape(tensor: Any) -> tuple[list[int], list[int] | None]:
    return list(tensor.dims), list(tensor.reshape.shape) if tensor.HasField("reshape") else None


def _fill(target: Any, tensor: TensorSpec, batching: bool) -> None:
    """Name, type and shape of one input or output."""
    target.name = tensor.name
    target.data_type = pb().DataType.Value(tensor.data_type)
    target.is_shape_tensor = tensor.shape_tensor
    target.is_non_linear_format_io = tensor.non_linear
    _fill_shape(target, tensor, batching)


def _fill_shape(target: Any, tensor: TensorSpec, batching: bool) -> None:
    """The dims of one input or output.

    With batching Triton adds the first axis itself, and a tensor with no other axis is `dims: [1]` reshaped to nothing.
    A scalar without batching is `dims: [1]` as well, but an empty reshape is refused there.
    """
    dims = tensor.dims[1:] if batching else tensor.dims
    if tensor.shape_tensor:  # values, one for each axis; with batching Triton adds the first
        dims = (tensor.dims[0] - 1,) if batching else tensor.dims
    target.dims[:] = dims or [1]
    target.ClearField("reshape")
    if batching and not dims:
        target.reshape.SetInParent()


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
