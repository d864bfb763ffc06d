"""The decision log: whole lines only, whoever writes, and whatever a kill left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf.rollout.ledger import LOG, Ledger, beside, read
from tooling.errors import UsageError

TORN = b'{"step": "promoted", "versi'


@pytest.mark.parametrize("lock", [True, False])
def test_an_entry_after_a_torn_line_stands_on_a_line_of_its_own(tmp_path: Path, lock: bool) -> None:
    """A kill in the middle of a line: the piece was never reported as done, and is gone. So do `promote`, and `drift`,
    which needs no lock."""
    path = beside(tmp_path / "m", LOG)
    with Ledger(tmp_path / "m") as ledger:
        ledger.note("begun", version=2)
    with path.open("ab") as file:
        file.write(TORN)
    assert [entry["step"] for entry in read(path)] == ["begun"]
    with Ledger(tmp_path / "m", lock=lock) as ledger:
        assert [entry["step"] for entry in ledger.entries] == ["begun"]
        ledger.note("drift", drifted=False)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == ["begun", "drift"]
    assert [entry["step"] for entry in read(path)] == ["begun", "drift"]


def test_a_log_that_is_nothing_but_a_torn_line_begins_anew(tmp_path: Path) -> None:
    path = beside(tmp_path / "m", LOG)
    path.write_bytes(TORN)
    with Ledger(tmp_path / "m") as ledger:
        assert ledger.state.last_version == 0
        ledger.note("begun", version=2)
    assert [json.loads(line)["version"] for line in path.read_text().splitlines()] == [2]


def test_notes_of_drift_go_in_while_a_rollout_holds_the_log(tmp_path: Path) -> None:
    """And leave the lock to it, and to the next."""
    with Ledger(tmp_path / "m") as rollout:
        rollout.note("begun", version=2)
        with pytest.raises(UsageError, match="another rollout of this model is under way"), Ledger(tmp_path / "m"):
            pass
        with Ledger(tmp_path / "m", lock=False) as look:
            look.note("drift", drifted=True)
        rollout.note("stopped", version=2)
    with Ledger(tmp_path / "m", lock=False), Ledger(tmp_path / "m") as other:
        assert [entry["step"] for entry in other.entries] == ["begun", "drift", "stopped"]


def test_what_a_promotion_kept_is_kept_until_it_is_let_go(tmp_path: Path) -> None:
    with Ledger(tmp_path / "m") as ledger:
        ledger.note("switching", version=2, served=[1], replaced=[], added=["2"], kept=[1], config="")
        assert ledger.state.kept is None, "the switch has not come to its end"
        ledger.note("promoted", version=2)
        assert ledger.state.kept is not None and ledger.state.kept["kept"] == [1]
        ledger.note("let go", version=2, unloaded=[1])
        assert ledger.state.kept is None
        assert ledger.state.promoted[-1]["version"] == 2, "which may still be taken back"


def test_who_waits_gets_the_log_after_a_switch_and_is_refused_while_gates_are_passed(tmp_path: Path) -> None:
    told: list[str] = []
    rollout = Ledger(tmp_path / "m").__enter__()

    def waiting() -> None:
        told.append("waiting")
        rollout.note("promoted", version=2)
        rollout.__exit__(None, None, None)

    for step in ({"step": "begun"}, {"step": "gate", "gate": "ab"}, {"step": "gate", "gate": "hold", "percent": 5}):
        rollout.note(**step, version=2)
        with pytest.raises(UsageError, match="another rollout"), Ledger(tmp_path / "m", waiting=waiting):
            pass
    rollout.note("switching", version=2, served=[1], replaced=[], added=["2"])
    with Ledger(tmp_path / "m", lock=False) as look:
        look.note("drift", drifted=False)
    assert told == []
    with Ledger(tmp_path / "m", waiting=waiting) as ledger:
        assert [entry["version"] for entry in ledger.state.promoted] == [2]
    assert told == ["waiting"]


@pytest.mark.parametrize(
    "line",
    [
        '{"step": "switching"}',
        '{"step": "switching", "version": "2", "served": [1], "replaced": [], "added": []}',
        '{"step": "switching", "version": 2, "served": ["one"], "replaced": [], "added": []}',
        '{"step": "switching", "version": 2, "served": [1], "replaced": [3], "added": []}',
        '{"step": "switching", "version": 2, "served": [1], "replaced": "1", "added": []}',
        '{"step": "switching", "version": 2, "served": [1], "replaced": [], "added": [], "kept": [1], "config": 7}',
        '{"step": "trial", "percent": 5}',
        '{"step": "trial", "version": 2, "percent": "5"}',
        '{"step": 1}',
        "[]",
    ],
)
def test_a_line_without_what_its_step_needs_is_damage(tmp_path: Path, line: str) -> None:
    path = beside(tmp_path / "m", LOG)
    path.write_text(f'{{"step": "begun", "version": 2}}\n{line}\n')
    with pytest.raises(UsageError, match="the decision log is damaged") as raised:
        read(path)
    assert str(raised.value.problems[0].where) == f"{path}:2"
