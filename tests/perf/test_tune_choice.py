"""Which setting is taken, given what was measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perf.compare import Verdict
from perf.grid import Candidate
from perf.measurement import Measurement
from perf.pooled import REQUESTS_FILE
from perf.profile_export import Requests, write_requests
from perf.slo import Slo
from perf.trial import Figures, Spread, Trial, choose, ties, within_limit
from tooling.config.knobs import Knobs

DEFAULT = Trial(Candidate("default", Knobs()), "default")


def point(**figures: Any) -> Measurement:
    return Measurement(status="ok", load={"mode": "concurrency", "value": 8}, **figures)


def trial(name: str, verdict: Verdict, changed: int = 1, **other: Any) -> Trial:
    return Trial(Candidate(name, Knobs(), ("knob",) * changed), "compared", verdict=verdict, **other)


def better(ratio: float, half: float = 0.02) -> Verdict:
    return Verdict("better", ratio, ratio - half, ratio + half, 6)


TIE = Verdict("tie", 1.01, 0.9, 1.12, 18)
WORSE = Verdict("worse", 0.8, 0.75, 0.85, 6)


def chosen(*trials: Trial, default: Trial = DEFAULT) -> str | None:
    taken = choose(default, trials)
    return taken.candidate.id if taken else None


def test_best_of_the_better_ones() -> None:
    assert chosen(trial("a", better(1.2)), trial("b", better(1.5), 3), trial("c", TIE)) == "b"


def test_within_three_percent_of_the_best_means_fewest_changes() -> None:
    assert chosen(trial("a", better(1.48)), trial("b", better(1.5), 2), trial("c", better(1.2))) == "a"
    assert chosen(trial("a", better(1.48), 2), trial("b", better(1.5), 2)) == "b"


def test_an_unsure_figure_is_not_taken_for_the_better_one() -> None:
    """Measured: 1.44× [1.00–2.06] with one change beside 2.04× [1.87–2.21] with three, whose intervals overlap."""
    unsure, best = better(1.44, 0.44), better(2.04, 0.17)
    assert chosen(trial("unsure", unsure), trial("best", best, 3)) == "best"


def test_padding_is_asked_for_only_if_it_is_surely_better() -> None:
    """Clients have to do it; by its figure alone it would win here each time."""
    plain = trial("plain", better(1.5), gains=(0.40, 0.42, 0.38, 0.41, 0.39, 0.43))
    about = trial("about", better(1.6), gains=(0.55, 0.38, 0.52, 0.40, 0.57, 0.39))
    surely = trial("surely", better(1.6), gains=(0.52, 0.53, 0.51, 0.52, 0.50, 0.55))
    about, surely = (replace(one, candidate=replace(one.candidate, edges=(16, 64))) for one in (about, surely))
    assert chosen(plain, about) == "plain"
    assert chosen(plain, surely) == "surely"
    assert chosen(about) == "about", "nothing else is better than the current config"


def test_what_the_pairs_do_not_tell_apart_from_the_choice_is_named() -> None:
    """By the pairs among themselves: the intervals against the current config all overlap."""
    taken = trial("taken", better(1.5, 0.3), gains=(0.40, 0.22, 0.58, 0.41, 0.29, 0.53))
    like = trial("like", better(1.48, 0.3), gains=(0.39, 0.22, 0.55, 0.41, 0.28, 0.51))
    slower = trial("slower", better(1.3, 0.3), gains=(0.25, 0.08, 0.42, 0.26, 0.16, 0.38))
    late = trial("late", better(1.5, 0.3), gains=taken.gains, admissible=False)
    found = ties(taken, [taken, like, slower, late, trial("screened", TIE)])
    assert [(one["id"], one["outcome"], one["pairs"]) for one in found] == [("like", "tie", 6)]
    assert found[0]["ratio"] == pytest.approx(math.exp(-0.07 / 6))
    assert ties(None, [like]) == ()


def test_nothing_better_keeps_the_default() -> None:
    assert chosen(trial("a", TIE), trial("b", WORSE)) == "default"
    assert chosen() == "default"


def test_over_the_limit_is_never_taken() -> None:
    default = Trial(DEFAULT.candidate, "default", admissible=True)
    assert chosen(trial("a", better(1.5), admissible=False), default=default) == "default"


def test_default_over_the_limit_gives_way_even_to_a_slower_one() -> None:
    default = Trial(DEFAULT.candidate, "default", admissible=False)
    assert chosen(trial("a", WORSE, admissible=True), default=default) == "a"
    assert chosen(trial("a", better(1.5), admissible=False), default=default) is None
    assert chosen(default=default) is None


def test_limits_are_kept_by_the_median() -> None:
    points = [point(p99_us=us, throughput_rps=90.0) for us in (40_000, 45_000, 90_000)]
    assert within_limit(points, Slo.parse("p99<=50ms")) is True
    assert within_limit(points, Slo.parse("p99<44ms")) is False
    assert within_limit(points, Slo.parse("p99<50ms,throughput>100")) is False
    assert within_limit(points, Slo()) is None
    assert within_limit([], Slo.parse("p99<1us")) is None
    assert within_limit([point(), *points], Slo.parse("p99<1s")) is None, "one run has no p99"


def test_percentiles_are_those_of_all_requests_together(tmp_path: Path) -> None:
    """A pause that one run of three has: the median of the p99 hides it, one in fifty of all requests does not."""
    runs = []
    for number, slow in enumerate((0, 0, 20)):
        sent = np.arange(200, dtype=np.int64) * 1_000_000
        took = np.where(np.arange(200) < slow, 90_000_000, 10_000_000 + number)
        (tmp_path / str(number)).mkdir()
        write_requests(
            tmp_path / str(number) / REQUESTS_FILE, Requests(sent, sent + took, sent + took, np.ones_like(sent), {})
        )
        p99 = 90_000.0 if slow else 10_000.0
        runs.append(point(raw_dir=str(tmp_path / str(number)), p50_us=10_000.0, p99_us=p99, requests=200))
    figures = Figures.of(runs)
    assert figures is not None and figures.requests == 600
    assert figures.p99_us == Spread(90_000.0, 10_000.0, 90_000.0)
    assert figures.p50_us.middle == pytest.approx(10_000, abs=0.01)
    assert within_limit(runs, Slo.parse("p99<80ms")) is False
    assert within_limit(runs, Slo.parse("p95<80ms")) is True, "three in a hundred are slow"
    (tmp_path / "2" / REQUESTS_FILE).unlink()
    assert within_limit(runs, Slo.parse("p99<80ms")) is True, "without the times of every run it is the median"


def test_figures_are_median_and_range() -> None:
    figures = Figures.of([point(throughput_rps=r, inference_count=6, execution_count=2) for r in (3.0, 1.0, 2.0)])
    assert figures is not None
    assert (figures.runs, figures.throughput_rps, figures.mean_batch) == (3, Spread(2.0, 1.0, 3.0), 3.0)
    assert Figures.of([]) is None


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (DEFAULT, "as configured"),
        (trial("a", TIE), "tie (not distinguishable)"),
        (trial("a", better(1.5), admissible=False), "better; limits not kept"),
        (Trial(Candidate("a", Knobs()), "failed", reason="refused"), "failed"),
        (Trial(Candidate("a", Knobs()), "screened out", screen_ratio=0.713), "screened out"),
    ],
)
def test_trials_survive_json(made: Trial, words: str) -> None:
    assert made.outcome == words
    assert Trial.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    full = Trial(
        made.candidate, "compared", Figures.of([point(throughput_rps=1.0)]), 1.1, TIE, "x", True, Figures.of([point()])
    )
    assert Trial.from_dict(json.loads(json.dumps(full.to_dict()))) == full
