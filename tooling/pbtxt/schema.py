"""What the text parser and printer need to know of a protobuf message type, looked up once. Layer: pbtxt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

Descriptor: TypeAlias = Any
"""A `google.protobuf.descriptor.Descriptor`; the runtime carries no types."""

Message: TypeAlias = Any
"""A protobuf message."""

# FieldDescriptor.CPPTYPE_* (a frozen part of protobuf's interface) by the kind names used here.
_KINDS = {
    1: "int32",
    2: "int64",
    3: "uint32",
    4: "uint64",
    5: "double",
    6: "float",
    7: "bool",
    8: "enum",
    9: "string",
    10: "message",
}
_DEFAULTS: Mapping[str, Any] = {"double": 0.0, "float": 0.0, "bool": False, "string": "", "message": None}
INTEGER_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field of a message type. `kind` is int32 … double, bool, enum, string or message."""

    name: str
    kind: str
    repeated: bool
    is_map: bool
    oneof: str | None
    tracked: bool
    """Whether a value equal to the default still counts as set (messages, oneof members, halves of a map entry)."""
    default: Any
    """The default of one value; a message has none."""
    message: Descriptor | None
    enum_numbers: Mapping[str, int]
    enum_names: Mapping[int, str]


@cache
def fields_of(descriptor: Descriptor) -> Mapping[str, Field]:
    """The fields of a message type by name, in the order of the .proto file."""
    return MappingProxyType({field.name: _field(field, descriptor) for field in descriptor.fields})


def enum_name(field: Field, text: str) -> str | None:
    """The enum value that is meant, in any case and with or without its prefix: `gpu` is KIND_GPU."""
    upper = text.upper()
    return next((name for name in field.enum_numbers if name == upper or name.endswith(f"_{upper}")), None)


def new_message(descriptor: Descriptor) -> Message:
    """An empty message of a type; for a map field's type an entry with `key` and `value`."""
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor)()


def _field(field: Any, owner: Descriptor) -> Field:
    kind = _KINDS[field.cpp_type]
    enum = field.enum_type
    message = field.message_type
    in_map_entry = owner.GetOptions().map_entry
    return Field(
        name=field.name,
        kind=kind,
        repeated=_is_repeated(field),
        is_map=message is not None and bool(message.GetOptions().map_entry),
        oneof=field.containing_oneof.name if field.containing_oneof else None,
        tracked=bool(message or field.containing_oneof or in_map_entry),
        default=_DEFAULTS.get(kind, 0),  # proto3 has no others
        message=message,
        enum_numbers={value.name: value.number for value in enum.values} if enum else {},
        enum_names={value.number: value.name for value in reversed(enum.values)} if enum else {},
    )


def _is_repeated(field: Any) -> bool:
    """`is_repeated` came with protobuf 6.31; `label` is deprecated since then."""
    known = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if known is None else known)
