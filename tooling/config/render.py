"""The text of a ModelConfig: rendered with comments, parsed back, stamped so that hand edits show. Layer: config."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from tooling.config.proto import ModelConfig, pb
from tooling.config.templates import environment
from tooling.pbtxt.message import load
from tooling.pbtxt.printer import Style, field_lines
from tooling.pbtxt.schema import fields_of

_STAMP: Final = re.compile(r"# (Generated|Measured|Exported) by tritune, stamp ([0-9a-f]{12})\b.*\n")
STYLE: Final = Style(explicit=("ModelConfig.max_batch_size",))
_MODEL: Final = ("name", "platform", "backend", "default_model_filename", "max_batch_size", "input", "output")
_TENSORS: Final = ("batch_input", "batch_output")
_SCHEDULERS: Final = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
_RUNNING: Final = ("instance_group", "optimization", "parameters", "model_transaction_policy", "response_cache")
_ORDERED: Final = (*_MODEL, *_TENSORS, *_SCHEDULERS, *_RUNNING, "model_warmup")


def render(config: ModelConfig, *, evidence: Sequence[str] = (), exported: bool = False) -> str:
    """The pbtxt of `config`; `evidence` stands as comments at the top and says where its values come from.
    An `exported` one belongs to more than its model file: only the export that wrote it can write it anew.

    The first line carries a stamp over the rest (see `origin`). The text is parsed back and compared.
    """
    known = {name: _field(config, name) for name in _ORDERED}
    others = [field.name for field, _ in config.ListFields() if field.name not in _ORDERED]
    template = environment().get_template("config.pbtxt.j2")
    body = template.render(
        evidence=[_printable(line) for entry in evidence for line in entry.splitlines()],
        config=config,
        text=known,
        free_axes=any(-1 in tensor.dims for tensor in config.input if not tensor.allow_ragged_batch),
        rest="".join(_field(config, name) for name in others),
    )
    body = f"{body.rstrip()}\n"
    word = "Measured" if evidence else "Exported" if exported else "Generated"
    text = f"# {word} by tritune, stamp {_digest(body)} (gen-config overwrites no edited file without --force).\n{body}"
    if _bytes(parse(text, "rendered text")) != _bytes(config):
        raise AssertionError(f"the rendered text is not the config it was made from:\n{text}")
    return text


def _printable(line: str) -> str:
    """A line for a comment: control characters, which Triton's parser refuses there too, and the like are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _bytes(config: ModelConfig) -> bytes:
    return bytes(config.SerializeToString(deterministic=True))


def origin(text: str) -> str | None:
    """`generated`, `measured` (with evidence) or `exported` for a text as `render` wrote it, None for any other."""
    match = _STAMP.match(text)
    if match is None or match[2] != _digest(text[match.end() :].replace("\r\n", "\n")):
        return None
    return match[1].lower()


def parse(text: str, where: str) -> ModelConfig:
    """The message that a pbtxt stands for, by the rules of Triton's own parser.

    Raises UsageError with everything that Triton would not read, each placed `WHERE:LINE:COLUMN`.
    """
    return load(text.encode("utf-8", "surrogateescape"), pb().ModelConfig(), where)


def _field(config: ModelConfig, name: str) -> str:
    """One field of the message as text, "" when unset; `max_batch_size` always, because 0 is a choice here."""
    return "".join(f"{line}\n" for line in field_lines(config, fields_of(config.DESCRIPTOR)[name], STYLE))


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest()[:12]
