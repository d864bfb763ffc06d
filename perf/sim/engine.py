"""One run of the simulator, compiled where numba is installed. Layer: sim, above its kernel."""

from __future__ import annotations

from collections.abc import Sequence

from perf.sim import kernel
from perf.sim.compiled import compiled_run
from perf.sim.config import BatcherConfig
from perf.sim.prediction import Prediction, Trace
from perf.sim.service import ServiceModel
from perf.sim.state import Machine, Stage, lay_out
from perf.sim.traffic import Arrivals
from tooling.errors import MissingError, install_extra

IDEAL = Machine()
PLAIN_REQUESTS = 20_000  # below, plain Python is done before numba is loaded


def simulate(
    config: BatcherConfig,
    arrivals: Arrivals,
    service: ServiceModel,
    *,
    machine: Machine = IDEAL,
    warm_up: int = 0,
    seed: int = 0,
) -> Prediction:
    """What the clients of one model would see. Deterministic: equal arguments give equal figures.

    The first `warm_up` requests are not counted; `seed` is that of the scatter of service times and lost wake-ups.
    """
    return run([Stage(config, service)], arrivals, machine=machine, seed=seed).predict(warm_up=warm_up)


def run(
    stages: Sequence[Stage],
    arrivals: Arrivals,
    *,
    machine: Machine = IDEAL,
    seed: int = 0,
    compiled: bool | None = None,
) -> Trace:
    """Every request and execution of a run through one model, or through the stages of an ensemble in a row.

    `compiled` asks for numba's kernel or for plain Python, which gives the same some hundred times slower; by default
    long runs take numba's where that is installed. Raises MissingError when numba is asked for and is not installed.
    """
    layout = lay_out(stages, arrivals, machine, seed)
    wanted = arrivals.count >= PLAIN_REQUESTS if compiled is None else compiled
    enter = compiled_run() if wanted else None
    if enter is not None:
        enter(layout.memory)
    elif compiled:
        raise MissingError("numba is not installed", where="simulator", hint=install_extra("tune"))
    else:
        kernel.run(layout.memory.data)
    return Trace(
        layout=layout,
        instances=tuple(s.config.instance_count for s in stages),
        client_overhead_ns=machine.client_overhead_us * 1_000,
        seed=seed,
    )
