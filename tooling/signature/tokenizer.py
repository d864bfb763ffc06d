"""The tokenizer of a model, read by the `tokenizers` library. Layer: signature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tooling.errors import MissingError, UsageError, install_extra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_AGAIN: Final = "export the model again"


def read_tokenizer(directory: Path, hint: str = _AGAIN) -> Tokenizer:
    """The tokenizer of a directory, which pads nothing and cuts nothing off.

    Raises UsageError without a readable tokenizer.json, with `hint` where there is none; MissingError without the
    `tokenizers` library.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingError("the `tokenizers` library is not installed", hint=install_extra("export")) from None
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise UsageError(
            "the tokenizer is missing",
            where=directory,
            got="no tokenizer.json",
            expected="the tokenizer of the model",
            hint=hint,
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower class
        raise UsageError("the tokenizer cannot be read", where=file, got=error, hint=_AGAIN) from None
    tokenizer.no_padding()  # all-MiniLM-L6-v2's file pads every text to 128 tokens
    tokenizer.no_truncation()
    return tokenizer
