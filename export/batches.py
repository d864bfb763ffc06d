"""Inputs that show mistakes: random and real, padded on either side, a decoder's steps. Layer: export, numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from export.plan import ExportPlan
from export.tasks import ANSWER, GENERATE, RANK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

# (rows, tokens of the longest row): one token, one row, odd sizes, many rows, long rows.
SHAPES: Final = ((1, 1), (1, 16), (2, 3), (3, 9), (4, 33), (5, 64), (2, 128))
LEFT_SHAPES: Final = ((3, 9), (2, 33))
IMAGES: Final = (1, 2, 5)
# A decoder gets the prompt without a cache, then these many tokens at a time.
DECODED: Final = (1, 1, 3)

_SENTENCES: Final = (
    "Yes.",
    "The invoice was paid twice.",
    "How do I reset my password?",
    "Snow fell on the harbour all night.",
    "A queue of requests is served in the order of their arrival.",
    "The film was far too long, and yet nobody in the room wanted it to end.",
    "Berlin, Paris and Rome are the capitals of Germany, France and Italy.",
    "She bought three apples, two pears and a loaf of bread at the market on the corner.",
    "Refunds are granted within thirty days if the goods come back unused and in their box.",
    "Terrible service: the soup was cold, the waiter rude and the bill wrong.",
    "The committee met on 12 March 2021 to decide whether the bridge should be rebuilt in steel or in stone.",
    "When the temperature falls below zero degrees, water in the pipes freezes, expands and may burst them open.",
    "I would recommend this hotel to anybody who likes quiet rooms, good coffee and a view over the old town.",
    "Large models answer slowly on a processor, because every weight has to pass through its memory once a token.",
    "Marie Curie received the Nobel Prize twice, in physics in 1903 and in chemistry in 1911, and her daughter once.",
    "To change the tyre, loosen the nuts, lift the car, take the wheel off, put the other one on and tighten the nuts.",
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs and what is known of them.

    `real` marks tokens of rows that were really in the text and is what they are judged on; `alone` says that each row
    must answer as it does without the others and without padding. `steps` are a decoder's tokens at a time.
    """

    name: str
    inputs: Arrays
    alone: bool = True
    text: bool = False
    steps: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def length(self) -> int:
        """Tokens of the longest row; 0 for images."""
        return int(self.inputs["input_ids"].shape[1]) if "input_ids" in self.inputs else 0

    def row(self, index: int) -> Arrays:
        """One row without its padding."""
        if "attention_mask" not in self.inputs:
            return {name: values[index : index + 1] for name, values in self.inputs.items()}
        real = self.inputs["attention_mask"][index] == 1
        return {name: values[index : index + 1, real] for name, values in self.inputs.items()}


def batches(plan: ExportPlan, tokenizer: Path | None, *, seed: int = 0) -> Iterator[Batch]:
    """Every batch a model is verified on. Raises nothing of its own; without a tokenizer there is no real text."""
    import numpy as np

    generator = np.random.default_rng(seed)
    if plan.image:
        for rows in IMAGES:
            pixels = generator.normal(size=(rows, *plan.image)).astype(np.float32)
            yield Batch(f"{rows} images", {"pixel_values": pixels}, text=rows > 1)
        return
    for side, shapes in (("right", SHAPES), ("left", LEFT_SHAPES)):
        for rows, length in dict.fromkeys((rows, min(length, plan.max_tokens)) for rows, length in shapes):
            yield _random(generator, plan, rows, length, side)
    if tokenizer is not None:
        yield from _texts(tokenizer, plan)


def _random(generator: Any, plan: ExportPlan, rows: int, length: int, side: str) -> Batch:
    """Random tokens: the rows' lengths fall from `length` in even steps, at least one token each."""
    import numpy as np

    decoder = plan.task is GENERATE
    tail = sum(DECODED) if decoder and length > sum(DECODED) else 0
    prompt = length - tail
    lengths = np.maximum(1, prompt - np.arange(rows) * prompt // rows)
    places = np.arange(prompt)
    mask = places < lengths[:, None] if side == "right" else places >= prompt - lengths[:, None]
    mask = np.concatenate([mask, np.ones((rows, tail), bool)], axis=1).astype(np.int64)
    special = [plan.pad_token] if plan.eos_token is None else [plan.pad_token, plan.eos_token]
    allowed = np.setdiff1d(np.arange(plan.vocabulary), special)
    drawn = generator.choice(allowed, (rows, length))
    if plan.eos_token is not None:  # models that look for the end of the text find one in each row
        drawn[np.arange(rows), length - 1 - mask[:, ::-1].argmax(axis=1)] = plan.eos_token
    tokens = np.where(mask == 1, drawn, plan.pad_token)
    halfway = mask.cumsum(axis=1) > (mask.sum(axis=1, keepdims=True) + 1) // 2
    inputs = {"input_ids": tokens.astype(np.int64), "attention_mask": mask, "token_type_ids": halfway * mask}
    name = f"{rows} × {length} tokens, {side}-padded"
    steps = (prompt, *DECODED) if tail else (length,) if decoder else ()
    # Most encoders count positions from the left edge, so that padding there shifts them: torch's own as well.
    return Batch(name, inputs, alone=decoder or side == "right", steps=steps)


def _texts(tokenizer: Path, plan: ExportPlan) -> Iterator[Batch]:
    """Real sentences, or pairs of them where the task is about pairs, in batches of mixed lengths."""
    import numpy as np
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.no_padding()
    encoder.enable_truncation(max(1, plan.max_tokens))
    pairs = list(zip(_SENTENCES, (*_SENTENCES[5:], *_SENTENCES[:5]), strict=True))
    encoded = encoder.encode_batch(pairs if plan.task in (RANK, ANSWER) else list(_SENTENCES))
    encoded = [row for row in encoded if row.ids and max(row.ids) < plan.vocabulary]
    for start in range(0, len(encoded), 4):
        rows = encoded[start : start + 4]
        length = max(len(row.ids) for row in rows)
        columns = {
            "input_ids": (plan.pad_token, [row.ids for row in rows]),
            "attention_mask": (0, [[1] * len(row.ids) for row in rows]),
            "token_type_ids": (0, [row.type_ids for row in rows]),
        }
        inputs = {
            name: np.array([[*row, *[fill] * (length - len(row))] for row in values], np.int64)
            for name, (fill, values) in columns.items()
        }
        steps = (length,) if plan.task is GENERATE else ()
        yield Batch(f"{len(rows)} sentences of {length} tokens", inputs, text=True, steps=steps)
