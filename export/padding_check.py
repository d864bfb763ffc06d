"""Does an answer depend on its padding? Real texts alone against the same texts padded. Layer: export verification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from export.quiet import quiet
from export.source import first_line
from export.verify import LIMITS, open_session
from tooling.console import Console
from tooling.errors import Refused
from tooling.repository import locate_model
from tooling.signature.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Answers = Mapping[str, NDArray[Any]]

TOLERANCE: Final = 1e-5
_SENTENCE: Final = "The parcel arrived two days late, and the box was open."
TEXTS: Final = ("", "Thanks!", _SENTENCE, " ".join([_SENTENCE] * 4), "多言語 – ünïcödé \U0001f600")
_NUMPY: Final = {"tensor(int64)": "int64", "tensor(int32)": "int32"}
_LONGEST: Final = 512  # tokens of the longest padded run: it shows as much as longer ones, in seconds


def check_padding(
    model_dir: Path, edges: Sequence[int], max_tokens: int, pad_token: int, precision: str, console: Console
) -> float:
    """The largest share by which padding to one of `edges` changes an element of an output, of its largest one or 1.

    Each text runs alone, then all that fit together in one batch, padded with `pad_token` to each edge and to
    `max_tokens`. Raises Refused when a change exceeds 1e-5, or what the export allows a lower precision, and when the
    model fails on a length that it is said to take; MissingError without onnxruntime or tokenizers, UsageError for
    files that cannot be loaded.
    """
    limit = TOLERANCE if precision == "fp32" else LIMITS[precision].error
    with quiet(console):
        model = _Model(locate_model(model_dir / "1").file, pad_token)
        encodings = _encode(model_dir / "tokenizer", max_tokens)
        worst = 0.0
        alone = [(e, model.run([e], len(e.ids))) for e in encodings if e.ids]
        for length in sorted({min(edge, _LONGEST) for edge in (*edges, max_tokens)}):
            fitting = [(e, answers) for e, answers in alone if len(e.ids) <= length]
            padded = model.run([e for e, _ in fitting], length) if fitting else {}
            for where, change in _changes(fitting, padded):
                _require(change, limit, where, length, model_dir)
                worst = max(worst, change)
    return worst


def _encode(directory: Path, max_tokens: int) -> list[Any]:
    """The texts as the pipeline's step cuts them, and one that is as long as the longest run."""
    tokenizer = read_tokenizer(directory)
    tokenizer.enable_truncation(min(max_tokens, _LONGEST))
    return list(tokenizer.encode_batch([*TEXTS, " ".join([_SENTENCE] * _LONGEST)]))


class _Model:
    """The exported file, run on texts padded to a length as the pipeline's step pads them."""

    def __init__(self, path: Path, pad_token: int) -> None:
        self._path, self._pad_token = path, pad_token
        self._session = open_session(path)
        self._types = {entry.name: _NUMPY[entry.type] for entry in self._session.get_inputs()}
        self._outputs = [entry.name for entry in self._session.get_outputs()]

    def run(self, encodings: Sequence[Any], length: int) -> Answers:
        """Outputs by name. Raises Refused when the run fails."""
        tensors = self._padded(encodings, length)
        try:
            return dict(zip(self._outputs, self._session.run(self._outputs, tensors), strict=True))
        except Exception as error:  # onnxruntime raises classes of its own without a common base
            raise Refused(
                f"the model does not answer a batch of {len(encodings)} × {length} tokens",
                where=self._path,
                got=first_line(error),
                hint="texts are cut at the model's limit: where it takes less than it states, say so with --max-tokens",
            ) from error

    def _padded(self, encodings: Sequence[Any], length: int) -> dict[str, Any]:
        import numpy as np

        tensors = {name: np.zeros((len(encodings), length), dtype=kind) for name, kind in self._types.items()}
        if "input_ids" in tensors:
            tensors["input_ids"] += self._pad_token
        for row, encoding in enumerate(encodings):
            columns = {
                "input_ids": encoding.ids,
                "attention_mask": encoding.attention_mask,
                "token_type_ids": encoding.type_ids,
            }
            for name, tensor in tensors.items():
                tensor[row, : len(encoding.ids)] = columns[name]
        return tensors


def _changes(fitting: Sequence[tuple[Any, Answers]], padded: Answers) -> Iterator[tuple[str, float]]:
    """Of each text and output, by how much padding changed it; of vectors for each token only those of real tokens."""
    import numpy as np

    for row, (encoding, alone) in enumerate(fitting):
        for name, answer in padded.items():
            expected = alone[name][0]
            got = answer[row] if answer[row].shape == expected.shape else answer[row, : len(encoding.ids)]
            scale = max(1.0, float(np.abs(expected).max()))
            change = np.abs(got.astype(np.float64) - expected).max() / scale
            yield f"output `{name}` of a text of {len(encoding.ids)} tokens", float(np.nan_to_num(change, nan=np.inf))


def _require(change: float, limit: float, where: str, length: int, model_dir: Path) -> None:
    if change <= limit:
        return
    raise Refused(
        "answers depend on their padding, so the model must not be served with padded batches; nothing was written",
        where=model_dir,
        got=f"a change of {change:.3g} in {where} padded to {length}",
        expected=f"at most {limit:g}",
        hint="the graph ignores its attention_mask somewhere: export it again from the source with `tritune export`",
    )
