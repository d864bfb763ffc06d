"""Other forms of a model that a tuning tries with the settings it found: another precision, another backend, other
parameters. Layer: above operands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perf.operands import CURRENT, Base, sides
from perf.slo import Slo
from perf.target import Variant
from tooling.config.knobs import Knobs, one_group, read, threads_key
from tooling.config.proto import backend_of
from tooling.repository import read_text

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

_MANIFEST = "export.json"


@dataclass(frozen=True, slots=True)
class Form:
    """One of them: `word` as the user wrote it, its configuration with one instance group, its files where we serve
    them, and how near its answers are to those of its source, None where no export tells."""

    word: str
    config: ModelConfig
    model_dir: Path | None
    digest: str
    cosine: float | None

    @property
    def text(self) -> str:
        """The word with the cosine."""
        return self.word if self.cosine is None else f"{self.word} (cosine {self.cosine:.4f})"

    def knobs(self, wanted: Knobs) -> Knobs:
        """The wanted knobs as far as this form's backend has them."""
        if threads_key(backend_of(self.config)) is None:
            return replace(wanted, intra_op_threads=read(self.config).intra_op_threads)
        return wanted

    def variant(self, name: str, config: ModelConfig) -> Variant:
        """It with another configuration, under a name for the study."""
        return Variant(name, config, self.model_dir)

    def refusal(self, slo: Slo) -> str | None:
        """Why its answers are not near enough to be tried; None when they are, or when that is not asked."""
        judged = [one for one in slo.judge({"cosine": self.cosine}) if one.term.metric == "cosine"]
        missed = next((one for one in judged if one.answer != "met"), None)
        if missed is None:
            return None
        return f"{missed}" if self.cosine is not None else f"{missed.term}: no {_MANIFEST} tells its cosine"


def forms(words: Sequence[str], base: Base) -> tuple[Form, ...]:
    """What the words mean, each a model directory, a config file or settings, as for a comparison with `base`.

    Raises UsageError with all that is wrong, among it forms that take other requests.
    """
    _, *others = sides((CURRENT, *words), base)
    return tuple(
        Form(
            side.label,
            one_group(side.variant.config),
            side.variant.model_dir,
            side.digest,
            _cosine(side.variant.model_dir),
        )
        for side in others
    )


def _cosine(model_dir: Path | None) -> float | None:
    """The cosine with the source's answers that the export was verified with."""
    path = model_dir and model_dir / _MANIFEST
    if path is None or not path.is_file():
        return None
    try:
        found = json.loads(read_text(path))["verification"]["cosine"]
    except (ValueError, LookupError, TypeError):
        return None
    return float(found) if isinstance(found, (int, float)) else None
