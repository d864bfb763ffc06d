"""A mix of whole numbers (lengths, batch sizes): what users write, as a sequence. Layer: bottom of perf."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping
from math import exp, gcd, log
from typing import Any

MOST = 397
"""A mix written as shares becomes a sequence of at most this many numbers; the largest one always keeps a place."""
_SAMPLES = 199
_P95 = statistics.NormalDist().inv_cdf(0.95)
_FORMS = {
    "uniform": ("min", "max"),
    "normal": ("mean", "std"),
    "lognormal": ("median", "p95"),
}
"""The keys that each distribution needs."""


def expand(written: object) -> object:
    """The sequence of a number, of shares ({12: 40, 128: 10}), or of a distribution; anything else as it is.

    Raises ValueError for a mapping that is neither. The order has no trend and is always the same.
    """
    if isinstance(written, int) and not isinstance(written, bool):
        return (written,)
    if not isinstance(written, Mapping):
        return written
    if "distribution" in written:
        return _mixed(_quantiles(dict(written)))
    return _mixed(_dealt(_shares(written)))


def histogram(numbers: Iterable[int]) -> dict[int, int]:
    """How often each number occurs, in ascending order: what `expand` reads."""
    counts: dict[int, int] = {}
    for number in sorted(numbers):
        counts[number] = counts.get(number, 0) + 1
    return counts


def _mixed(numbers: list[int]) -> tuple[int, ...]:
    random.Random(0).shuffle(numbers)
    return tuple(numbers)


def _shares(written: Mapping[Any, Any]) -> dict[int, float]:
    try:
        shares = {int(number): float(share) for number, share in written.items()}
    except (TypeError, ValueError):
        raise ValueError("shares are written as {NUMBER: SHARE}, like {12: 40, 128: 10}") from None
    if not shares or min(shares.values()) < 0 or not 0 < sum(shares.values()) < float("inf"):
        raise ValueError("shares must not be negative, and not all 0")
    return {number: share for number, share in sorted(shares.items()) if share}


def _dealt(shares: Mapping[int, float]) -> list[int]:
    """Each number as often as its share says: exactly where that takes at most MOST places."""
    if all(share == int(share) for share in shares.values()):
        divisor = gcd(*(int(share) for share in shares.values()))
        if sum(shares.values()) / divisor <= MOST:
            return [number for number, share in shares.items() for _ in range(int(share) // divisor)]
    whole = sum(shares.values())
    exact = {number: share / whole * MOST for number, share in shares.items()}
    places = {number: int(value) for number, value in exact.items()}
    places[max(shares)] = max(places[max(shares)], 1)
    by_rest = sorted(exact, key=lambda number: places[number] - exact[number])
    for number in by_rest[: max(0, MOST - sum(places.values()))]:
        places[number] += 1
    return [number for number, count in places.items() for _ in range(count)]


def _quantiles(written: dict[str, Any]) -> list[int]:
    """Evenly spaced quantiles of a distribution, cut to its min and max."""
    name = written.pop("distribution")
    if name not in _FORMS:
        raise ValueError(f"no distribution `{name}`: {', '.join(_FORMS)}")
    unknown = written.keys() - {*_FORMS[name], "min", "max"}
    missing = [key for key in _FORMS[name] if key not in written]
    if unknown or missing:
        keys = ", ".join(dict.fromkeys((*_FORMS[name], "min", "max")))
        raise ValueError(f"a {name} distribution has the keys {keys} (the first two are needed)")
    try:
        values = {key: float(value) for key, value in written.items()}
    except (TypeError, ValueError):
        raise ValueError(f"the keys of a {name} distribution are numbers") from None
    low, high = values.get("min", 1.0), values.get("max", float("inf"))
    if not 1 <= low <= high:
        raise ValueError("min must be at least 1, and max at least min")
    places = [(i + 0.5) / _SAMPLES for i in range(_SAMPLES)]
    found = [_quantile(name, values, place) for place in places]
    return [round(min(max(value, low), high)) for value in found]


def _quantile(name: str, values: Mapping[str, float], place: float) -> float:
    if name == "uniform":
        return values["min"] - 0.5 + place * (values["max"] - values["min"] + 1)
    normal = statistics.NormalDist()
    if name == "normal":
        if values["std"] < 0:
            raise ValueError("std must not be negative")
        return values["mean"] + values["std"] * normal.inv_cdf(place)
    if not 0 < values["median"] <= values["p95"]:
        raise ValueError("median must be positive, and p95 at least the median")
    return exp(log(values["median"]) + log(values["p95"] / values["median"]) / _P95 * normal.inv_cdf(place))
