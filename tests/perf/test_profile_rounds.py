"""What a round of a profile sends: what wakes the model up is not counted."""

from __future__ import annotations

from typing import Any

import numpy as np

from perf.client import Exchange
from perf.curve import Setting
from perf.profile import WAKE_S, WARM_S, _One
from perf.profile_plan import LEAST_PER_CLIENT, RUN_S, Costs, Load, Points, levels


class Counter:
    """Counts what is executed, as Triton does."""

    def __init__(self) -> None:
        self.sent: list[tuple[Load, float]] = []
        self.executed = 0

    def stats(self, name: str) -> dict[str, Any]:
        part = {"count": self.executed, "ns": self.executed * 1_000_000}
        return {
            "batch_stats": [
                {"batch_size": 1, **dict.fromkeys(("compute_input", "compute_infer", "compute_output"), part)}
            ]
        }


class Sending(_One):
    """Answers at once; ten requests a run."""

    def _exchange(self, load: Load, seconds: float, least: int) -> Exchange:
        counter: Any = self.target
        counter.sent.append((load, seconds))
        counter.executed += 10
        return Exchange(np.arange(10) * 1000, np.full(10, 3_000_000), 10_000)


def test_a_model_is_woken_up_before_every_round_and_every_run() -> None:
    counter = Counter()
    points = Points(rows=(1,), lengths=(6, 60), least_rows=(1,), least_lengths=(6, 60))
    found = levels(points, 2)[-1:]
    costs = Costs(Setting(2, 1), cores=2)
    one = Sending(counter, "m", {}, costs, found, True, lambda costs, least: None)  # type: ignore[arg-type]
    rounds = one.rounds(10, 1e12)
    first, level = next(rounds)
    loads = list(level.loads)
    woken = (loads[0]._replace(clients=2), WAKE_S)
    a_round = [woken, *(each for load in loads for each in ((load, WARM_S), (load, RUN_S)))]
    assert counter.sent[len(loads) :] == a_round, "after an answer to each load, which tells what they cost"
    counter.sent.clear()
    second, _ = next(rounds)
    assert counter.sent == a_round
    assert LEAST_PER_CLIENT > 1
    assert {run.executions for run in (*first, *second)} == {10}
