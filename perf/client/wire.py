"""Tensors of a request over gRPC: their types, their padding, their bytes on the wire. Layer: bottom of perf."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_RAW_INPUT = 7 << 3 | 2
"""Tag of `raw_input_contents` in a ModelInferRequest: its parts may follow the rest of the message one by one."""


class Tensor(NamedTuple):
    """An input or output: its type as Triton spells it and as numpy has it (None for texts; BF16 is float32 there), and
    its free axes behind the first, which is that of the rows."""

    datatype: str
    dtype: np.dtype[Any] | None
    free: tuple[int, ...]

    @classmethod
    def of(cls, datatype: str, shape: tuple[int, ...]) -> Tensor:
        from tritonclient.utils import triton_to_np_dtype

        dtype = None if datatype == "BYTES" else np.dtype(triton_to_np_dtype(datatype))
        return cls(datatype, dtype, tuple(axis for axis, size in enumerate(shape) if axis and size == -1))


def array_of(value: Any, tensor: Tensor, pad: Any) -> Array:
    """An array of the tensor's type; rows of unequal length are padded to the longest. Raises TypeError, ValueError or
    OverflowError for what is no array, or has values that the type does not hold."""
    dtype = tensor.dtype
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray and np.ma.is_masked(value):
            raise ValueError("masked values, which are none")
        return _texts(value) if dtype is None else _of_type(value, dtype)
    if isinstance(value, str | bytes):
        raise TypeError(f"one text, `{value!r:.40}`")
    rows = list(value)
    if all(isinstance(row, (list, tuple, np.ndarray)) for row in rows):
        longest = max(map(len, rows), default=0)
        fill = int(pad) if dtype is not None and float(pad).is_integer() else pad  # rows of whole numbers stay such
        rows = [[*row, *[fill] * (longest - len(row))] for row in rows]
    return _texts(np.asarray(rows, object)) if dtype is None else _of_type(np.asarray(rows), dtype)


def _texts(array: Array) -> Array:
    """The same words as objects; what is no text would else be sent as Python writes it."""
    words = np.ascontiguousarray(array, object)
    for word in words.flat:
        if not isinstance(word, str | bytes):
            raise TypeError(f"{word!r:.40}, which is no text")
    return words


def _of_type(array: Array, dtype: np.dtype[Any]) -> Array:
    """The same values as another type; numpy alone would cut 1.5 to 1, let 2**40 run over and make 1e300 infinite, all
    in silence."""
    if array.dtype == dtype or not array.size or np.can_cast(array.dtype, dtype):
        return np.ascontiguousarray(array, dtype)
    if dtype.kind in "iub" and array.dtype.kind in "iub":
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if array.min() < least or array.max() > most:
            raise OverflowError(f"numbers from {array.min()} to {array.max()}")
    elif not np.can_cast(array.dtype, dtype, "same_kind"):
        raise TypeError(f"values of type {array.dtype}")
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array, dtype)
    if dtype.kind == "f" and (over := np.isinf(cast) & ~np.isinf(array)).any():
        raise OverflowError(f"the number {array[over].flat[0]:g}")
    return cast


def grown(array: Array, axis: int, size: int, pad: Any) -> Array:
    """The array with `axis` as long as `size`."""
    length = array.shape[axis]
    if length == size:
        return array
    larger = np.full((*array.shape[:axis], size, *array.shape[axis + 1 :]), pad, array.dtype)
    larger[(slice(None),) * axis + (slice(length),)] = array
    return larger


def cut(array: Array, tensor: Tensor, edge: int, length: int) -> Array:
    """The array with every free axis that is as long as `edge` cut back to `length`."""
    for axis in tensor.free:
        if axis < array.ndim and array.shape[axis] == edge:
            array = array[(slice(None),) * axis + (slice(length),)]
    return array


def to_bytes(array: Array, tensor: Tensor) -> bytes:
    if tensor.datatype == "BF16":
        return to_bf16(array)
    if tensor.dtype is not None:
        return array.tobytes()
    words = (word if isinstance(word, bytes) else str(word).encode() for word in array.flat)
    return b"".join(len(word).to_bytes(4, "little") + word for word in words)


def from_bytes(raw: bytes, tensor: Tensor) -> Array:
    """The values of a tensor in one row."""
    if tensor.datatype == "BF16":
        return from_bf16(raw)
    if tensor.dtype is not None:
        return np.frombuffer(raw, tensor.dtype)
    from tritonclient.utils import deserialize_bytes_tensor

    return np.asarray(deserialize_bytes_tensor(raw))


def to_bf16(array: Array) -> bytes:
    """Numbers as the nearest bfloat16, the upper half of a float32; halfway it is the even one."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    nearest = bits + (0x7FFF + (bits >> 16 & 1)).astype(np.uint32)
    return bytes((np.where(np.isnan(array), bits | 0x400000, nearest) >> 16).astype("<u2").tobytes())


def from_bf16(raw: bytes) -> Array:
    """Values of bfloat16 as float32, in one row."""
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


@lru_cache(maxsize=1_000)
def request_head(model: str, shapes: tuple[Any, ...], queue: tuple[int, int]) -> bytes:
    """All of a ModelInferRequest but the contents of its tensors: the same for equal shapes, so kept. `queue` are the
    priority and the timeout there in microseconds, 0 for none."""
    from tritonclient.grpc import service_pb2 as pb

    priority, timeout_us = queue
    request = pb.ModelInferRequest(model_name=model)
    for name, datatype, shape in shapes:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    if priority:
        request.parameters["priority"].uint64_param = priority
    if timeout_us:
        request.parameters["timeout"].int64_param = timeout_us
    return bytes(request.SerializeToString())


@lru_cache(maxsize=1_000)
def content_head(size: int) -> bytes:
    """What stands before a content of this many bytes: its tag, and its size as a varint."""
    head = [_RAW_INPUT]
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size])


def tensors(told: Any) -> Mapping[str, Tensor]:
    """The tensors of one side of a model's metadata, by name."""
    return {tensor.name: Tensor.of(tensor.datatype, tuple(tensor.shape)) for tensor in told}
