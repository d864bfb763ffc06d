"""A vLLM model: `model.json` with the engine's arguments, and its signature. Layer: signature."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tooling.errors import Problem, UsageError
from tooling.signature.spec import ModelSignature

_EXPECTED: Final = "a JSON object with vLLM's engine arguments"
_KINDS: Final = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


def read_vllm(path: Path) -> ModelSignature:
    """A signature without tensors: the vLLM backend completes them itself, and refuses other ones.

    Raises UsageError for a file that is no JSON object, or that names no model.
    """
    try:
        arguments = parse_arguments(path.read_bytes(), path)
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror, expected=_EXPECTED) from error
    if problem := unnamed(arguments, path):
        raise UsageError(problems=[problem])
    if str(arguments.get("enable_lora", "")).lower() == "true" and not path.with_name("multi_lora.json").is_file():
        raise UsageError(
            "LoRA is on, and the adapters are not listed",
            where=path,
            expected=f"multi_lora.json beside {path.name}: the adapters' names and paths",
        )
    return ModelSignature(path, "vllm", (), (), max_batch_size=0, decoupled=True)


def parse_arguments(content: bytes, path: Path) -> dict[str, Any]:
    """The engine's arguments, as the backend reads them from the content of `path`. Raises UsageError for another."""
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        got = str(error) if content.strip() else "an empty file"
        raise UsageError("not a JSON file", where=path, got=got, expected=_EXPECTED) from None
    if not isinstance(value, dict):
        raise UsageError(
            "not a JSON object", where=path, got=_KINDS.get(type(value), json.dumps(value)), expected=_EXPECTED
        )
    return value


def unnamed(arguments: Mapping[str, Any], path: Path) -> Problem | None:
    """What is wrong with arguments that name no model; None of others."""
    model = arguments.get("model")
    if isinstance(model, str) and model:
        return None
    got = f"`{json.dumps(model)[:60]}`" if "model" in arguments else ", ".join(arguments) or "an empty object"
    return Problem("names no model", str(path), got, '`"model"`: a Hugging Face id or the absolute path of a directory')
