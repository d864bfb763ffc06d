"""What a bench takes from its study, so without any server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perf.bench import Bench, CandidateFailed, Subject
from perf.grid import Candidate
from perf.measurement import Measurement
from perf.study import Study
from perf.workload import Workload
from tooling.config.knobs import Knobs
from tooling.errors import ExternalError, Refused

CANDIDATE = Candidate("a", Knobs(instance_count=1), ("instance_count",))


def run(side: str, status: Any = "ok", pair: int = 0, attempt: int = 1, record: str = "measurement") -> dict[str, Any]:
    point = Measurement(status=status, load={"mode": "concurrency", "value": 8}, throughput_rps=100.0, wall_s=1.5)
    identity = {"candidate": "a", "stage": "screen", "pair": pair, "side": side, "attempt": attempt}
    return {"record": record, **identity, "raw": "raw/x", "measurement": point.to_dict(), "spent_s": 2.0}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Any]:
    """Make a bench on a study that holds these records; it has no runtime, so it can start nothing."""
    with Study(tmp_path, {}) as study:

        def make(*records: dict[str, Any]) -> Bench:
            for record in ({"record": "window", "window_ms": 450, "spent_s": 5.0}, *records):
                study.append(record)
            subject = Subject(tmp_path / "m", None, Workload(concurrency=8), tmp_path / "input.json", 300)
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


def test_a_run_disturbed_by_chance_counts_only_the_second_time(bench: Any) -> None:
    a, b = bench(run("A", "unstable"), run("A", attempt=2), run("B", "no_samples"), run("B", attempt=2)).pair(
        CANDIDATE, "screen", 0
    )
    assert (a.status, b.status) == ("ok", "ok")


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
    with pytest.raises(AttributeError):  # it wants to start a server, and has no runtime
        made.pair(CANDIDATE, "screen", 0)
