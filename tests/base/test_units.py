"""Durations and sizes: every unit, exactness, and the message of a wrong one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.errors import UsageError
from tooling.units import format_duration_us, parse_duration_us, parse_size


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("0", 0), ("0us", 0), ("500us", 500), ("2ms", 2_000), ("1.5ms", 1_500), ("0.25s", 250_000), ("3s", 3_000_000),
        ("4m", 240_000_000), ("1h", 3_600_000_000), (" 2 ms ", 2_000), ("7µs", 7),
    ],
)  # fmt: skip
def test_durations(text: str, us: int) -> None:
    assert parse_duration_us(text) == us


@pytest.mark.parametrize(
    "text", ["2", "ms", "", "2 parsecs", "-1ms", "1e3us", "0.5us", "1,5ms", "2ms 3us", "nan", "١ms"]
)
def test_a_wrong_duration_names_the_value_and_the_form(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration_us(text)
    problem = caught.value.problems[0]
    assert problem.got == f"`{text}`"
    assert problem.expected is not None
    assert "2ms" in problem.expected


@given(st.integers(0, 10**9))
def test_whole_microseconds_survive(us: int) -> None:
    assert parse_duration_us(f"{us}us") == us


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 << 20), ("1GiB", 1 << 30), ("2KB", 2_000), ("5B", 5)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_above_a_million_of_the_largest_unit_a_number_is_a_slip() -> None:
    """Waits and clocks count no further than 292 years."""
    assert parse_duration_us("1000000h") == 10**6 * 3_600_000_000
    assert parse_size("1000000GiB") == 10**6 << 30
    for text, parse, most in (
        ("1000001h", parse_duration_us, "1000000h"),
        (f"{'9' * 18}s", parse_duration_us, "1000000h"),
        ("1000000.5GiB", parse_size, "1000000GiB"),
        (f"{'9' * 18}KB", parse_size, "1000000GiB"),
    ):
        with pytest.raises(UsageError) as caught:
            parse(text)
        assert str(caught.value) == f"too large (got `{text}`; expected {most} or less)"


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0us"), (850, "850us"), (1_000, "1ms"), (24_100, "24.1ms"), (124_000, "124ms"), (999_400, "999ms"),
        (1_234_567, "1.23s"), (75_000_000, "75s"), (240_000_000, "240s"),
    ],
)  # fmt: skip
def test_durations_for_people(us: float, text: str) -> None:
    assert format_duration_us(us) == text
