"""Rules of Triton's core for inputs, outputs and the tensors that schedulers feed. Layer: config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from tooling.config.proto import ModelConfig, backend_of, pb
from tooling.errors import Problem, suggest


def drop_fed_by_triton(config: ModelConfig) -> None:
    """Take out of the lists what Triton itself feeds or keeps: controls, states, and batch inputs.

    To the backend each of these is one of the model's tensors already; listed twice it would be one too many.
    """
    states = config.sequence_batching.state
    fed = {entry.name for entry in config.sequence_batching.control_input} | {state.input_name for state in states}
    fed |= {target for batch in config.batch_input for target in batch.target_name}
    kept = {state.output_name for state in states}
    for tensors, names in ((config.input, fed), (config.output, kept)):
        for index in reversed([i for i, tensor in enumerate(tensors) if tensor.name in names]):
            del tensors[index]


def problems(config: ModelConfig, folder: Path | None) -> Iterator[Problem]:
    """Every rule of the core that a tensor, a reshape, labels or a batch input or output of `config` breaks.

    `folder` is the model directory, where labels stand; None where it is not known.
    """
    for what, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            yield from _tensor_problems(f"{what} `{tensor.name}`", tensor, config.max_batch_size > 0)
        for name, count in Counter(tensor.name for tensor in tensors).items():
            if count > 1:
                yield Problem(f"{what} `{name}` stands twice")
    for tensor in config.input:
        if tensor.format != pb().ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
            got = f"{len(tensor.dims)} dims"
            yield Problem(f"input `{tensor.name}` has an image format", got=got, expected="3 dims")
        if tensor.is_non_linear_format_io and backend_of(config) not in ("tensorrt", ""):
            yield Problem(f"input `{tensor.name}`: non-linear formats are for TensorRT only", got=backend_of(config))
    for tensor in config.output:
        if tensor.label_filename:
            yield from _label_problems(tensor, folder)
    yield from _batch_io_problems(config)


def _label_problems(tensor: Any, folder: Path | None) -> Iterator[Problem]:
    file = Path(tensor.label_filename)
    if file.is_absolute() or ".." in file.parts:
        yield Problem(f"labels of `{tensor.name}` lie outside of the model directory", got=f"`{file}`")
    elif folder is not None and not (folder / file).is_file():
        yield Problem(f"labels of `{tensor.name}` are missing", expected=f"{folder / file}: one label a line")


def _tensor_problems(what: str, tensor: Any, batching: bool) -> Iterator[Problem]:
    if not tensor.name:
        yield Problem(f"{what} has no name")
    if tensor.data_type == pb().TYPE_INVALID:
        yield Problem(f"{what} has no data_type")
    if not tensor.dims:
        yield Problem(f"{what} has no dims", hint="a tensor that is only a batch axis is `dims: [1]`, `reshape: {}`")
    shapes = [("dims", tensor.dims)]
    if tensor.HasField("reshape"):
        shapes.append(("reshape", tensor.reshape.shape))
        yield from _reshape_problems(what, list(tensor.dims), list(tensor.reshape.shape), batching)
    for name, shape in shapes:
        if any(dim == 0 or dim < -1 for dim in shape):
            yield Problem(
                f"{what} has unusable {name}", got=str(list(shape)), expected="1 or more, or -1 for any length"
            )


def _reshape_problems(what: str, dims: list[int], shape: list[int], batching: bool) -> Iterator[Problem]:
    """Element counts agree, piece by piece between the axes of any length."""
    got = f"dims {dims}, reshape {shape}"
    if not shape and not batching:
        yield Problem(
            f"{what} cannot be reshaped to a scalar", got=got, expected="max_batch_size 1 or more, or a shape"
        )
    elif dims.count(-1) != shape.count(-1):
        yield Problem(f"{what}: dims and reshape have another number of -1", got=got)
    elif _pieces(dims) != _pieces(shape):
        yield Problem(f"{what}: dims and reshape hold another number of elements", got=got)


def _pieces(shape: list[int]) -> list[int]:
    """Element counts of the runs between the axes of any length."""
    runs: list[list[int]] = [[]]
    for dim in shape:
        if dim == -1:
            runs.append([])
        else:
            runs[-1].append(dim)
    return [prod(run) for run in runs]


def _batch_io_problems(config: ModelConfig) -> Iterator[Problem]:
    inputs = [tensor.name for tensor in config.input]
    outputs = [tensor.name for tensor in config.output]
    for batch in config.batch_input:
        kind = pb().BatchInput.Kind.Name(batch.kind)
        yield from _sources(f"batch_input {kind}", list(batch.source_input), inputs)
        if batch.data_type not in (pb().TYPE_INT32, pb().TYPE_FP32):
            got = pb().DataType.Name(batch.data_type)
            yield Problem(
                f"batch_input {kind} has a type that Triton does not make", got=got, expected="TYPE_INT32, TYPE_FP32"
            )
        if not batch.target_name:
            yield Problem(
                f"batch_input {kind} feeds no tensor", expected="target_name: the model's input that takes it"
            )
    for batch in config.batch_output:
        kind = pb().BatchOutput.Kind.Name(batch.kind)
        yield from _sources(f"batch_output {kind}", list(batch.source_input), inputs)
        for name, count in Counter(batch.target_name).items():
            if name not in outputs:
                hint = suggest(name, outputs)
                yield Problem(f"batch_output {kind}: `{name}` is no output", expected=", ".join(outputs), hint=hint)
            if count > 1:
                yield Problem(f"batch_output {kind}: `{name}` stands twice")


def _sources(what: str, sources: list[str], inputs: list[str]) -> Iterator[Problem]:
    if len(sources) != 1:
        yield Problem(f"{what} has one source_input", got=f"{len(sources)}", expected="1")
    for name in sources:
        if name not in inputs:
            yield Problem(f"{what}: `{name}` is no input", expected=", ".join(inputs), hint=suggest(name, inputs))
