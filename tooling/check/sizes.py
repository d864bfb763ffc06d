"""Sizes of tensors on the wire. Layer: check."""

from __future__ import annotations

from typing import Final

from tooling.config.proto import pb

_BYTES: Final = {
    "TYPE_BOOL": 1,
    "TYPE_UINT8": 1,
    "TYPE_UINT16": 2,
    "TYPE_UINT32": 4,
    "TYPE_UINT64": 8,
    "TYPE_INT8": 1,
    "TYPE_INT16": 2,
    "TYPE_INT32": 4,
    "TYPE_INT64": 8,
    "TYPE_FP16": 2,
    "TYPE_FP32": 4,
    "TYPE_FP64": 8,
    "TYPE_BF16": 2,
}


def element_bytes(data_type: int) -> int:
    """Bytes of one element; 0 for strings, whose elements have no fixed size, and for numbers that are no type."""
    return _BYTES.get(type_name(data_type), 0)


def type_name(data_type: int) -> str:
    """`TYPE_INT64` of a number in a message, the number itself when it is no type."""
    known = pb().DataType
    return str(known.Name(data_type)) if data_type in known.values() else str(data_type)


def protocol_name(data_type: int) -> str:
    """The name of a type in requests: `INT64`, and BYTES for strings."""
    name = type_name(data_type).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name
