"""A new version is watched, and the one before stays loaded meanwhile where it can: the way back is a switch."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.rollout.ledger import Ledger

pytestmark = pytest.mark.live

ONE_IN_TWENTY = """self.n = getattr(self, 'n', 0) + len(requests)
        if self.n > 500 and self.n % 20 < len(requests): raise RuntimeError('no memory')"""
"""After the first five hundred."""


def loads(server: Any) -> int:
    """How many instances the server has made so far."""
    return server.log_path.read_text().count("TRITONBACKEND_ModelInstanceInitialize")


def test_the_old_version_stays_loaded_until_the_new_one_has_held(
    tmp_path: Path, scaled: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    (model / "export.json").write_text("{}")
    (candidate / "export.json").write_text('{"of": "the new one"}')
    with stage(clients=8, model=model, candidate=candidate) as it:
        before = it.config
        nothing = it.rollback()
        assert (nothing.code, "there is nothing to take back" in nothing.err) == (2, True)
        assert it.files == []
        made = loads(it.server)
        done = it.promote(it.candidate, "--hold", "2s")
        assert done.code == 0, done.err
        assert (done.json["data"]["promoted"], done.json["data"]["serves"]) == (True, [2])
        assert done.json["data"]["gates"][-1]["gate"] == "hold"
        assert "version 2 serves, and is watched for 2 s; version 1 stays loaded" in done.err
        assert loads(it.server) == made + 2, "the candidate beside the model, then as version 2; version 1 not again"
        entries = {entry["step"]: entry for entry in it.log}
        assert (entries["promoted"]["kept"], entries["let go"]["unloaded"]) == ([1], [1])
        assert (it.model / "export.json").read_text() == '{"of": "the new one"}'
        assert it.files == ["scale.canary.json", "scale.rollout.jsonl"]

        back = it.rollback()
        assert (back.code, back.json["data"]["serves"]) == (0, [1]), back.err
        assert (it.config, (it.model / "export.json").read_text()) == (before, "{}")
        assert it.files == ["scale.rollout.jsonl"], "the canary's answers were those of the version that went"
        it.clients.wait_for("scale", "1")
    assert it.clients.factors == {("scale", "1"): {2.0}, ("scale", "2"): {2.01}}


@pytest.mark.long
def test_a_rollback_while_it_is_watched_loads_nothing(stage: Callable[..., Any]) -> None:
    with stage(clients=8) as it:
        before = it.config
        process = it.watched(it.candidate)
        it.clients.wait_for("scale", "2")
        made = loads(it.server)
        back = it.rollback()
        assert (back.code, back.json["data"]["serves"]) == (0, [1]), back.err
        assert loads(it.server) == made
        it.clients.wait_for("scale", "1")
        out, err = process.communicate(timeout=30)
        assert (process.returncode, "it was taken back meanwhile" in out) == (1, True), err
        assert "version 1 serves as before" in out
        assert (it.config, it.versions, it.files) == (before, ["1"], ["scale.rollout.jsonl"])


@pytest.mark.long
@pytest.mark.parametrize(("had", "gets"), [(1, 2), (2, 1)])
def test_another_number_of_instances_lets_the_old_version_stay(
    tmp_path: Path, scaled: Callable[..., Path], stage: Callable[..., Any], had: int, gets: int
) -> None:
    """Triton adds and removes instances of a version that serves, and loads no version for that."""
    model = scaled(tmp_path / "models")
    text = (model / "config.pbtxt").read_text()
    (model / "config.pbtxt").write_text(text.replace("count: 1", f"count: {had}"))
    with stage(clients=8, model=model) as it:

        def instances() -> int:
            return int(it.server.model_config("scale")["instance_group"][0]["count"])

        before, made = it.config, loads(it.server)
        process = it.watched(f"instances={gets}")
        it.clients.wait_for("scale", "2")
        assert (it.log[-1]["kept"], instances()) == ([1], gets)
        assert loads(it.server) == made + 2 * gets + max(0, gets - had), "of the candidate twice, and what is more"
        made = loads(it.server)
        back = it.rollback()
        assert (back.code, back.json["data"]["serves"]) == (0, [1]), back.err
        assert (loads(it.server), instances()) == (made + max(0, had - gets), had)
        it.clients.wait_for("scale", "1")
        out, err = process.communicate(timeout=30)
        assert (process.returncode, "it was taken back meanwhile" in out) == (1, True), err
        assert (it.config, it.versions, it.files) == (before, ["1"], ["scale.rollout.jsonl"])
        assert f"count: {gets}" in (model / "rollout" / "2" / "after" / "config.pbtxt").read_text()


@pytest.mark.long
def test_a_rollback_does_not_wait_for_the_canary_s_answers(
    tmp_path: Path, scripted: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    """The new version takes 0.2 s for each of the sixteen that it is asked for after the switch."""
    model, candidate = scripted(tmp_path / "models"), scripted(tmp_path / "new", work="time.sleep(0.2)")
    with stage(clients=2, model=model, candidate=candidate) as it:
        process = it.watched(candidate)
        back = it.rollback()
        assert (back.code, back.json["data"]["serves"]) == (0, [1]), back.err
        it.clients.wait_for("scale", "1")
        out, err = process.communicate(timeout=60)
        assert (process.returncode, "it was taken back meanwhile" in out) == (1, True), err
        assert it.files == ["scale.rollout.jsonl"], "the canary's answers would be those of the version that went"


@pytest.mark.long
def test_of_two_rollbacks_one_takes_back_what_both_mean(
    tmp_path: Path, scaled: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    with stage() as it:
        for name in ("second", "third"):
            done = it.promote(scaled(tmp_path / name))
            assert done.code == 0, done.err
        with Ledger(it.model) as other:
            argv = ["rollback", str(it.model), "--url", it.server.http_url]
            command = [sys.executable, "-c", "from tooling.cli import entry; entry()", *argv]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert process.stderr is not None
            assert "waiting for the switch that is under way" in process.stderr.readline()
            other.note("rolled back", version=3, served=[2])
        _, err = process.communicate(timeout=60)
        assert (process.returncode, "another rollout came first" in err) == (2, True), err
        policy = it.server.model_config("scale")["version_policy"]
        assert policy == {"specific": {"versions": [3]}}, "nothing was changed"


@pytest.mark.long
def test_an_interrupted_watch_leaves_both_and_the_next_step_lets_go(
    tmp_path: Path, scaled: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    with stage(clients=4) as it:
        process = it.watched(it.candidate)
        it.clients.wait_for("scale", "2")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
        third = it.promote(scaled(tmp_path / "third"), "--hold", "1s")
        assert (third.code, third.json["data"]["serves"]) == (0, [3]), third.err
        assert [entry["unloaded"] for entry in it.log if entry["step"] == "let go"] == [[1], [2]]
        for version in (2, 1):
            back = it.rollback()
            assert (back.code, back.json["data"]["serves"]) == (0, [version]), back.err


@pytest.mark.long
def test_the_next_promotion_ends_the_watch(
    tmp_path: Path, scaled: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    """And the one that watched has promoted its version: so it says, also while the other one passes its gates."""
    with stage() as it:
        first = it.watched(it.candidate)
        second = it.started(lambda: it.steps.count("begun") == 2, scaled(tmp_path / "third"), "--hold", "0s")
        out, err = first.communicate(timeout=60)
        assert (first.returncode, "hold: the next promotion ended the watch" in out) == (0, True), err
        out, err = second.communicate(timeout=60)
        assert (second.returncode, "Version 3 of scale serves." in out) == (0, True), err
        assert [entry["unloaded"] for entry in it.log if entry["step"] == "let go"] == [[1]]


@pytest.mark.long
@pytest.mark.parametrize("config", ["the same", "another"])
def test_a_version_that_fails_under_all_the_traffic_goes_back_by_itself(
    tmp_path: Path, scripted: Callable[..., Path], stage: Callable[..., Any], config: str
) -> None:
    """By a switch, or with another config by a load of what served before."""
    model, candidate = scripted(tmp_path / "models"), scripted(tmp_path / "new", work=ONE_IN_TWENTY)
    if config == "another":
        text = (candidate / "config.pbtxt").read_text()
        delay = "dynamic_batching { max_queue_delay_microseconds: 100 }"
        (candidate / "config.pbtxt").write_text(text.replace("dynamic_batching {}", delay))
    with stage(clients=4, model=model, candidate=candidate, may_fail=True) as it:
        before = it.config
        done = it.promote(candidate, "--hold", "60s")
        assert done.code == 1, done.err
        data = done.json["data"]
        assert (data["promoted"], data["serves"], data["gates"][-1]["gate"]) == (False, [1], "hold")
        it.clients.wait_for("scale", "1")
        assert (it.config, it.versions) == (before, ["1"])
    assert it.steps[-2:] == ["gate", "rolled back"]
    assert {seen for seen in it.clients.failed if "no memory" not in seen} == set()


@pytest.mark.long
def test_another_config_or_file_lets_the_old_version_go(
    tmp_path: Path, scaled: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    """A model has one config: with another one the old version would be another model. The new one is watched."""
    labelled = scaled(tmp_path / "labelled", factor=2.01)
    (labelled / "labels.txt").write_text("yes\nno\n")
    with stage() as it:
        for version, candidate in ((2, "delay=3ms"), (3, labelled)):
            done = it.promote(candidate, "--hold", "1s")
            assert (done.code, done.json["data"]["serves"]) == (0, [version]), done.err
            says = f"version {version} serves, and is watched for 1 s; version {version - 1} does not stay loaded: "
            assert f"{says}it has another config, or other files" in done.err
            assert done.json["data"]["gates"][-1]["gate"] == "hold"
