"""Does the ONNX file answer as torch does? Padded batches against every row alone. Layer: export verification."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from export.plan import ExportPlan
from export.source import first_line, missing_library
from tooling.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from export.torch_onnx import Reference

    Batch = dict[str, NDArray[np.int64]]

TOLERANCE: Final = 1e-4
# (rows, tokens of the longest row): one token, one row, odd sizes, many rows, long rows.
SHAPES: Final = ((1, 1), (1, 16), (2, 3), (3, 9), (4, 33), (5, 64), (2, 128))


@dataclass(frozen=True, slots=True)
class ShapeCheck:
    """One batch: the largest absolute difference and where it is, or why there is no answer to compare."""

    batch: int
    length: int
    max_abs_error: float
    where: str
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """All batches; it has passed when no difference exceeds `tolerance` (a NaN does)."""

    tolerance: float
    checks: tuple[ShapeCheck, ...]

    @property
    def worst(self) -> ShapeCheck:
        return max(self.checks, key=lambda check: check.max_abs_error)

    @property
    def passed(self) -> bool:
        return self.worst.max_abs_error <= self.tolerance


def verify(path: Path, reference: Reference, plan: ExportPlan, *, seed: int = 0) -> Verification:
    """Run padded batches of mixed lengths through the file and compare each row with `reference` of that row alone.

    Padding, masking, pooling, positions and weights are all judged by this one comparison, because the reference never
    sees padding. Raises MissingError without onnxruntime, UsageError when the file is not a model that it loads.
    """
    import numpy as np

    session = open_session(path)
    names = [entry.name for entry in session.get_inputs()]
    generator = np.random.default_rng(seed)
    shapes = dict.fromkeys((batch, min(length, plan.max_tokens)) for batch, length in SHAPES)
    checks = tuple(_check(session, names, reference, _batch(generator, plan, *shape)) for shape in shapes)
    return Verification(TOLERANCE, checks)


def open_session(path: Path) -> Any:
    """A session on one CPU thread. Raises MissingError without onnxruntime, UsageError for what it does not load."""
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_library(error, "cpu") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # failures are reported here, not on stderr
    options.intra_op_num_threads = 1  # enough for a few hundred tokens, and exact from run to run
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own without a common base
        raise UsageError("onnxruntime cannot load the model", where=path, got=first_line(error)) from error


def _batch(generator: Any, plan: ExportPlan, rows: int, length: int) -> Batch:
    """Random tokens, right-padded: the rows' lengths fall from `length` in even steps, at least one token each."""
    import numpy as np

    lengths = np.maximum(1, length - np.arange(rows) * length // rows)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    drawn = generator.integers(0, plan.vocabulary - 1, (rows, length))
    tokens = np.where(mask == 1, drawn + (drawn >= plan.pad_token), plan.pad_token)
    second_half = np.arange(length) >= (lengths[:, None] + 1) // 2
    types = (second_half & (mask == 1)).astype(np.int64)
    return {"input_ids": tokens.astype(np.int64), "attention_mask": mask, "token_type_ids": types}


def _check(session: Any, names: Sequence[str], reference: Reference, batch: Batch) -> ShapeCheck:
    rows, length = batch["input_ids"].shape
    try:
        (answer,) = session.run(None, {name: batch[name] for name in names})
    except Exception as error:  # onnxruntime raises classes of its own without a common base
        return ShapeCheck(rows, length, math.inf, "the run", first_line(error))
    worst = ShapeCheck(rows, length, 0.0, "the first element")
    for check in _row_checks(answer, reference, batch):
        if not check.max_abs_error <= worst.max_abs_error:
            worst = check
    return worst


def _row_checks(answer: Any, reference: Reference, batch: Batch) -> Iterator[ShapeCheck]:
    """Each row of the answer against the row alone; of token vectors only those of real tokens count."""
    import numpy as np

    rows, length = batch["input_ids"].shape
    for row, tokens in enumerate(batch["attention_mask"].sum(axis=1)):
        expected = reference({name: values[row : row + 1, :tokens] for name, values in batch.items()})[0]
        got = answer[row, :tokens] if expected.ndim == 2 else answer[row]
        if len(answer) != rows or got.shape != expected.shape:
            reason = f"an answer of shape {list(answer.shape)}, {list(expected.shape)} a row expected"
            yield ShapeCheck(rows, length, math.inf, f"row {row}", reason)
            continue
        difference = np.nan_to_num(np.abs(got - expected), nan=np.inf)
        place = np.unravel_index(difference.argmax(), difference.shape)
        element = ", ".join(str(int(i)) for i in (row, *place))
        yield ShapeCheck(rows, length, float(difference[place]), f"element [{element}]")
