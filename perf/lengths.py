"""Token lengths of real text: the default traffic when the user gives none. Layer: bottom of perf."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.errors import UsageError
from tooling.signature.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from tooling.signature.spec import ModelSignature

_SENTENCES = Path(__file__).with_name("data") / "sentences.txt"
_HINT = "give its directory with --tokenizer, or --lengths and --vocab-size of your own"


@cache
def sentences() -> tuple[str, ...]:
    """The bundled English sentences, 3 to 60 words long, in an order without a trend."""
    return tuple(_SENTENCES.read_text(encoding="utf-8").splitlines())


def sentence_lengths(tokenizer_dir: Path) -> tuple[int, ...]:
    """Lengths of the bundled sentences; see `token_lengths`."""
    return token_lengths(sentences(), tokenizer_dir)


def token_lengths(texts: Sequence[str], tokenizer_dir: Path) -> tuple[int, ...]:
    """Lengths in tokens, special ones included, of texts with the tokenizer in a directory (see `read_tokenizer`)."""
    return tuple(len(encoding.ids) for encoding in read_tokenizer(tokenizer_dir, _HINT).encode_batch(list(texts)))


def fit_to_model(lengths: tuple[int, ...], model_dir: Path, *, asked: bool) -> tuple[int, ...]:
    """Lengths that the model can take, by the limit its export states; longer real sentences are cut, as tokenizers do.

    Raises UsageError when `asked` lengths are over the limit.
    """
    limit = _max_tokens(model_dir)
    if limit is None or not lengths or max(lengths) <= limit:
        return lengths
    if asked:
        raise UsageError(
            "a request would be longer than the model can take",
            where="--lengths",
            got=str(max(lengths)),
            expected=f"at most {limit} tokens ({model_dir / 'export.json'})",
            hint="give shorter lengths: a text is cut to this limit before it reaches the model",
        )
    return tuple(min(length, limit) for length in lengths)


def _max_tokens(model_dir: Path) -> int | None:
    """`max_tokens` of the export manifest; None when the model has no manifest or states no limit."""
    try:
        limit = json.loads((model_dir / "export.json").read_text(encoding="utf-8"))["max_tokens"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return limit if isinstance(limit, int) else None


def traffic_lengths(
    asked: tuple[int, ...],
    signature: ModelSignature,
    tokenizer_dir: Path,
    *,
    batching: bool,
    texts: Sequence[str] = (),
) -> tuple[int, ...]:
    """The lengths asked for, else those of `texts` or of real sentences; none for a model without a free axis.

    `batching` says whether the configuration leaves the first axis out. Raises UsageError for lengths that the model's
    requests cannot have, else as `sentence_lengths`.
    """
    first = 1 if batching else 0
    free = any(-1 in spec.dims[first:] for spec in signature.required_inputs)
    if asked and not free and not texts:
        raise UsageError(
            "the model's inputs have no length",
            where="lengths",
            got=", ".join(map(str, asked[:5])),
            expected="an input with a free axis" if not _takes_texts(signature) else "texts, which have their own",
            hint="leave the lengths out; a workload file holds `texts`" if _takes_texts(signature) else None,
        )
    if asked or not free:
        return asked
    return token_lengths(texts or sentences(), tokenizer_dir)


def _takes_texts(signature: ModelSignature) -> bool:
    return any(spec.data_type == "TYPE_STRING" for spec in signature.required_inputs)
