"""Durations and sizes as people write them ("2ms", "1GiB") to and from integers; the largest count. Layer: bottom."""

from __future__ import annotations

import re

from tooling.errors import UsageError

_DURATION_US = {"us": 1, "µs": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000, "h": 3_600_000_000}
_SIZE = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-zµ]*)")
MOST = 1_000_000
"""Above this a count, a length or a rate is a slip of the keyboard."""
MOST_SEED = 2**32 - 1
"""What every library that draws takes."""


def _pattern(units: dict[str, int]) -> str:
    return rf"[0-9]{{1,18}}(\.[0-9]{{1,18}})?\s*({'|'.join(units)})|0+(\.0+)?"


DURATION_PATTERN = _pattern(_DURATION_US)
SIZE_PATTERN = _pattern(_SIZE)
"""What the parsers below take, for schemas; a few fractions they refuse."""


def _parse(text: str, units: dict[str, int], what: str, example: str) -> int:
    match = _NUMBER.fullmatch(text.strip())
    number, unit = match.groups() if match else ("", "")
    if match and unit in units:
        whole, _, fraction = number.partition(".")
        scaled = int(whole + fraction) * units[unit]
        shift: int = 10 ** len(fraction)
        value, rest = divmod(scaled, shift)
        largest = max(units, key=lambda one: units[one])
        if value > MOST * units[largest]:
            raise UsageError("too large", got=f"`{text}`", expected=f"{MOST}{largest} or less")
        if rest == 0:
            return value
    if match and number.strip("0.") == "" and unit == "":
        return 0
    raise UsageError(
        f"not a {what}", got=f"`{text}`", expected=f"a number with a unit ({', '.join(units)}), like {example}"
    )


def parse_duration_us(text: str) -> int:
    """Microseconds of a typed duration such as `500us`, `2ms`, `1.5s`; a bare `0` is zero.

    Raises UsageError when the unit is missing or the value is not a whole number of microseconds.
    """
    return _parse(text, _DURATION_US, "duration", "`2ms`")


def parse_size(text: str) -> int:
    """Bytes of a typed size such as `64MiB`. Raises UsageError when the unit is missing."""
    return _parse(text, _SIZE, "size", "`1GiB`")


def format_duration_us(value_us: float) -> str:
    """A duration for people: the largest unit that keeps three significant digits (`850us`, `24.1ms`, `1.2s`)."""
    if value_us < 1_000:
        return f"{value_us:.0f}us"
    for unit, scale in (("ms", 1_000), ("s", 1_000_000)):
        if value_us < scale * 1_000 or unit == "s":
            return f"{value_us / scale:.3g}{unit}" if value_us < 100 * scale else f"{value_us / scale:.0f}{unit}"
    raise AssertionError("unreachable")
