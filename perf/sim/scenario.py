"""One recorded or imagined scenario as a file says it, and what it predicts. Layer: sim, above its engine."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from perf.sim.config import BatcherConfig
from perf.sim.engine import simulate
from perf.sim.prediction import Prediction
from perf.sim.service import ServiceModel
from perf.sim.state import Machine
from perf.sim.traffic import Arrivals
from perf.validation import validated
from tooling.units import MOST

TIMER_LATENESS_US = 300
"""How much later a batch waits than its delay says: 0.2 to 0.4 ms in traffic recorded on a 2-core server."""


Milliseconds = Annotated[float, Field(ge=0, le=1e6)]
Length = Annotated[int, Field(ge=1, le=MOST)]


class Scenario(BaseModel):
    """Requests of one row at explicit times, [send time in s, length], to a model that takes a_ms + c_ms × rows.

    `execution_overhead_ms` is added to every execution, `client_overhead_ms` to every latency. Requests of different
    length never share a batch. `id`, `rate_rps`, `lengths`, `executions` and `latency_s` describe where a recorded
    scenario comes from and what was seen; they do not change the prediction.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    max_batch_size: int = Field(ge=0, le=MOST)
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1, le=MOST)], ...] = ()
    max_queue_delay_us: int = Field(default=0, ge=0, lt=2**64)
    instances: int = Field(default=1, ge=1, le=MOST)
    a_ms: Milliseconds
    c_ms: Milliseconds = 0
    arrivals: tuple[tuple[Annotated[float, Field(ge=0, le=1e8)], Length], ...] = Field(min_length=1)
    execution_overhead_ms: Milliseconds = 0
    client_overhead_ms: Milliseconds = 0
    id: str = ""
    rate_rps: float | None = None
    lengths: tuple[int, ...] = ()
    executions: tuple[Any, ...] = ()
    latency_s: tuple[float, ...] = ()


def read_scenario(data: object, where: object = "scenario") -> Scenario:
    """A checked scenario from JSON data. Raises UsageError with every problem of it."""
    return validated(Scenario, data, where)


def predict_scenario(scenario: Scenario) -> Prediction:
    """What the simulator says of it. With one length only, the model's input is taken to be of fixed size."""
    arrivals = sorted(scenario.arrivals)
    lengths = [length for _, length in arrivals]
    config = BatcherConfig(
        max_batch_size=scenario.max_batch_size,
        preferred_batch_size=scenario.preferred_batch_sizes,
        max_queue_delay_us=scenario.max_queue_delay_us,
        instance_count=scenario.instances,
        shape_checked=len(set(lengths)) > 1,
    )
    return simulate(
        config,
        Arrivals.at([time for time, _ in arrivals], lengths=lengths),
        ServiceModel.linear(scenario.a_ms, scenario.c_ms, scenario.execution_overhead_ms),
        machine=Machine(
            client_overhead_us=round(scenario.client_overhead_ms * 1_000), timer_lateness_us=TIMER_LATENESS_US
        ),
    )


def scenario_result(prediction: Prediction) -> dict[str, Any]:
    """The figures of a scenario as JSON: latencies in ms; `batch_histogram` maps rows to executions."""
    figures = {"mean_ms": prediction.avg_us, "p50_ms": prediction.p50_us}
    figures |= {"p90_ms": prediction.p90_us, "p99_ms": prediction.p99_us}
    (stage,) = prediction.stages
    return {
        **{name: None if us is None else us / 1_000 for name, us in figures.items()},
        "executions": stage.execution_count,
        "batch_histogram": {str(rows): count for rows, count in stage.batch_histogram.items()},
    }
