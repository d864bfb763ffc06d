"""An ONNX file without its weights, cut from the protobuf bytes on disk. Layer: signature."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tooling.errors import UsageError

_GRAPH: Final = 7  # ModelProto.graph
_INITIALIZER: Final = 5  # GraphProto.initializer
# TensorProto: float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data
_TENSOR_DATA: Final = frozenset({4, 5, 6, 7, 9, 10, 11})
_KEEP_BYTES: Final = 4096  # smaller tensors stay whole: shapes are computed from them (the target of a Reshape)
_FIXED_WIDTH: Final = {1: 8, 5: 4}
_MOST_FIELDS: Final = 1_000_000  # of one message; a graph has one for each node, and junk as many as it has bytes


class _Broken(ValueError):
    """The bytes are not protobuf, or end too early."""


def skeleton(path: Path) -> bytes:
    """The model of an ONNX file with the data of its large initializers left out.

    The file is mapped and only its structure is touched, so neither time nor memory grows with the weights.
    Raises UsageError for a file that is missing, empty, truncated or no protobuf at all.
    """
    try:
        if path.exists() and not path.is_file():
            raise unusable(path, "a directory" if path.is_dir() else "a device or a pipe", hint="name a file")
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise unusable(path, "the file is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                if data[:20].startswith(b"version https://git-"):
                    raise unusable(path, "the file is a Git LFS pointer", hint="fetch the model: `git lfs pull`")
                return _pruned(data, 0, len(data), (_GRAPH, _INITIALIZER))
    except _Broken as error:
        raise unusable(path, str(error)) from error
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror, expected="an ONNX file") from error


def unusable(path: Path, got: str, hint: str = "export or copy the model again") -> UsageError:
    """The error for a file that is no whole ONNX model; `got` says what it is instead."""
    return UsageError("not a whole ONNX file", where=path, got=got, expected="a serialised ONNX model", hint=hint)


def _pruned(data: mmap.mmap, start: int, end: int, inside: tuple[int, ...]) -> bytes:
    """The message at [start, end) where the fields on the path `inside` lose their tensor data."""
    parts: list[bytes] = []
    for number, first, value, last in _fields(data, start, end):
        if inside and number == inside[0] and (len(inside) > 1 or last - value > _KEEP_BYTES):
            content = _pruned(data, value, last, inside[1:])
            parts += [_varint(number << 3 | 2), _varint(len(content)), content]
        elif inside or number not in _TENSOR_DATA:
            parts.append(data[first:last])
    return b"".join(parts)


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Each field of the message at [start, end): number, its first byte, the first byte of its value, its end."""
    position = start
    for _ in range(_MOST_FIELDS):
        if position >= end:
            return
        first = position
        tag, position = _read_varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, (_, last) = position, _read_varint(data, position, end)
        elif wire == 2:
            length, value = _read_varint(data, position, end)
            last = value + length
        elif wire in _FIXED_WIDTH:
            value, last = position, position + _FIXED_WIDTH[wire]
        else:
            raise _Broken(f"byte {first} cannot start a protobuf field")
        if number == 0:
            raise _Broken(f"byte {first} cannot start a protobuf field")
        if last > end:
            raise _Broken(f"the data ends {last - end} bytes too early")
        yield number, first, value, last
        position = last
    raise _Broken(f"more than {_MOST_FIELDS} fields in one message")


def _read_varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    """A protobuf varint (7 bits a byte, lowest first, at most 10 bytes) and the position behind it."""
    result = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise _Broken("the data ends inside a number")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
    raise _Broken(f"byte {position} cannot be part of a protobuf number")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
