"""What Triton's core asks of a config when it reads it, in its order. Layer: check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from tooling.check.finding import Finding
from tooling.check.model import Model
from tooling.check.rules import batch_io, dynamic, ensemble, features, platform, sequence, tensors

Check: TypeAlias = Callable[[Model], Iterator[Finding]]

POLL: Final[tuple[Check, ...]] = (
    platform.agents,
    platform.platform,
    dynamic.dynamic_batching,
    sequence.sequence_batching,
    ensemble.ensemble,
    features.features,
)
TENSORS: Final[tuple[Check, ...]] = (tensors.tensors, batch_io.batch_io)
