"""Valid request payloads for perf_analyzer from a signature and a tokenizer. Layer: above workload."""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from perf.lengths import sentences
from perf.workload import Workload
from tooling.errors import UsageError
from tooling.repository import write_atomic
from tooling.signature.roles import role
from tooling.signature.spec import ModelSignature, TensorSpec
from tooling.signature.vocabulary import Vocabulary, read_vocabulary, sized_vocabulary

_MOST_STEPS = 20_000
_IMAGE_AXES = 2
"""Bytes along more axes than this are the colours of an image."""
_HALVES = ("TYPE_FP16", "TYPE_BF16")
_PYTHON_TYPE: dict[str, Callable[[Any], Any]] = {
    "TYPE_BOOL": bool,
    "TYPE_STRING": str,
    **dict.fromkeys(("TYPE_FP32", "TYPE_FP64", *_HALVES), float),
}


@dataclass(frozen=True, slots=True)
class InputData:
    """A written input file: its path, the number of requests in it, and their lengths (empty without a free axis)."""

    path: Path
    steps: int
    lengths: tuple[int, ...]


def write_input_data(
    path: Path,
    signature: ModelSignature,
    workload: Workload,
    tokenizer_dir: Path | None = None,
    *,
    batching: bool = True,
    vocab_size: int | None = None,
) -> InputData:
    """Write requests that the model accepts, as perf_analyzer's JSON; same arguments, same bytes.

    Free axes take the workload's lengths in order, token ids come from the tokenizer in `tokenizer_dir` (or from the
    inside of a vocabulary of `vocab_size`), masks are ones, type ids zeros, strings the workload's texts in order, or
    sentences. `batching` says whether the configuration has a `max_batch_size` above 0, so that shapes leave the first
    axis out and perf_analyzer stacks the rows; otherwise each request has the rows of the workload's `batch` itself.
    Optional inputs are left out. Their number is the workload's `steps`. Raises UsageError without a tokenizer that is
    needed, or without lengths.
    """
    inputs = signature.required_inputs
    free = any(-1 in _shape(spec, batching) for spec in inputs)
    if free and not workload.lengths:
        raise UsageError(
            "the model has a free axis, and the workload no lengths",
            where=signature.path,
            expected="at least one length",
            hint="take the lengths of real text: `perf.lengths.sentence_lengths`",
        )
    vocabulary = _vocabulary(signature, tokenizer_dir, vocab_size)
    rng = random.Random(workload.seed)
    texts = workload.texts if any(spec.data_type == "TYPE_STRING" for spec in inputs) else ()
    rows, steps, lengths = (1,) if batching else workload.batch, _steps(workload), workload.cycle if free else ()
    data = []
    for i in range(steps):
        length, size = lengths[i] if lengths else 0, rows[i % len(rows)]
        shapes = {spec: tuple(length if d == -1 else d for d in _shape(spec, batching, size)) for spec in inputs}
        step = {spec.name: _tensor(spec, shape, vocabulary, rng) for spec, shape in shapes.items()}
        if texts:
            step |= {s.name: _texts(shapes[s], texts, i) for s in inputs if s.data_type == "TYPE_STRING"}
        data.append(step)
    write_atomic(path, json.dumps({"data": data}, separators=(",", ":")) + "\n")
    return InputData(path, len(data), lengths)


def _steps(workload: Workload) -> int:
    """How many requests a file holds."""
    if workload.steps > _MOST_STEPS:
        raise UsageError(
            "too many different requests to be measured",
            where="workload",
            got=workload.steps,
            expected=f"at most {_MOST_STEPS}",
            hint="cut a stretch of a trace out, or measure its rate: `tritune workload from-log --arrivals poisson`",
        )
    return workload.steps


def _texts(shape: tuple[int, ...], texts: Sequence[str], step: int) -> dict[str, Any]:
    """The texts of a step, from the place in `texts` where the step before ended."""
    count = prod(shape)
    return {"content": [texts[(step * count + i) % len(texts)] for i in range(count)], "shape": list(shape)}


def batch_tensors(
    signature: ModelSignature,
    rows: int,
    length: int,
    tokenizer_dir: Path | None = None,
    *,
    batching: bool = True,
    vocab_size: int | None = None,
) -> dict[str, dict[str, Any]]:
    """One request of `rows` rows as {input: tensor}, with the contents that `write_input_data` writes.

    Free axes take `length`. Without `batching` there are no rows to stack. Raises UsageError as `write_input_data`.
    """
    vocabulary, rng = _vocabulary(signature, tokenizer_dir, vocab_size), random.Random(0)
    stack = (rows,) if batching else ()
    shapes = {spec: (*stack, *_shape(spec, batching)) for spec in signature.required_inputs}
    return {
        spec.name: _tensor(spec, tuple(length if d == -1 else d for d in shape), vocabulary, rng)
        for spec, shape in shapes.items()
    }


def _vocabulary(signature: ModelSignature, tokenizer_dir: Path | None, vocab_size: int | None) -> Vocabulary | None:
    if not any(role(spec) == "ids" for spec in signature.required_inputs):
        return None
    return sized_vocabulary(vocab_size) if vocab_size else read_vocabulary(tokenizer_dir, signature.path)


def _shape(spec: TensorSpec, batching: bool, rows: int = 1) -> tuple[int, ...]:
    """Dimensions of one request; a tensor that is only a batch axis has the shape [1] of its configuration."""
    if batching:
        return spec.dims[1:] or (1,)
    return (rows, *spec.dims[1:]) if spec.can_batch and len(spec.dims) > 1 else spec.dims or (1,)


def _tensor(
    spec: TensorSpec, shape: tuple[int, ...], vocabulary: Vocabulary | None, rng: random.Random
) -> dict[str, Any]:
    """One tensor in perf_analyzer's strict JSON: floats with a point, halves as raw bytes, flat content."""
    rows, length = prod(shape[:-1]), shape[-1]
    cast = _PYTHON_TYPE.get(spec.data_type, int)
    content = [cast(value) for _ in range(rows) for value in _row(spec, length, vocabulary, rng)]
    if spec.data_type in _HALVES:
        raw = b"".join(_half(value, spec.data_type) for value in content)
        return {"b64": base64.b64encode(raw).decode(), "shape": list(shape)}
    return {"content": content, "shape": list(shape)}


def _row(spec: TensorSpec, length: int, vocabulary: Vocabulary | None, rng: random.Random) -> Sequence[Any]:
    """Values along the last axis, before they take the tensor's type."""
    meaning = role(spec)
    if meaning == "ids" and vocabulary is not None:
        return vocabulary.text(length, rng)
    if meaning == "positions":
        return range(length)
    if meaning == "values" and spec.data_type == "TYPE_STRING":
        return rng.choices(sentences(), k=length)
    if meaning == "values":
        return [round(rng.uniform(-1, 1), 4) for _ in range(length)]
    if meaning == "zeros" and spec.data_type == "TYPE_UINT8" and len(spec.dims) > _IMAGE_AXES:
        return [rng.randrange(256) for _ in range(length)]
    return [1 if meaning == "ones" else 0] * length


def _half(value: float, data_type: str) -> bytes:
    """Two little-endian bytes: IEEE half precision, or the upper half of a single for bfloat16."""
    return struct.pack("<e", value) if data_type == "TYPE_FP16" else struct.pack("<f", value)[2:]
