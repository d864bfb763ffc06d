"""Does the ONNX file answer as torch does? Padded batches against every row alone. Layer: export verification."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from export.batches import Batch, batches
from export.plan import ExportPlan
from export.source import first_line, missing_library
from export.tasks import GENERATE
from tooling.errors import UsageError
from tooling.signature.spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from export.graph import Reference

    Arrays = Mapping[str, NDArray[np.generic]]
    Run = Callable[[Arrays], Arrays]


_TYPES: Final = {"tensor(int64)": "TYPE_INT64", "tensor(float)": "TYPE_FP32", "tensor(float16)": "TYPE_FP16"}
_NUMPY_TYPES: Final = {"TYPE_INT64": "int64", "TYPE_FP32": "float32", "TYPE_FP16": "float16"}


@dataclass(frozen=True, slots=True)
class Limits:
    """How far an answer may be off.

    `error` is the largest difference of an element, as a part of the largest element of that output in the batch (or
    of 1, if that is more). Over real text, or random images, also: `cosine`, the least between two vectors, and `top1`,
    the least share of rows or tokens with the same first class.
    """

    error: float
    cosine: float
    top1: float


# Single precision leaves rounding only. The others are what all-MiniLM-L6-v2 and the small models of the tests keep
# with room to spare, and a broken conversion does not.
LIMITS: Final[Mapping[str, Limits]] = {
    "fp32": Limits(error=1e-4, cosine=0.99999, top1=0.99),
    "fp16": Limits(error=2e-2, cosine=0.999, top1=0.98),
    "int8": Limits(error=0.5, cosine=0.95, top1=0.9),
}


@dataclass(frozen=True, slots=True)
class Deviation:
    """One batch: the largest difference, also as a part of the largest element, where it is, or why there is none.

    `cosine` and `top1` are None where they say nothing. `looks_at_padding`: torch itself answers a padded row otherwise
    than the row alone, and the file does as torch does.
    """

    batch: str
    max_abs_error: float
    relative_error: float
    where: str
    cosine: float | None = None
    top1: tuple[int, int] | None = None
    failure: str | None = None
    looks_at_padding: bool = False


@dataclass(frozen=True, slots=True)
class Verification:
    """All batches, judged."""

    limits: Limits
    checks: tuple[Deviation, ...]

    @property
    def worst(self) -> Deviation:
        return max(self.checks, key=lambda check: check.relative_error)

    @property
    def cosine(self) -> float | None:
        return min((c.cosine for c in self.checks if c.cosine is not None), default=None)

    @property
    def top1(self) -> float | None:
        """The share of real rows or tokens with the same first class."""
        counted = [c.top1 for c in self.checks if c.top1]
        return sum(same for same, _ in counted) / sum(of for _, of in counted) if counted else None

    @property
    def looks_at_padding(self) -> bool:
        """Whether padding on the right changes answers, as it does in torch."""
        return any(check.looks_at_padding for check in self.checks)

    @property
    def passed(self) -> bool:
        return not any(self.faults())

    def faults(self) -> Iterator[str]:
        """In words, what exceeds the limits; the worst element first."""
        worst, limits = self.worst, self.limits
        if worst.failure:
            yield f"{worst.failure} at {worst.where} of {worst.batch}"
        elif not worst.relative_error <= limits.error:
            yield (
                f"a difference of {worst.max_abs_error:.3g} ({worst.relative_error:.2g} of the largest element, limit "
                f"{limits.error:g}) at {worst.where} of {worst.batch}"
            )
        if self.cosine is not None and not self.cosine >= limits.cosine:
            yield f"a cosine of {self.cosine:.5f} (limit {limits.cosine:g})"
        if self.top1 is not None and not self.top1 >= limits.top1:
            yield f"the same first class in {self.top1:.1%} (limit {limits.top1:.0%})"


def verify(
    path: Path, reference: Reference, plan: ExportPlan, tokenizer: Path | None = None, precision: str = "fp32"
) -> Verification:
    """Judge a file by running it here. Raises MissingError without onnxruntime, UsageError when it does not load."""
    session = open_session(path)
    inputs = [TensorSpec(e.name, _TYPES.get(e.type, e.type), tuple(e.shape)) for e in session.get_inputs()]
    outputs = [entry.name for entry in session.get_outputs()]

    def run(tensors: Arrays) -> Arrays:
        return dict(zip(outputs, session.run(outputs, tensors), strict=True))

    return judge(run, inputs, reference, plan, tokenizer, precision)


def judge(
    run: Run,
    inputs: Sequence[TensorSpec],
    reference: Reference,
    plan: ExportPlan,
    tokenizer: Path | None = None,
    precision: str = "fp32",
) -> Verification:
    """Give every batch to `run`, a file or a server, and compare each row with `reference` of that row alone.

    Padding, masking, pooling, positions and weights are all judged by this one comparison, because the reference never
    sees padding, except where torch itself answers a padded row otherwise: on the left of encoders that count positions
    from the edge, and in models whose convolutions reach into padding. Of tokens only real ones count.
    """
    answer = _decode if plan.task is GENERATE else _at_once
    limits = LIMITS[precision]
    asked = partial(answer, run, inputs)
    checks = (_check(asked, reference, plan, batch, limits.error) for batch in batches(plan, tokenizer))
    return Verification(limits, tuple(checks))


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
        # Without `enable_fallback` a failure is not printed and tried again: it is reported here.
        return onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], enable_fallback=False
        )
    except Exception as error:  # onnxruntime raises classes of its own without a common base
        raise UsageError("onnxruntime cannot load the model", where=path, got=first_line(error)) from error


def _at_once(run: Run, inputs: Sequence[TensorSpec], batch: Batch) -> Arrays:
    return run({spec.name: batch.inputs[spec.name].astype(_numpy_type(spec)) for spec in inputs})


def _decode(run: Run, inputs: Sequence[TensorSpec], batch: Batch) -> Arrays:
    """A decoder's logits for all tokens, made in steps: each gets the keys and values that the one before gave."""
    import numpy as np

    past = [spec for spec in inputs if spec.name.startswith("past_key_values.")]
    cache = {spec.name: np.zeros((batch.rows, spec.dims[1], 0, spec.dims[3]), _numpy_type(spec)) for spec in past}
    parts, done = [], 0
    for count in batch.steps:
        ids = batch.inputs["input_ids"][:, done : done + count]
        done += count
        answer = run({"input_ids": ids, "attention_mask": batch.inputs["attention_mask"][:, :done], **cache})
        parts.append(answer["logits"])
        cache = {spec.name: answer[spec.name.replace("past_key_values", "present")] for spec in past}
    return {"logits": np.concatenate(parts, axis=1)}


def _numpy_type(spec: TensorSpec) -> str:
    return _NUMPY_TYPES[spec.data_type]


def _check(
    answer: Callable[[Batch], Arrays], reference: Reference, plan: ExportPlan, batch: Batch, limit: float
) -> Deviation:
    """One batch, each row against the row alone; where that is not how torch itself answers, against torch's batch."""
    nothing = Deviation(batch.name, math.inf, math.inf, "the run")
    try:
        answers = answer(batch)
    except Exception as error:  # onnxruntime and clients raise classes of their own without a common base
        return replace(nothing, failure=first_line(error))
    try:
        if not batch.alone:
            return _judge_batch(answers, reference(batch.inputs), reference.per_token, plan, batch)
        alone = [reference(batch.row(row))[0] for row in range(batch.rows)]
        found = _judge_batch(answers, alone, reference.per_token, plan, batch)
        if found.failure or found.relative_error <= limit:
            return found
        together = _judge_batch(answers, reference(batch.inputs), reference.per_token, plan, batch)
        return replace(together, looks_at_padding=True) if together.relative_error <= limit else found
    except (RuntimeError, ValueError, IndexError, TypeError) as error:  # what torch raises inside a model
        return replace(nothing, where="torch's own run", failure=first_line(error))


def _judge_batch(
    answers: Arrays, expected: Sequence[Mapping[str, Any]], per_token: bool, plan: ExportPlan, batch: Batch
) -> Deviation:
    mask = batch.inputs.get("attention_mask") if per_token else None
    places = [slice(None) if mask is None else mask[row] == 1 for row in range(batch.rows)]
    found = [_compare(name, values, [row[name] for row in expected], places, plan) for name, values in answers.items()]
    worst = max(found, key=lambda check: check.relative_error)
    counted = [check.top1 for check in found if check.top1 and batch.text]
    return replace(
        worst,
        batch=batch.name,
        cosine=min((check.cosine for check in found if check.cosine is not None and batch.text), default=None),
        top1=(sum(same for same, _ in counted), sum(of for _, of in counted)) if counted else None,
    )


def _compare(name: str, values: Any, expected: Sequence[Any], places: Sequence[Any], plan: ExportPlan) -> Deviation:
    """One output of a batch against what each row must be; `places` are the parts of the rows that count."""
    import numpy as np

    got = [row[place].astype(np.float32) for row, place in zip(values, places, strict=False)]
    if [row.shape for row in got] != [row.shape for row in expected] or len(values) != len(expected):
        reason = (
            f"an answer of shape {list(values.shape)}, {len(expected)} rows like {list(expected[0].shape)} expected"
        )
        return Deviation("", math.inf, math.inf, name, failure=reason)
    scale = max(1.0, *(float(np.abs(row).max(initial=0)) for row in expected))
    largest, where = -1.0, ""
    for row, (mine, torchs, place) in enumerate(zip(got, expected, places, strict=True)):
        difference = np.nan_to_num(np.abs(mine - torchs), nan=np.inf)
        if difference.max(initial=0) > largest:
            index = np.unravel_index(difference.argmax(), difference.shape)
            first = np.arange(len(values[row]))[place][index[0]]
            largest, where = float(difference[index]), f"{name}[{', '.join(map(str, (row, first, *index[1:])))}]"
    return Deviation(
        "",
        largest,
        largest / scale,
        where,
        cosine=_cosine(got, expected) if plan.task.judge == "vectors" and math.isfinite(largest) else None,
        top1=_top1(got, expected, plan) if plan.task.judge in ("classes", "spans") else None,
        failure=None if math.isfinite(largest) else "a value that is infinite or not a number",
    )


def _cosine(got: Sequence[Any], expected: Sequence[Any]) -> float:
    """The least cosine between vectors along the last axis."""
    import numpy as np

    least = 1.0
    for mine, torchs in zip(got, expected, strict=True):
        lengths = np.linalg.norm(mine, axis=-1) * np.linalg.norm(torchs, axis=-1)
        least = min(least, float(((mine * torchs).sum(axis=-1) / np.maximum(lengths, 1e-30)).min()))
    return least


def _top1(got: Sequence[Any], expected: Sequence[Any], plan: ExportPlan) -> tuple[int, int]:
    """How many rows or tokens have the same first class, or rows the same first token, and of how many."""
    axis = 0 if plan.task.judge == "spans" else -1
    same = [(mine.argmax(axis=axis) == torchs.argmax(axis=axis)) for mine, torchs in zip(got, expected, strict=True)]
    return sum(int(row.sum()) for row in same), sum(int(row.size) for row in same)
