"""The part of a vLLM model's engine arguments that is tuned, read and written. Layer: bottom of perf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tooling.errors import UsageError
from tooling.llm.model_facts import read_facts
from tooling.repository import alone_in, encode, read_text, write_atomic
from tooling.signature.vllm_model import parse_arguments

FILE = "model.json"
_NAMES = ("max_num_seqs", "max_num_batched_tokens")
_DEFAULTS = (256, 2048)


class Setting(NamedTuple):
    """What is tuned, under vLLM's own names."""

    max_num_seqs: int
    max_num_batched_tokens: int

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Setting:
        """That of engine arguments, the defaults of vLLM where they say nothing."""
        return cls(*(arguments.get(name) or default for name, default in zip(_NAMES, _DEFAULTS, strict=True)))

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


def settings_file(model_dir: Path) -> Path:
    """The file of the engine's arguments, of the newest version."""
    return version_of(model_dir) / FILE


def apply_setting(model_dir: Path, arguments: dict[str, Any]) -> Path:
    """Write these arguments among the model's; the others stay as they are."""
    path = settings_file(model_dir)
    with alone_in(path.parent):
        write_atomic(path, json.dumps({**read_arguments(model_dir), **arguments}, indent=2) + "\n")
    return path


def read_arguments(model_dir: Path) -> dict[str, Any]:
    """The engine arguments of the newest version. Raises UsageError where there are none."""
    path = settings_file(model_dir)
    arguments = parse_arguments(encode(read_text(path, hint="`tritune gen-config --llm` writes it")), path)
    for name in _NAMES:
        value = arguments.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(
                f"`{name}` is no count", where=path, got=json.dumps(value), expected="a whole number from 1"
            )
    return arguments


def version_of(model_dir: Path) -> Path:
    """The directory of the newest version. Raises UsageError where there is none."""
    versions = [entry for entry in model_dir.iterdir() if entry.name.isdecimal()] if model_dir.is_dir() else []
    if not versions:
        raise UsageError("no model directory with a version", where=model_dir, expected=f"NAME/1/{FILE} below it")
    return max(versions, key=lambda entry: int(entry.name))


def context_of(arguments: Mapping[str, Any]) -> int | None:
    """Tokens that a prompt and its answer may have together, as the arguments say it or the model's own config; None
    where neither does."""
    said, folder = arguments.get("max_model_len"), Path(str(arguments.get("model")))
    if isinstance(said, int) and said > 0:
        return said
    try:
        return read_facts(folder).context if folder.is_absolute() else None
    except UsageError:
        return None
