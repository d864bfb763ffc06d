"""The text of a ModelConfig: rendered with comments, parsed back, stamped so that hand edits show. Layer: config."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from tooling.config.proto import ModelConfig, pb
from tooling.errors import UsageError, suggest

if TYPE_CHECKING:
    from jinja2 import Template

_STAMP: Final = re.compile(r"# (Generated|Measured) by tritune, stamp ([0-9a-f]{12})\b.*\n")
_MODEL: Final = ("name", "platform", "backend", "max_batch_size", "input", "output")
_ORDERED: Final = (*_MODEL, "dynamic_batching", "instance_group", "parameters")


def render(config: ModelConfig, *, evidence: Sequence[str] = ()) -> str:
    """The pbtxt of `config`; `evidence` stands as comments at the top and says where its values come from.

    The first line carries a stamp over the rest (see `origin`). The text is parsed back and compared.
    """
    known = {name: _field(config, name) for name in _ORDERED}
    others = [field.name for field, _ in config.ListFields() if field.name not in _ORDERED]
    body = _template().render(
        evidence=[line for entry in evidence for line in entry.splitlines()],
        config=config,
        text=known,
        free_axes=any(-1 in tensor.dims for tensor in config.input if not tensor.allow_ragged_batch),
        rest="".join(_field(config, name) for name in others),
    )
    word = "Measured" if evidence else "Generated"
    text = f"# {word} by tritune, stamp {_digest(body)} (gen-config overwrites no edited file without --force).\n{body}"
    if _bytes(parse(text, "rendered text")) != _bytes(config):
        raise AssertionError(f"the rendered text is not the config it was made from:\n{text}")
    return text


def _bytes(config: ModelConfig) -> bytes:
    return bytes(config.SerializeToString(deterministic=True))


def origin(text: str) -> str | None:
    """`generated` or `measured` (with evidence) for a text as `render` wrote it, None for any other or edited text."""
    match = _STAMP.match(text)
    if match is None or match[2] != _digest(text[match.end() :]):
        return None
    return match[1].lower()


def parse(text: str, where: str) -> ModelConfig:
    """The message that a pbtxt stands for. Raises UsageError at the first thing Triton would not read."""
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, pb().ModelConfig())
    except text_format.ParseError as error:
        reason = re.sub(r"^\d+:\d+ : ", "", str(error)).rstrip(".")
        unknown = re.search(r'type "([\w.]+)" has no field named "(\w+)"', reason)
        known = _field_names(unknown[1]) if unknown else []
        line = error.GetLine()
        raise UsageError(
            "not a model configuration that Triton can read",
            where=where if line is None else f"{where}:{line}:{error.GetColumn()}",
            got=reason,
            hint=suggest(unknown[2], known) if unknown else None,
        ) from error


def _field_names(message: str) -> list[str]:
    """Field names of a message type by its full name, such as `inference.ModelInput`."""
    return [field.name for field in pb().DESCRIPTOR.pool.FindMessageTypeByName(message).fields]


def _field(config: ModelConfig, name: str) -> str:
    """One field of the message as text, "" when unset; `max_batch_size` always, because 0 is a choice here."""
    from google.protobuf import text_format

    if name == "max_batch_size":
        return f"max_batch_size: {config.max_batch_size}\n"
    part = pb().ModelConfig()
    part.CopyFrom(config)
    for field, _ in config.ListFields():
        if field.name != name:
            part.ClearField(field.name)
    return str(text_format.MessageToString(part, as_utf8=True, use_short_repeated_primitives=True))


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:12]


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tooling"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the text is no HTML
    )
    return environment.get_template("config.pbtxt.j2")
