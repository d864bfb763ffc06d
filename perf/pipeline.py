"""A model behind another one: what clients call is an ensemble, and one of its models is tuned. Layer: above target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perf.target import EmbeddedTarget, Served, Variant
from tooling.config.proto import renamed
from tooling.config.tensors import signature_of
from tooling.errors import Refused, UsageError
from tooling.repository import locate_model, read_config

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig
    from tooling.runtime import Runtime
    from tooling.signature.spec import ModelSignature


@dataclass(frozen=True, slots=True)
class Front:
    """What clients call: its directory and configuration, and the directory of the `part` that is tuned behind it."""

    model_dir: Path
    config: ModelConfig
    part: Path

    @property
    def signature(self) -> ModelSignature:
        return signature_of(self.config, self.model_dir)


def front_of(model_dir: Path) -> Front | None:
    """The ensemble in a directory, with the largest of its ONNX models as the part; None when it is no ensemble.

    Raises UsageError when none of its models is one of ONNX.
    """
    config = _config(model_dir)
    if config is None or not config.ensemble_scheduling.step:
        return None
    names = dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step)
    parts = [found for name in names if (found := _onnx(model_dir.absolute().parent / name))]
    if not parts:
        raise UsageError(
            "no model of this ensemble can be tuned",
            where=model_dir,
            got=", ".join(names),
            expected="an ONNX model among them, in the same repository",
        )
    largest = max(parts, key=lambda one: one[1])
    return Front(model_dir.absolute(), config, largest[0])


def _config(model_dir: Path) -> ModelConfig | None:
    try:
        return read_config(model_dir)
    except UsageError:  # whoever tunes it says what is wrong with it
        return None


def _onnx(model_dir: Path) -> tuple[Path, int] | None:
    """The directory and the size of its weights in bytes, data files beside the graph included."""
    try:
        found = locate_model(model_dir, "onnxruntime")
    except UsageError:
        return None
    place = found.file.parent
    return model_dir, sum(entry.stat().st_size for entry in place.iterdir() if entry.is_file())


class PipelineTarget(EmbeddedTarget):
    """A server of our own that has the ensemble once for each of the configurations of its part that are loaded; its
    other models serve them all."""

    def __init__(self, front: Front, runtime: Runtime) -> None:
        super().__init__(front.model_dir.parent, runtime)
        self._front = front
        self._fronts: dict[str, str] = {}
        """The name of each ensemble that was made, by the name of its part."""

    def serve(self, variant: Variant) -> Served:
        part = super().serve(variant)
        if part.fresh:
            try:
                self.server.load(self._named(part.name), self._config(part.name))
            except Refused:
                super()._leave(part.name)
                raise
        return Served(self._fronts[part.name], part.fresh)

    def _leave(self, *names: str) -> None:
        for name in names:
            if name not in self._fresh:
                self.server.unload(self._fronts[name])  # it is of no use without its part, which goes next
        super()._leave(*names)

    def _named(self, part: str) -> str:
        """The ensemble that has this part; the first one keeps its own name."""
        if part not in self._fronts:
            own = self._front.model_dir.name
            self._fronts[part] = f"{own}.{part.removeprefix(f'{self._front.part.name}.')}" if self._fronts else own
            if self._fronts[part] != own:
                self.server.alias(self._fronts[part], self._front.model_dir)
        return self._fronts[part]

    def _config(self, part: str) -> ModelConfig:
        config = renamed(self._front.config, self._fronts[part])
        for step in config.ensemble_scheduling.step:
            if step.model_name == self._front.part.name:
                step.model_name = part
        return config
