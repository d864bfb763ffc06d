"""The signature of a vLLM model: `model.json`, the engine's arguments. Layer: signature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature


def read_vllm(path: Path) -> ModelSignature:
    """A signature without tensors: the vLLM backend completes them itself, and refuses other ones.

    Raises UsageError for a file that is no JSON object, or that names no model.
    """
    arguments = _arguments(path)
    if not isinstance(arguments.get("model"), str) or not arguments["model"]:
        raise UsageError(
            "names no model",
            where=path,
            got=f"`{arguments.get('model')}`" if "model" in arguments else ", ".join(arguments) or "an empty object",
            expected='`"model"`: a Hugging Face id or a directory',
        )
    if str(arguments.get("enable_lora", "")).lower() == "true" and not path.with_name("multi_lora.json").is_file():
        raise UsageError(
            "LoRA is on, and the adapters are not listed",
            where=path,
            expected=f"multi_lora.json beside {path.name}: the adapters' names and paths",
        )
    return ModelSignature(path, "vllm", (), (), max_batch_size=0, decoupled=True)


def _arguments(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError("not a JSON file", where=path, got=str(error), expected="vLLM's engine arguments") from error
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror) from error
    if not isinstance(value, dict):
        raise UsageError("not a JSON object", where=path, got=type(value).__name__, expected="vLLM's engine arguments")
    return value
