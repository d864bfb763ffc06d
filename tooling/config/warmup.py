"""Warmup samples with real values, as files beside the config; never Triton's random data. Layer: config.

Random numbers are no token ids: the embedding lookup fails on them, and a warmup that fails can end the server.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from tooling.config.proto import ModelConfig, pb
from tooling.errors import Problem, UsageError
from tooling.signature.roles import role
from tooling.signature.spec import TensorSpec
from tooling.signature.vocabulary import Vocabulary, read_vocabulary

FOLDER: Final = "warmup"
_SEED: Final = 0  # the same request, the same files
_STRUCT: Final = {
    "TYPE_BOOL": "?",
    "TYPE_INT8": "b",
    "TYPE_INT16": "h",
    "TYPE_INT32": "i",
    "TYPE_INT64": "q",
    "TYPE_UINT8": "B",
    "TYPE_UINT16": "H",
    "TYPE_UINT32": "I",
    "TYPE_UINT64": "Q",
    "TYPE_FP16": "e",
    "TYPE_FP32": "f",
    "TYPE_FP64": "d",
}
_SIZES: Final = {**{name: struct.calcsize(code) for name, code in _STRUCT.items()}, "TYPE_BF16": 2}


@dataclass(frozen=True, slots=True)
class Sample:
    """One warmup request: how many are merged, and the length of every free axis."""

    batch: int
    length: int


def parse_samples(texts: Iterable[str]) -> tuple[Sample, ...]:
    """The samples of `8x128` and the like. Raises UsageError for another form."""
    samples = []
    for text in texts:
        match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text)
        if match is None:
            raise UsageError(
                "not a warmup sample", where="--warmup", got=f"`{text}`", expected="BATCHxLENGTH, such as 8x128"
            )
        samples.append(Sample(int(match[1]), int(match[2])))
    return tuple(samples)


def add_samples(config: ModelConfig, samples: tuple[Sample, ...], tokenizer: Path | None) -> Mapping[str, bytes]:
    """Add the samples to `config`, in the place of those of their names; returns their files, by name in `warmup/`.

    Token ids come from the tokenizer in `tokenizer`, masks are ones, all else zeros. Raises UsageError for a batch or a
    length that the model does not take, and without a tokenizer where ids are needed.
    """
    files: dict[str, bytes] = {}
    limit = _longest(tokenizer)
    specs = [TensorSpec(t.name, pb().DataType.Name(t.data_type), tuple(t.dims)) for t in config.input if not t.optional]
    needs_ids = any(_role(spec, config) == "ids" for spec in specs)
    if samples and needs_ids and tokenizer is None:
        raise UsageError(
            "warmup needs real token ids, and the model has no tokenizer",
            where="--warmup",
            expected="tokenizer/tokenizer.json in the model directory",
            hint="name the directory that holds it with --tokenizer",
        )
    vocabulary = read_vocabulary(tokenizer, config.name) if samples and needs_ids else None
    problems = [p for sample in samples for p in _sample_problems(config, sample, specs, limit)]
    if problems:
        raise UsageError(problems=problems)
    named = {f"{sample.batch}x{sample.length}": sample for sample in samples}
    kept = [warmup for warmup in config.model_warmup if warmup.name not in named]
    del config.model_warmup[:]
    config.model_warmup.extend(kept)
    for name, sample in named.items():
        warmup = config.model_warmup.add(name=name, batch_size=sample.batch)
        for spec in specs:
            shape = _shape(spec, sample, batching=config.max_batch_size > 0)
            tensor = warmup.inputs[spec.name]
            tensor.data_type = pb().DataType.Value(spec.data_type)
            tensor.dims[:] = shape
            content = _content(_role(spec, config), spec.data_type, shape, vocabulary)
            if content is None:
                tensor.zero_data = True
            else:
                tensor.input_data_file = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', spec.name)}-{'x'.join(map(str, shape))}.bin"
                files[tensor.input_data_file] = content
    return files


def _shape(spec: TensorSpec, sample: Sample, *, batching: bool) -> tuple[int, ...]:
    """The dims of a sample: free axes get the length; without batching a free first axis is one row."""
    first = 1 if not batching and len(spec.dims) > 1 and spec.dims[0] == -1 else sample.length
    return tuple((first if axis == 0 else sample.length) if dim == -1 else dim for axis, dim in enumerate(spec.dims))


def _role(spec: TensorSpec, config: ModelConfig) -> str:
    """The input's meaning; with batching the config leaves out the axis that the file has first."""
    full = (-1, *spec.dims) if config.max_batch_size > 0 else spec.dims
    return role(TensorSpec(spec.name, spec.data_type, full))


def _sample_problems(
    config: ModelConfig, sample: Sample, specs: list[TensorSpec], limit: int | None
) -> Iterator[Problem]:
    where, top = f"--warmup {sample.batch}x{sample.length}", config.max_batch_size
    if sample.batch > max(top, 1):
        yield Problem(
            "the batch is larger than the model takes, and a failing warmup can end the server",
            where,
            str(sample.batch),
            f"at most {max(top, 1)} (max_batch_size {top})",
        )
    if limit is not None and sample.length > limit and any(-1 in spec.dims for spec in specs):
        yield Problem(
            "the length is more than the model has positions for", where, str(sample.length), f"usable length {limit}"
        )


def _longest(tokenizer: Path | None) -> int | None:
    """Tokens a text may have, by the model's `config.json`; RoBERTa and its kin count positions from the pad id on."""
    if tokenizer is None:
        return None
    try:
        config = json.loads((tokenizer / "config.json").read_bytes())
        positions = int(config["max_position_embeddings"])
        offset = int(config["pad_token_id"]) + 1 if "roberta" in str(config.get("model_type")) else 0
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return positions - offset


def _content(meaning: str, data_type: str, shape: tuple[int, ...], vocabulary: Vocabulary | None) -> bytes | None:
    """The raw bytes of a tensor; None where zeros will do."""
    if data_type == "TYPE_STRING":
        return (struct.pack("<I", 4) + b"warm") * prod(shape)
    if data_type not in _STRUCT or meaning in ("zeros", "values"):
        return None
    length = shape[-1] if shape else 1
    rows = prod(shape[:-1])
    row: list[int]
    if meaning == "ids" and vocabulary is not None:
        row = vocabulary.text(length, random.Random(_SEED))
    elif meaning == "positions":
        row = list(range(length))
    else:
        row = [1] * length
    return struct.pack(f"<{len(row)}{_STRUCT[data_type]}", *row) * rows


def problems(config: ModelConfig, folder: Path | None) -> Iterator[Problem]:
    """Every rule that a warmup sample breaks; `folder` is the model directory, None where it is not known."""
    inputs = {tensor.name: tensor for tensor in config.input}
    controls = {entry.name for entry in config.sequence_batching.control_input}
    for sample in config.model_warmup:
        where = f"model_warmup `{sample.name}`"
        if sample.batch_size > max(config.max_batch_size, 1):
            yield Problem(
                "the batch is larger than the model takes, and a failing warmup can end the server",
                where,
                f"batch_size {sample.batch_size}",
                f"at most {max(config.max_batch_size, 1)}",
            )
        if sample.batch_size == 0:
            yield Problem("the sample is skipped", where, "batch_size 0", "batch_size 1 or more")
        for name in inputs:
            if name not in sample.inputs and not inputs[name].optional:
                yield Problem(f"input `{name}` is missing", where, expected="every required input")
        for name, tensor in sample.inputs.items():
            if name not in inputs and name not in controls:
                yield Problem(f"`{name}` is no input of the model", where, expected=", ".join(inputs))
            yield from _data_problems(f"{where}: input `{name}`", tensor, inputs.get(name), folder)


def _data_problems(where: str, tensor: Any, declared: Any, folder: Path | None) -> Iterator[Problem]:
    kind = tensor.WhichOneof("input_data_type")
    type_name = pb().DataType.Name(tensor.data_type)
    if declared is not None and tensor.data_type != declared.data_type:
        yield Problem(
            "another data type than the model takes", where, type_name, pb().DataType.Name(declared.data_type)
        )
    if any(dim < 1 for dim in tensor.dims) or not tensor.dims:
        yield Problem("the shape is not whole", where, str(list(tensor.dims)), "a length of 1 or more for every axis")
    if kind is None:
        yield Problem("no data", where, expected="zero_data: true, or input_data_file")
    elif kind == "random_data" and "INT" in type_name:
        yield Problem(
            "random numbers are no token ids, and a failing warmup can end the server",
            where,
            f"random_data for {type_name}",
            "zero_data: true, or input_data_file with real ids",
            "make samples with --warmup BATCHxLENGTH",
        )
    elif kind == "input_data_file" and folder is not None:
        file = folder / FOLDER / tensor.input_data_file
        if not file.is_file():
            yield Problem("the file is missing", where, expected=str(file))
        elif type_name in _SIZES and file.stat().st_size < prod(tensor.dims) * _SIZES[type_name]:
            need = prod(tensor.dims) * _SIZES[type_name]
            yield Problem("the file is too short", where, f"{file.stat().st_size} bytes", f"{need} bytes of raw values")
