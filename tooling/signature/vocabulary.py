"""Which token ids a model takes, read from its tokenizer.json without any tokenizer library. Layer: signature."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tooling.errors import UsageError

_HINT = "give the directory that holds the model's tokenizer.json, or the vocabulary's size with `--vocab-size N`"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Ordinary token ids, and the special ones that stand before and after every text."""

    ordinary: Sequence[int]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def text(self, length: int, rng: random.Random) -> list[int]:
        """Ids of a text that is `length` tokens long, special ones included."""
        ends = (*self.before, *self.after)
        if length <= len(ends):
            return list(ends[:length])
        return [*self.before, *rng.choices(self.ordinary, k=length - len(ends)), *self.after]


def sized_vocabulary(size: int) -> Vocabulary:
    """Ids of a vocabulary of which only the size is known: the middle half, as special tokens stand at its ends."""
    return Vocabulary(range(size // 4, max(size - size // 4, size // 4 + 1)))


def read_vocabulary(directory: Path | None, where: object) -> Vocabulary:
    """The vocabulary of the tokenizer in `directory`; `where` names what needs it.

    Raises UsageError without a readable tokenizer.json: ids made up at random would fail in the model.
    """
    if directory is None:
        raise UsageError("the model takes token ids, and there is no tokenizer", where=where, hint=_HINT)
    file = directory / "tokenizer.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        added = {token["id"] for token in content.get("added_tokens", ())}
        ordinary = tuple(sorted(_ids(content["model"]["vocab"]) - added))
        before, after = _ends(content.get("post_processor") or {})
    except FileNotFoundError:
        raise UsageError("the tokenizer is missing", where=directory, got="no tokenizer.json", hint=_HINT) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UsageError("the tokenizer cannot be read", where=file, got=problem, hint=_HINT) from None
    if not ordinary:
        raise UsageError("the tokenizer has no ordinary tokens", where=file, hint=_HINT)
    return Vocabulary(ordinary, before, after)


def _ids(vocab: Any) -> set[int]:
    """Ids of a vocabulary: token → id (WordPiece, BPE, WordLevel), or a list of scored tokens (Unigram)."""
    return set(vocab.values()) if isinstance(vocab, dict) else set(range(len(vocab)))


def _ends(processor: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special ids before and after a single text, as the post-processor puts them (none for one it does not know)."""
    kind = processor.get("type")
    if kind == "Sequence":
        parts = [_ends(part) for part in processor["processors"]]
        return tuple(i for before, _ in parts for i in before), tuple(i for _, after in parts for i in after)
    if kind in ("BertProcessing", "RobertaProcessing"):
        return (processor["cls"][1],), (processor["sep"][1],)
    if kind != "TemplateProcessing":
        return (), ()
    sides: tuple[list[int], list[int]] = ([], [])
    side = 0
    for item in processor["single"]:
        if "Sequence" in item:
            side = 1
        else:
            sides[side].extend(processor["special_tokens"][item["SpecialToken"]["id"]]["ids"])
    return tuple(sides[0]), tuple(sides[1])
