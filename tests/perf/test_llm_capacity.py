"""How many streams keep the limits: what the simulator proposes, what is measured next, and what is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perf.llm_capacity import Level, confirm, predict
from perf.llm_setting import Setting
from perf.llm_traffic import LlmTraffic
from perf.llm_tune import Simulated
from perf.sim.llm import StepTime
from perf.slo import Slo

ITL = Slo.parse("itl_p95<20ms")


def engine(itl_ms: float) -> Callable[[int], dict[str, float]]:
    """An engine whose tokens are `itl_ms` apart for each stream; 10 tokens a second of each."""
    return lambda streams: {"itl_p95_us": streams * itl_ms * 1e3, "tokens_per_s": 10.0 * streams}


@pytest.mark.parametrize(("itl_ms", "most"), [(1.0, 19), (3.0, 6), (0.01, 256), (25.0, None)])
def test_the_most_that_keep_a_limit_are_predicted(itl_ms: float, most: int | None) -> None:
    assert predict(engine(itl_ms), ITL) == most


def test_more_streams_may_be_needed_for_a_rate() -> None:
    assert predict(engine(1.0), Slo.parse("itl_p95<20ms,tokens_per_s>100")) == 19
    assert predict(engine(1.0), Slo.parse("itl_p95<20ms,tokens_per_s>500")) is None


def test_the_simulated_engine_is_asked() -> None:
    """2 ms and 2 more for each sequence: 8 at once are 18 ms apart, 9 are 20."""
    law = StepTime(fixed_us=2_000, per_token_us=0, per_sequence_us=2_000, per_kv_token_us=0)
    simulated = Simulated({}, law, 100_000)
    traffic = LlmTraffic((1,), (50,), clients=4, requests=32)
    most = predict(lambda n: simulated.figures(Setting(64, 2048), traffic.of_streams(n)), ITL)
    assert most == 8


@pytest.mark.parametrize(
    ("itl_ms", "predicted", "known", "measured", "streams", "missed"),
    [
        (1.0, 19, [], [19, 24], 19, 24),
        (1.0, 12, [], [12, 15], 15, None),
        (1.0, 40, [], [40, 20], None, 20),
        (1.0, 16, [18], [23, 20], 18, 20),
        (1.0, 30, [22], [11, 16], 16, 22),
        (25.0, None, [], [1], None, 1),
        (1.0, 19, [19, 20], [], 19, 20),
    ],
)
def test_it_is_measured_around_the_prediction(
    itl_ms: float, predicted: int | None, known: list[int], measured: list[int], streams: int | None, missed: int | None
) -> None:
    asked: list[int] = []
    real = engine(itl_ms)

    def measure(number: int) -> dict[str, float]:
        asked.append(number)
        return real(number)

    found = confirm(predicted, [Level(n, real(n)) for n in known], measure, ITL, 2)
    assert asked == measured
    assert (found.streams, found.missed, found.predicted) == (streams, missed, predicted)
    assert [level.streams for level in found.levels] == sorted({*known, *measured})


def test_it_says_how_it_knows() -> None:
    real = engine(1.0)
    assert str(confirm(19, [], real, ITL, 2)) == (
        "19 concurrent streams at the limits, measured (24 missed them); the simulator said 19"
    )
    assert str(confirm(12, [], real, ITL, 2)).startswith("at least 15 concurrent streams at the limits, measured;")
    nothing = confirm(None, [], engine(25.0), ITL, 2)
    assert str(nothing) == (
        "no number of concurrent streams that was measured (1) keeps the limits; the simulator said none"
    )
    assert nothing.to_dict()["how"] == "measured"
