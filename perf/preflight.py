"""Whether a workload fits a configuration, and what will keep its figures from telling much. Layer: above workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from perf.workload import Workload
from tooling.config.knobs import read
from tooling.errors import UsageError

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

STREAMED = "adds -i grpc --async --streaming for decoupled models"


def fitted(workload: Workload, config: ModelConfig) -> Workload:
    """The workload as this model can be measured with it: a decoupled model is called over a stream.

    Raises UsageError for requests that the model, or one run of perf_analyzer, cannot take.
    """
    most, largest = config.max_batch_size, max(workload.batch)
    if most and largest > most:
        raise UsageError(
            f"batch {largest} > max_batch_size {most}",
            where="workload, `batch`",
            got=largest,
            expected=f"at most {most}",
        )
    if most and largest > 1 and len(set(workload.batch)) > 1:
        raise UsageError(
            "one run of perf_analyzer sends requests of one size",
            where="workload, `batch`",
            got=", ".join(map(str, sorted(set(workload.batch)))),
            expected="one size, as the model has a max_batch_size above 0",
        )
    if most and largest > 1 and len(set(workload.lengths)) > 1:
        raise UsageError(
            "perf_analyzer stacks only rows of equal length into a request",
            where="workload",
            got=f"batch {largest}, lengths {min(workload.lengths)}–{max(workload.lengths)}",
            expected="one length, as the client pads its rows to the longest",
        )
    if config.model_transaction_policy.decoupled and workload.streams is None:
        return workload.model_copy(update={"streams": 1})
    return workload


def notes(config: ModelConfig) -> Iterator[str]:
    """What is done otherwise than usual because of this config."""
    if config.model_transaction_policy.decoupled:
        yield f"{config.name or 'measuring'}: {STREAMED}"


def cautions(workload: Workload, config: ModelConfig) -> Iterator[str]:
    """What a measurement under this workload will not show."""
    knobs = read(config)
    filled = config.max_batch_size * max(knobs.instance_count or 1, 1)
    rows = (workload.concurrency or 0) * max(workload.batch)
    if knobs.dynamic_batching and workload.concurrency is not None and rows < filled:
        yield (
            f"highest concurrency {workload.concurrency} < max_batch_size x instances ({filled}): batches cannot fill, "
            "so larger ones will not show a gain"
        )


def cache_cautions(configs: Iterable[ModelConfig], *, left_out: bool) -> Iterator[str]:
    """What a response cache does to a measurement, or that it is `left_out` of it; whether a server that runs already
    has one its models do not tell."""
    if not any(config.response_cache.enable for config in configs):
        return
    if left_out:
        yield "the response cache is on: it is left out while measuring, so that every request is executed"
        return
    effect = "repeated requests measure the cache; use varied inputs or turn it off"
    yield f"the response cache is on, if the server was started with --cache-config: {effect}"


def without_cache(config: ModelConfig) -> ModelConfig:
    """The config as it is measured where every request is to be executed."""
    if not config.response_cache.enable:
        return config
    plain = type(config)()
    plain.CopyFrom(config)
    plain.ClearField("response_cache")
    return plain
