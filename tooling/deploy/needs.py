"""What the models of a repository ask of the place where they run: image, GPU, packages. Layer: deploy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tooling.check.finding import Severity
from tooling.check.model import Model
from tooling.check.repository import read_repository
from tooling.check.rules.llm_files import outside
from tooling.check.runner import check
from tooling.check.target import Target
from tooling.errors import Problem, Refused, UsageError
from tooling.releases import Release
from tooling.server.flags import require_config_name

# Backends that are in one variant of the image only; every other backend of NVIDIA's is in the plain one.
VARIANTS: Final = {"vllm": "vllm-python-py3", "tensorrtllm": "trtllm-python-py3"}
_PLAIN_ONLY: Final = ("onnxruntime", "openvino", "pytorch", "tensorrt")
ON_GPU: Final = ("tensorrt", "vllm", "tensorrtllm")
_REQUIREMENTS: Final = "requirements.txt"


@dataclass(frozen=True, slots=True)
class Needs:
    """`served` are the models, `variant` is what the image's tag ends in, `on_gpu` names those that run on GPUs only.

    `packages` are the requirement files of Python models, `outside` the paths outside of the repository that engines of
    language models read theirs from.
    """

    served: tuple[Model, ...]
    variant: str
    on_gpu: tuple[str, ...]
    packages: tuple[Path, ...]
    outside: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(model.name for model in self.served)


def read_needs(repository: Path, release: Release, config_name: str | None = None) -> Needs:
    """What the models need, once `check` has nothing against them.

    Raises UsageError when there is no model or no one image has every backend, and Refused with everything that Triton
    would refuse.
    """
    require_config_name(repository, config_name)
    target = Target(release, release_named=True, config_name=config_name, cache=True, rate_limit=True)
    found = read_repository(repository, target)
    if found.is_model or not found.judged:
        raise UsageError(
            "no model repository", where=repository, expected="a directory with a directory for each model in it"
        )
    report = check(repository, target)
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    if errors:
        raise Refused(
            problems=[
                Problem(f"{finding.message} [{finding.rule.id}]", where=str(finding.place), hint=finding.hint)
                for finding in errors
            ]
        )
    models = tuple(found.models[name] for name in found.judged)
    return Needs(
        served=models,
        variant=_variant(repository, models),
        on_gpu=tuple(model.name for model in models if _only_on_gpu(model)),
        packages=tuple(path for name in found.judged if (path := repository / name / _REQUIREMENTS).is_file()),
        outside=tuple(dict.fromkeys(path for model in models for path in outside(model))),
    )


def _variant(repository: Path, models: Sequence[Model]) -> str:
    special = {model.config.backend: model.name for model in models if model.config.backend in VARIANTS}
    plain = next((model.name for model in models if model.config.backend in _PLAIN_ONLY), None)
    if len(special) > 1 or (special and plain):
        asked = ", ".join(f"{name} needs {backend}" for backend, name in special.items())
        raise UsageError(
            "no image of Triton has every backend of this repository",
            where=repository,
            got=asked + (f", {plain} the plain image" if plain else ""),
            hint="deploy them as two repositories",
        )
    return VARIANTS[next(iter(special))] if special else "py3"


def _only_on_gpu(model: Model) -> bool:
    kinds = {group.kind for group in model.instances}
    return model.config.backend in ON_GPU or "KIND_GPU" in kinds
