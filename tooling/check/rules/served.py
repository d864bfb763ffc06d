"""Rules about a running server: whether it has loaded what the repository holds. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tooling.check.fill import ENSEMBLE
from tooling.check.finding import Finding, Rule, Severity, Stage
from tooling.check.model import Model, list_directory
from tooling.config.differences import Difference, differences
from tooling.config.proto import ModelConfig, pb
from tooling.pbtxt.schema import Message, fields_of

READY: Final = "READY"
_SOURCE: Final = "KServe v2 endpoints of tritonserver 2.51"
# What an auto-complete may write.
_COMPLETED: Final = {"max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy"}
_CONFIG: Final = 'backend: "python"\nmax_batch_size: 8\n--- 1/model.py\nclass TritonPythonModel: pass\n--- server\n'


@dataclass(frozen=True, slots=True)
class State:
    """What a server says of one version of a model: READY, LOADING, UNLOADING, UNAVAILABLE; and why."""

    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """What a server has of a model: its versions, and the config in force where one of them is ready."""

    versions: Mapping[int, State] = field(default_factory=dict)
    config: ModelConfig | None = None

    @property
    def ready(self) -> list[int]:
        return sorted(number for number, version in self.versions.items() if version.state == READY)


def _rule(rule: str, severity: Severity, about: str, why: str, example: str) -> Rule:
    return Rule(rule, severity, Stage.SERVING, about, why, _CONFIG + example, _SOURCE)


NOT_READY = _rule(
    "served-not-ready",
    Severity.ERROR,
    "The server has not loaded a version that the repository holds.",
    "Requests for it fail. With explicit model control nothing is loaded until somebody asks for it.",
    '{"version": "2.51.0", "models": {"example": {"versions": {}}}}',
)
VERSION = _rule(
    "served-version-extra",
    Severity.ERROR,
    "The server has loaded a version that the repository does not choose.",
    "It was loaded before the directory or the version policy changed, and stays until the model is loaded again.",
    '{"version": "2.51.0", "models": {"example": {"versions": {"1": "READY", "3": "READY"}}}}',
)
DIFFERS = _rule(
    "served-config-differs",
    Severity.ERROR,
    "The server runs a model with another config than the repository's.",
    "The config was changed and not loaded again, or the model was loaded with a config of its own, which a plain load "
    "does not take back.",
    '{"version": "2.51.0", "models": {"example": {"versions": {"1": "READY"}, '
    '"config": {"backend": "python", "max_batch_size": 4}}}}',
)
COMPLETED = _rule(
    "served-config-completed",
    Severity.INFO,
    "The server's auto-complete filled a field that the repository leaves out.",
    "Write it down where the deployment relies on it: another release or another model file may fill it otherwise.",
    '{"version": "2.51.0", "models": {"example": {"versions": {"1": "READY"}, "config": {"backend": "python", '
    '"max_batch_size": 8, "dynamic_batching": {}}}}}',
)
UNKNOWN = _rule(
    "served-model-unknown",
    Severity.WARNING,
    "The server has loaded a model that the repository does not hold.",
    "It has another repository too, or the model's directory was removed while it ran.",
    '{"version": "2.51.0", "models": {"example": {"versions": {"1": "READY"}}, "other": {"versions": {"1": "READY"}}}}',
)
RELEASE = _rule(
    "served-release-differs",
    Severity.WARNING,
    "The server is another release than the one judged for.",
    "Fields and defaults follow the release; without `--release` that of the server is taken, where it is known.",
    '{"version": "1.0.0", "models": {"example": {"versions": {"1": "READY"}}}}',
)
RULES = (NOT_READY, VERSION, DIFFERS, COMPLETED, UNKNOWN, RELEASE)


def versions(model: Model, served: Served) -> Iterator[Finding]:
    """Versions that should be ready and are not, and others that are."""
    wanted = [version.number for version in model.served]
    for number in wanted:
        state = served.versions.get(number, State("not loaded"))
        if state.state != READY:
            reason = f": {state.reason}" if state.reason else ""
            yield model.find(
                NOT_READY,
                f"version {number} of {model.name} is {state.state}{reason}",
                says=state.reason or None,
                hint="load it, or look with `tritune check` why it is refused",
            )
    for number in served.ready:
        if number not in wanted:
            listed = ", ".join(map(str, wanted)) or "none"
            yield model.find(
                VERSION,
                f"version {number} of {model.name} is served; the repository chooses {listed}",
                "version_policy",
                hint="load the model again",
            )


def config(model: Model, served: ModelConfig) -> Iterator[Finding]:
    """The config in force against the one Triton would make of the repository's."""
    again = f"load the model again{_other_config(model)}; what it was loaded with by hand, load by hand again"
    for one in differences(_expected(model, served), served):
        written = _is_written(model.written, one)
        root = str(one.path[0])
        if not written and (_by_place(one) or (one.right is None and one.path[0] == "instance_group")):
            continue  # of a group that the core makes by itself and the server has not, those that it has tell
        completes = not written and root in _COMPLETED and not model.target.strict
        mine = one.left if one.left is not None else "nothing"
        other = one.right if one.right is not None else "nothing"
        yield model.find(
            COMPLETED if completes else DIFFERS,
            f"{one.label}: the server has {other}, the repository {mine if written else 'leaves it out'}",
            *one.path,
            hint="write it into the config" if completes else again,
        )


def _other_config(model: Model) -> str:
    """What else may be the reason: the server was started with `--model-config-name`, and here no name is given."""
    if model.target.config_name is not None:
        return ""
    named = (file.removesuffix(".pbtxt") for file in list_directory(model.directory / "configs"))
    known = " or ".join(f"--config-name {name}" for name in named)
    return f", or say {known} if the server was started so" if known else ""


def _by_place(one: Difference) -> bool:
    """Whether a field follows from the server: how it runs a backend, the GPUs of a group that lists none."""
    return one.path[0] == "runtime" or (one.path[0] == "instance_group" and one.path[-1] == "gpus")


def _expected(model: Model, served: ModelConfig) -> ModelConfig:
    """The config as the core would complete it; what depends on unknown GPUs is taken from the server."""
    expected = pb().ModelConfig()
    expected.CopyFrom(model.completed)
    del expected.instance_group[:]
    for own in model.instances:
        group = expected.instance_group.add()
        if own.written:
            group.CopyFrom(model.config.instance_group[own.index])
        group.name = own.name
        other = next((one for one in served.instance_group if one.name == own.name), None)
        if own.kind is not None:
            group.kind, group.count = pb().ModelInstanceGroup.Kind.Value(own.kind), own.count
        elif other is not None:
            group.kind = other.kind
            group.count = own.count if own.written and group.count > 0 else other.count
    for pinned in ("input_pinned_memory", "output_pinned_memory") if expected.platform != ENSEMBLE else ():
        if not expected.optimization.HasField(pinned):
            getattr(expected.optimization, pinned).enable = True
    if expected.platform == ENSEMBLE and not expected.HasField("model_transaction_policy"):
        expected.model_transaction_policy.CopyFrom(served.model_transaction_policy)
    return expected


def _is_written(message: Message, one: Difference) -> bool:
    """Whether the repository's config itself sets a field, or a part of it."""
    value: Any = message
    for step in one.path:
        if isinstance(step, int):
            if step >= len(value):
                return False
            value = value[step]
        elif hasattr(value, "DESCRIPTOR"):
            field = fields_of(value.DESCRIPTOR)[step]
            if not any(field.name == present.name for present, _ in value.ListFields()):
                return False
            value = getattr(value, step)
        else:
            if step not in value:
                return False
            value = value[step]
    return True
