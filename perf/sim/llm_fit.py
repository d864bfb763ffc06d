"""The law of an engine's steps from steps that were seen. Layer: sim, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from perf.sim.llm import StepTime
from tooling.errors import UsageError

_FEWEST_STEPS = 20
_MOST_FACTORS = 400


class SeenSteps(NamedTuple):
    """Some steps one after the other: their number, and in all of them tokens computed, sequences that got a token,
    tokens in the KV cache that were read, and the time. One alone tells little: answers reach a client in clumps."""

    steps: int
    tokens: int
    sequences: int
    kv_tokens: int
    us: float


@dataclass(frozen=True, slots=True)
class StepFit:
    """The law, and by which share what was seen misses it: half of it by less than `median_error`."""

    law: StepTime
    median_error: float
    steps: int


def fit_steps(seen: Sequence[SeenSteps], overhead_us: float = 0.0) -> StepFit:
    """Least squares of relative errors, without negative parts; what took over three times what the law says counts
    as scatter only. Raises UsageError for too little seen."""
    if len(seen) < _FEWEST_STEPS:
        raise UsageError("too few steps to fit", where="steps", got=len(seen), expected=f"at least {_FEWEST_STEPS}")
    work = np.array([s[:4] for s in seen], dtype=float)
    spent = np.array([s.us for s in seen])
    law = _non_negative(work, spent)
    for _ in range(3):
        usual = spent < 3 * (work @ law)
        law = _non_negative(work[usual], spent[usual])
    ratio = np.sort(spent / (work @ law))
    factors = ratio[np.linspace(0, len(ratio) - 1, min(len(ratio), _MOST_FACTORS)).astype(int)]
    return StepFit(
        replace(_law(law), overhead_us=overhead_us, factors=tuple(factors.tolist())),
        float(np.median(np.abs(ratio - 1))),
        sum(s.steps for s in seen),
    )


def _law(parts: np.ndarray) -> StepTime:
    fixed_us, per_token_us, per_sequence_us, per_kv_token_us = parts.tolist()
    return StepTime(fixed_us, per_token_us, per_sequence_us, per_kv_token_us)


def _non_negative(work: np.ndarray, spent: np.ndarray) -> np.ndarray:
    """The law whose parts are at least 0: negative ones are left out, the most negative first."""
    kept = list(range(work.shape[1]))
    law = np.zeros(work.shape[1])
    while kept:
        part, *_ = np.linalg.lstsq(work[:, kept] / spent[:, None], np.ones(len(spent)), rcond=None)
        if (part >= 0).all():
            law[kept] = part
            break
        del kept[int(part.argmin())]
    return law
