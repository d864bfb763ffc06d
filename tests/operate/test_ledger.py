"""The decision log: whole lines only, whoever writes, and whatever a kill left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perf.rollout.back import Patience
from perf.rollout.ledger import LOG, Ledger, State, beside, read
from tooling.console import Console
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


def test_a_switch_is_waited_for_and_gates_and_trials_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, patience = beside(tmp_path / "m", LOG), Patience(tmp_path / "m", Console())
    rollout = Ledger(tmp_path / "m").__enter__()
    for step in (
        {"step": "begun"},
        {"step": "gate", "gate": "ab"},
        {"step": "trial begun", "percent": 5},
        {"step": "gate", "gate": "hold", "percent": 5},
    ):
        rollout.note(**step, version=2)
        with pytest.raises(UsageError, match="another rollout"), Ledger(tmp_path / "m", waiting=patience):
            pass
    rollout.note("switching", version=2, served=[1], replaced=[], added=["2"])
    with Ledger(tmp_path / "m", lock=False) as look:
        look.note("drift", drifted=False)
    assert "waiting" not in capsys.readouterr().err
    assert patience(read(path)) and patience(read(path))
    assert capsys.readouterr().err.count("waiting for the switch that is under way") == 1

    def then(_: object) -> bool:
        rollout.note("promoted", version=2)
        rollout.__exit__(None, None, None)
        return True

    with Ledger(tmp_path / "m", waiting=then) as ledger:
        assert [entry["version"] for entry in ledger.state.promoted] == [2]


def test_who_watches_a_trial_is_told_once_to_end_it(tmp_path: Path) -> None:
    path, patience = beside(tmp_path / "m", LOG), Patience(tmp_path / "m", Console(), ends_trials=True)
    with Ledger(tmp_path / "m") as rollout:
        rollout.note("begun", version=2)
        assert not patience(read(path)), "nothing has changed for clients yet"
        rollout.note("trial begun", version=2, percent=5)
        assert not rollout.asked_to_end()
        assert patience(read(path)) and patience(read(path))
        assert patience.ended is not None and patience.ended["version"] == 2
        assert [entry["step"] for entry in read(path)] == ["begun", "trial begun", "ending"]
        assert rollout.asked_to_end()
    with Ledger(tmp_path / "m") as later:
        assert not later.asked_to_end(), "that was for the one before"


@pytest.mark.parametrize(
    ("steps", "share", "trial"),
    [
        ("begun", None, None),
        ("begun, trial begun", 5, None),
        ("begun, trial begun, stopped", None, None),
        ("begun, trial begun, begun", None, None),
        ("begun, trial begun, trial", 5, 5),
        ("begun, trial begun, trial, trial begun", 5, 5),
        ("begun, trial begun, trial, trial begun, stopped", 5, 5),
        ("begun, trial begun, trial, trial begun, trial ended", None, None),
        ("begun, trial begun, trial, switching, promoted", None, None),
        ("begun, trial begun, trial, switching, switch undone", None, None),
    ],
)
def test_a_share_lasts_from_its_first_request_to_the_end_of_the_trial(
    steps: str, share: int | None, trial: int | None
) -> None:
    facts = {"version": 2, "percent": 5, "served": [1], "replaced": [], "added": []}
    state = State.of({"step": step, **facts} for step in steps.split(", "))
    assert (state.share or {}).get("percent") == share
    assert (state.trial or {}).get("percent") == trial


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
        '{"step": "trial", "version": 2}',
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
