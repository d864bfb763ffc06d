"""The verdict's error rate and power on simulated runs, and its edges."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from perf.compare import ALPHA, LOOKS, T_QUANTILES, Verdict, gain, judge, round_order, settle

RUNS = 2_000


def decide(gains: np.ndarray) -> Verdict:
    for look in LOOKS:
        verdict = judge(gains[:look].tolist())
        if verdict.outcome != "undecided":
            return verdict
    raise AssertionError("the last look must decide")


def outcomes(ratio: float, cv: float, seed: int) -> Counter[str]:
    """Verdicts of RUNS tunings whose B is `ratio` times A, each run scattering with the coefficient of variation."""
    rng = np.random.default_rng(seed)
    sigma = math.sqrt(math.log1p(cv**2))
    noise = rng.normal(0, sigma, (RUNS, LOOKS[-1], 2))
    return Counter(decide(row).outcome for row in math.log(ratio) + noise[:, :, 1] - noise[:, :, 0])


def test_quantiles_are_students() -> None:
    assert tuple(T_QUANTILES) == LOOKS
    for pairs, quantile in T_QUANTILES.items():
        # SciPy 1.15, the last for Python 3.10, is right to eleven digits.
        assert quantile == pytest.approx(float(stats.t.ppf(1 - ALPHA / 2, pairs - 1)), rel=1e-10)


@pytest.mark.parametrize("cv", [0.01, 0.05, 0.15])
def test_identical_settings_are_rarely_declared_different(cv: float) -> None:
    counts = outcomes(1.0, cv, seed=1)
    assert (counts["better"] + counts["worse"]) / RUNS <= 0.03
    assert counts["tie"] > 0


@pytest.mark.parametrize(("ratio", "word"), [(1.1, "better"), (1 / 1.1, "worse")])
def test_ten_percent_is_found(ratio: float, word: str) -> None:
    counts = outcomes(ratio, 0.05, seed=2)
    assert counts[word] / RUNS >= 0.80
    assert counts.total() == RUNS


def test_quiet_equal_settings_tie_at_the_first_look() -> None:
    verdict = judge([0.001, -0.001, 0.002, -0.002, 0.0, 0.0])
    assert (verdict.outcome, verdict.pairs, verdict.word) == ("tie", 6, "tie (within ±3%)")


def test_a_sure_but_small_gain_is_a_tie() -> None:
    verdict = judge([0.0101, 0.0099] * 3)
    assert verdict.low > 1
    assert verdict.outcome == "tie"


def test_noise_is_undecided_until_the_last_look() -> None:
    noise = [0.3, -0.3]
    assert judge(noise * 3).outcome == judge(noise * 6).outcome == "undecided"
    assert judge(noise * 9).word == "tie (not distinguishable)"
    assert settle(judge(noise * 3)).outcome == "tie"


def test_settle_keeps_what_is_decided() -> None:
    better = judge([0.2, 0.21] * 3)
    assert better.outcome == "better"
    assert settle(better) == better


def test_unplanned_look_is_refused() -> None:
    with pytest.raises(ValueError, match="7 pairs was not planned"):
        judge([0.0] * 7)


def test_equal_runs_give_an_interval_of_no_width() -> None:
    verdict = judge([math.log(1.5)] * 6)
    assert (verdict.outcome, verdict.low, verdict.high) == ("better", pytest.approx(1.5), pytest.approx(1.5))
    assert str(verdict) == "1.50× [1.50–1.50]"


def test_order_alternates_and_gain_is_antisymmetric() -> None:
    assert ["".join(round_order("ABC", number)) for number in range(4)] == ["ABC", "CBA", "ABC", "CBA"]
    assert gain(100, 110) == pytest.approx(-gain(110, 100))
    assert gain(100, 110) > 0
