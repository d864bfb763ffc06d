"""Requests to one batch and its outputs back to responses, without copies for a single request. Layer: backend data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from native_config import Refusal, config_dims

_BATCH_INPUT_TYPES = {"TYPE_INT32": np.int32, "TYPE_FP32": np.float32}


@dataclass(frozen=True)
class Batch:
    """What one execution runs on: the session's feed, and each request's inputs and batch size."""

    feed: dict
    inputs: list
    sizes: list


class BatchLayout:
    """How a configuration maps requests to the model's tensors."""

    def __init__(self, config, signature, instance_name):
        self._instance = instance_name
        self._max_batch_size = config["max_batch_size"]
        self._ragged = {entry["name"] for entry in config["input"] if entry.get("allow_ragged_batch")}
        known = signature.inputs | signature.initializers
        self._scalars = {name for name, tensor in known.items() if not tensor.dims}
        self._strings = {name for name, tensor in known.items() if tensor.element == "string"}
        self._batch_inputs = config.get("batch_input", [])
        self._scatter = {
            output["target_name"][0]: output["source_input"][0] for output in config.get("batch_output", [])
        }
        self._output_dims = {entry["name"]: config_dims(entry) for entry in config["output"]}

    def gather(self, inputs):
        """One feed for the session from the inputs of each request."""
        sizes = [self._size(arrays) for arrays in inputs]
        total = sum(sizes)
        if total != 1 and total > self._max_batch_size:
            raise Refusal(f"batch size {total} for '{self._instance}', max allowed is {self._max_batch_size}")
        feed = {name: self._joined(name, [arrays[name] for arrays in inputs]) for name in inputs[0]}
        for batch_input in self._batch_inputs:
            made = _batch_input(batch_input, [arrays[batch_input["source_input"][0]] for arrays in inputs])
            feed.update(dict.fromkeys(batch_input["target_name"], made))
        return Batch(feed, inputs, sizes)

    def _size(self, arrays):
        return next(iter(arrays.values())).shape[0] if self._max_batch_size > 0 else 1

    def _joined(self, name, arrays):
        if name in self._ragged:
            arrays = [array.reshape(-1) for array in arrays]
        joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        if name in self._scalars:
            joined = joined.reshape(())
        return joined.astype(np.bytes_) if name in self._strings else joined

    def split(self, name, array, batch):
        """Each request's part of an output, in order; a Refusal in place of a part that the output is too short for."""
        if name in self._scatter:
            return self._scattered(name, array, [arrays[self._scatter[name]].shape for arrays in batch.inputs])
        if not array.ndim:
            array = array.reshape(self._output_dims[name])
        if self._max_batch_size == 0 or (len(batch.sizes) == 1 and array.shape[0] == batch.sizes[0]):
            return [array]
        parts, start = [], 0
        for size in batch.sizes:
            end = start + size
            parts.append(array[start:end] if end <= array.shape[0] else _too_short(name, end, array.shape[0]))
            start = end
        return parts

    def _scattered(self, name, array, shapes):
        """Cut a concatenated output by the shapes of its source input: they stand in for the output's -1."""
        dims = [-1, *self._output_dims[name]] if self._max_batch_size > 0 else self._output_dims[name]
        flat, parts, start = array.reshape(-1), [], 0
        for shape in shapes:
            part = [shape[axis] if dim == -1 else dim for axis, dim in enumerate(dims)]
            end = start + math.prod(part)
            parts.append(flat[start:end].reshape(part) if end <= flat.size else _too_short(name, end, flat.size))
            start = end
        return parts


def _too_short(name, needed, got):
    return Refusal(
        f"failed to split the output tensor '{name}' in responses: expected batch size of atleast {needed} in model "
        f"output, got {got}"
    )


def _batch_input(batch_input, sources):
    """The tensor that describes the batch, by the kinds of `BatchInput` in model_config.proto."""
    kind, counts = batch_input["kind"], [array.size for array in sources]
    if kind == "BATCH_ELEMENT_COUNT":
        made = counts
    elif kind == "BATCH_ACCUMULATED_ELEMENT_COUNT":
        made = np.cumsum(counts)
    elif kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
        made = [0, *np.cumsum(counts)]
    elif kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
        made = np.zeros(max(counts))
    else:
        made = np.concatenate([np.tile(array.shape[1:], (array.shape[0], 1)) for array in sources])
        if kind == "BATCH_ITEM_SHAPE_FLATTEN":
            made = made.reshape(-1)
    return np.asarray(made, dtype=_BATCH_INPUT_TYPES[batch_input["data_type"]])
