"""What a bench takes from its study, so without any server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perf.bench import Bench, long_enough_ms
from perf.grid import Candidate
from perf.measurement import Measurement
from perf.study import Study
from perf.subject import CandidateFailed, Subject
from perf.target import Variant
from perf.workload import Workload
from tooling.config.knobs import Knobs
from tooling.errors import ExternalError, Refused

CANDIDATE = Candidate("a", Knobs(instance_count=1), ("instance_count",))


def run(
    side: str,
    status: Any = "ok",
    pair: int = 0,
    attempt: int = 1,
    record: str = "measurement",
    others: float = 0.0,
    candidate: str = "a",
    stage: str = "screen",
) -> dict[str, Any]:
    figures: dict[str, Any] = {"throughput_rps": 100.0 + attempt, "wall_s": 1.5, "foreign_cores": others}
    point = Measurement(status=status, load={"mode": "concurrency", "value": 8}, **figures)
    identity = {"candidate": candidate, "stage": stage, "pair": pair, "side": side, "attempt": attempt}
    return {"record": record, **identity, "raw": "raw/x", "measurement": point.to_dict(), "spent_s": 2.0}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Any]:
    """Make a bench on a study that holds these records; it has no target, so it can start nothing."""
    with Study(tmp_path, {}) as study:

        def make(*records: dict[str, Any]) -> Bench:
            for record in ({"record": "window", "window_ms": 450, "spent_s": 5.0}, *records):
                study.append(record)
            base, others = Variant("default", None), {name: Variant(name, None) for name in "ab"}
            subject = Subject("m", base, others, Workload(concurrency=8), tmp_path / "input.json", 300)
            return Bench(subject, study, None, None)  # type: ignore[arg-type]

        yield make


def test_pairs_and_time_come_from_the_study(bench: Any) -> None:
    made = bench(run("A"), run("B"), run("B", pair=1), run("A", pair=1))
    with made:
        made.prepare()
        assert (made.window_ms, made.spent_s) == (450, 5.0)
        assert made.run_s == pytest.approx(3 * 1.2 * 0.45 + 0.3)
        a, b = made.pair(CANDIDATE, "screen", 0)
        assert a.ok
        assert b.ok
        made.pair(CANDIDATE, "screen", 1)
        assert made.spent_s == 5.0 + 4 * 2.0
        assert made.run_s == pytest.approx(1.6)
        assert made.measured == 0


@pytest.mark.parametrize(
    ("rps", "latency_ms", "longest_run_s", "window_ms"),
    [
        (200.0, 40.0, math.inf, 300),  # as asked
        (5.0, 800.0, math.inf, 3_000),  # 15 requests
        (100.0, 2_000.0, math.inf, 4_000),  # two latencies
        (5.0, 800.0, 7.5, 2_000),  # what can be paid
        (5.0, 800.0, 1.0, 800),  # some answers at least
        (0.1, 80_000.0, math.inf, 20_000),
    ],
)
def test_the_window_holds_enough_requests_where_there_is_time(
    rps: float, latency_ms: float, longest_run_s: float, window_ms: int
) -> None:
    point = Measurement(
        status="ok", load={"mode": "concurrency", "value": 8}, throughput_rps=rps, avg_us=latency_ms * 1e3
    )
    assert long_enough_ms(point, 300, longest_run_s) == window_ms


def test_a_run_disturbed_by_chance_counts_only_the_second_time(bench: Any) -> None:
    a, b = bench(run("A", "unstable"), run("A", attempt=2), run("B", "no_samples"), run("B", attempt=2)).pair(
        CANDIDATE, "screen", 0
    )
    assert (a.status, b.status) == ("ok", "ok")


def test_a_run_that_other_programs_disturbed_is_repeated_and_a_calm_one_counts(bench: Any) -> None:
    a, b = bench(run("A", others=0.9), run("A", attempt=2, others=0.1), run("B", others=0.29)).pair(
        CANDIDATE, "screen", 0
    )
    assert (a.throughput_rps, b.throughput_rps) == (102.0, 101.0)
    for again in (0.4, 0.9):
        a, b = bench(run("A", others=0.5), run("A", attempt=2, others=again), run("B", others=0.0)).pair(
            CANDIDATE, "screen", 0
        )
        assert a.throughput_rps == 101.0, "of two disturbed ones the first, not the better"


def test_a_host_that_stays_busy_is_taken_as_it_is(bench: Any) -> None:
    """After three repeats in vain none is asked for, until a run was calm."""
    busy = [run(side, pair=pair, others=1.0) for pair in range(4) for side in "AB"]
    again = [run(*who, attempt=2, others=1.0) for who in (("A",), ("B",))]
    again.append(run("B", pair=1, attempt=2, others=1.0))
    calm = [run("A", pair=4, others=0.1), run("B", pair=4, others=1.0), run("B", pair=4, attempt=2, others=0.1)]
    made = bench(*busy, *again, *calm)
    for pair in range(5):
        made.pair(CANDIDATE, "screen", pair)
    assert made.spent_s == 2.0 * (8 + 3 + 3)


def test_a_round_shares_the_run_of_the_current_config(bench: Any) -> None:
    group, other = "a+b", Candidate("b", Knobs(instance_count=2), ("instance_count",))
    paired: dict[str, Any] = {"stage": "paired"}
    first = [run("A", candidate=group, **paired), run("B", candidate="b", **paired), run("B", **paired)]
    second = [run("A", candidate=group, pair=1, **paired), run("B", pair=1, **paired)]
    refused = {"record": "failure", "candidate": "b", "reason": "Triton refuses it: no", "spent_s": 1.0}
    made = bench(*first, *second, refused)
    assert [made.groups(number) for number in range(3)] == [{group: ("a", "b")}] * 2 + [{}]
    assert [made.holds([CANDIDATE, other], number) for number in range(2)] == [True, False]
    assert made.holds([CANDIDATE], 1, group)
    found = made.round([CANDIDATE, other], "paired", 0)
    assert (found.base.ok, sorted(found.others), found.failed) == (True, ["a", "b"], {})
    found = made.round([CANDIDATE, other], "paired", 1)
    assert (found.base.ok, list(found.others), found.failed) == (True, ["a"], {"b": "Triton refuses it: no"})
    assert (made.spent_s, made.measured) == (5 * 2.0 + 1.0, 0)


def test_a_round_of_refused_candidates_measures_nothing(bench: Any) -> None:
    made = bench({"record": "failure", "candidate": "a", "reason": "Triton refuses it: no", "spent_s": 1.0})
    assert made.round([CANDIDATE], "paired", 0) == (None, {}, {"a": "Triton refuses it: no"})


def test_a_refused_candidate_stays_refused(bench: Any) -> None:
    made = bench({"record": "failure", "candidate": "a", "reason": "Triton refuses it: no", "spent_s": 1.0})
    with pytest.raises(CandidateFailed, match="Triton refuses it: no"):
        made.pair(CANDIDATE, "screen", 0)
    assert made.spent_s == 1.0


def test_a_failed_candidate_stays_failed(bench: Any) -> None:
    with pytest.raises(CandidateFailed, match="request_failed"):
        bench(run("A"), run("B", "request_failed")).pair(CANDIDATE, "screen", 0)


@pytest.mark.parametrize(("status", "error"), [("saturated", Refused), ("no_samples", ExternalError)])
def test_a_current_config_that_cannot_be_measured_ends_the_tuning(bench: Any, status: str, error: Any) -> None:
    with pytest.raises(error, match=f"m: the current config cannot be measured: {status}"):
        bench(run("A", status), run("A", status, attempt=2)).pair(CANDIDATE, "screen", 0)


def test_an_aborted_run_is_not_recalled(bench: Any) -> None:
    made = bench(run("A", "crashed", record="aborted"))
    with pytest.raises((TypeError, AttributeError)):  # it has no target to serve (Python 3.10: the second)
        made.pair(CANDIDATE, "screen", 0)
