"""Triton's own protobuf classes, loaded without the client library around them. Layer: config."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from tooling.errors import MissingError

ModelConfig: TypeAlias = Any
"""A protobuf `inference.ModelConfig` message; the generated classes carry no types."""

_OF_PLATFORM: Final = {"onnxruntime_onnx": "onnxruntime", "tensorrt_plan": "tensorrt", "pytorch_libtorch": "pytorch"}


@cache
def pb() -> ModuleType:
    """The module `model_config_pb2` of tritonclient.

    Loaded by its file path: importing `tritonclient.grpc` pulls in grpc and numpy (160–335 ms against 46 ms).
    Raises MissingError when tritonclient is not installed.
    """
    package = importlib.util.find_spec("tritonclient")
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / "grpc" / "model_config_pb2.py"
        spec = importlib.util.spec_from_file_location("model_config_pb2", file)
        if file.is_file() and spec and spec.loader:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise MissingError(
        "the protobuf classes of Triton's model configuration are not installed",
        where="tritonclient.grpc.model_config_pb2",
        hint="reinstall tritune with its dependencies",
    )


def enum_text(enum: Any, number: int) -> str:
    """The name of an enum's value, or a number that is none: Triton's parser reads it all the same."""
    value = enum.DESCRIPTOR.values_by_number.get(number)
    return str(number) if value is None else str(value.name)


def nameless(message: ModelConfig, path: str = "") -> Iterator[tuple[str, int]]:
    """Path and number of every enum field whose number is that of no value: no backend knows what to do with it."""
    for field, value in message.ListFields():
        place = f"{path}{field.name}"
        if field.enum_type is not None:
            for number in value if field.is_repeated else [value]:
                if number not in field.enum_type.values_by_number:
                    yield place, number
        elif field.message_type is not None and not field.is_repeated:
            yield from nameless(value, f"{place}.")
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is not None:
                for key in sorted(value):
                    yield from nameless(value[key], f"{place}[{key}].")
        elif field.message_type is not None:
            for index, part in enumerate(value):
                yield from nameless(part, f"{place}[{index}].")


def backend_of(config: ModelConfig) -> str:
    """The backend that serves a config, which older ones name by its platform; "" where it is left to Triton."""
    return str(config.backend) or _OF_PLATFORM.get(config.platform, "")


def renamed(config: ModelConfig, name: str) -> ModelConfig:
    """A copy under another name."""
    copy = type(config)()
    copy.CopyFrom(config)
    copy.name = name
    return copy
