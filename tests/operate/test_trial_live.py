"""A share of the traffic for a candidate: given, held, widened, taken back; and ends that come at a bad time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.rollout.ledger import Ledger
from tooling.server import EmbeddedServer

pytestmark = pytest.mark.live

FAST = ("--skip", "slo", "--skip", "ab", "--hold", "0s")


@pytest.mark.long
def test_a_trial_is_widened_while_it_holds_and_then_serves(stage: Callable[..., Any]) -> None:
    with stage(clients=8) as it:
        hold = ("--hold", "2s")
        nothing = it.promote("--percent", 25, *hold)
        assert (nothing.code, "nothing is on trial" in nothing.err) == (2, True)
        first = it.promote(it.candidate, "--percent", 25, *hold)
        assert first.code == 0, first.err
        assert (first.json["data"]["promoted"], first.json["data"]["percent"]) == (False, 25)
        assert json.loads(it.split.read_text()) == {"model": "scale", "candidate": "scale.next", "percent": 25}
        other = it.promote(it.candidate, "--percent", 50, *hold)
        assert (other.code, "version 2 is on trial, with 25 %" in other.err) == (2, True)

        second = it.promote("--percent", 60, *hold)
        assert second.code == 0, second.err
        assert it.share == 60
        assert [gate["gate"] for gate in second.json["data"]["gates"]] == ["parity", "slo", "hold"]
        last = it.promote(*hold)
        assert last.code == 0, last.err
        assert (last.json["data"]["promoted"], last.json["data"]["serves"]) == (True, [2])
        it.clients.wait_for("scale", "2")
        assert it.files == ["scale.canary.json", "scale.rollout.jsonl"]
    assert it.clients.factors == {("scale", "1"): {2.0}, ("scale.next", "2"): {2.01}, ("scale", "2"): {2.01}}
    assert [entry["percent"] for entry in it.log if entry["step"] == "trial"] == [25, 60]


@pytest.mark.long
def test_a_wider_share_that_does_not_hold_leaves_the_one_before(
    tmp_path: Path, scaled: Callable[..., Path], scripted: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    """Neither where a gate fails, nor the trial itself: by failed requests, or by an answer's time in the server."""
    down = tmp_path / "down"
    work = f"if __import__('os').path.exists({str(down)!r}): raise RuntimeError('no memory')"
    candidate = scripted(tmp_path / "new", work=work)
    with stage(clients=8, candidate=candidate, may_fail=True) as it:
        first = it.promote(candidate, "--percent", 25, "--hold", "4s")
        assert (first.code, it.share) == (0, 25), first.err
        down.touch()
        gate = it.promote("--percent", 60, "--hold", "60s")
        assert (gate.code, gate.json["data"]["percent"], it.share) == (1, 25, 25), gate.err
        assert "a request failed: " in gate.json["data"]["gates"][-1]["why"]
        down.unlink()
        late = it.promote("--percent", 60, "--hold", "60s", "--slo", "avg<1us")
        assert (late.code, late.json["data"]["percent"], it.share) == (1, 25, 25), late.err
        assert "avg<1us: not met" in late.json["data"]["gates"][-1]["why"]
        process = it.on_trial(60)
        down.touch()
        out, err = process.communicate(timeout=60)
        assert (process.returncode, it.share) == (1, 25), err
        assert "version 1 serves as before, with 25 % for version 2" in out
        down.unlink()
        it.clients.wait_for("scale.next", "2")
        whole = it.promote()
        assert (whole.code, whole.json["data"]["serves"]) == (0, [2]), whole.err
    assert [(entry["at"], entry["percent"]) for entry in it.log if entry["step"] == "stopped"] == [
        ("parity", 25),
        ("hold", 25),
        ("hold", 25),
    ]


@pytest.mark.long
def test_a_first_share_that_does_not_hold_leaves_nothing(
    tmp_path: Path, scripted: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    """The candidate fails one request in twenty: too few for the canary, too many for a trial."""
    count = "self.n = getattr(self, 'n', 0) + len(requests)"
    work = f"{count}\n        if self.n > 60 and self.n % 20 < len(requests): raise RuntimeError('no memory')"
    with stage(clients=4, candidate=scripted(tmp_path / "new", work=work), may_fail=True) as it:
        done = it.promote(it.candidate, "--percent", 50, "--hold", "10s")
        assert done.code == 1, done.err
        gate = done.json["data"]["gates"][-1]
        assert (gate["gate"], gate["outcome"]) == ("hold", "failed")
        assert "failed" in gate["why"]
        assert it.files == ["scale.rollout.jsonl"]
        it.clients.wait_for("scale", "1")
    assert it.clients.failed, "what a trial costs is told to the clients that were in it"
    assert it.steps[-1] == "stopped"


@pytest.mark.long
def test_nobody_in_the_trial_is_no_evidence(stage: Callable[..., Any]) -> None:
    with stage() as it:
        nothing = it.rollback()
        assert (nothing.code, "there is nothing to take back" in nothing.err) == (2, True)
        done = it.promote(it.candidate, "--percent", 5, "--hold", "1s")
        assert done.code == 1
        assert "only 0 requests reached the candidate" in done.json["data"]["gates"][-1]["why"]
        assert it.files == ["scale.rollout.jsonl"]
        assert it.server.model_config("scale")["version_policy"] == {"latest": {"num_versions": 1}}


KILLED = """
import os, signal, sys
from perf.rollout.ledger import Ledger
from perf.rollout import release
from tooling.cli import main
move, count = release._move, 0
def killed(source, target):
    global count
    count += 1
    if count > int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    move(source, target)
release._move = killed
main(sys.argv[2:])
"""


@pytest.mark.parametrize("moves", [1, pytest.param(0, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
def test_a_run_killed_while_it_switches_is_put_right_by_rollback(stage: Callable[..., Any], moves: int) -> None:
    with stage() as it:
        before = it.config, (it.model / "1" / "model.onnx").read_bytes()
        argv = ["promote", str(it.model), str(it.candidate), "--url", it.server.http_url, *FAST]
        done = subprocess.run([sys.executable, "-c", KILLED, str(moves), *argv], capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        again = it.promote(it.candidate)
        assert (again.code, "was ended while it switched versions" in again.err) == (2, True)
        back = it.rollback()
        assert back.code == 0, back.err
        assert back.json["data"]["serves"] == [1]
        assert (it.config, (it.model / "1" / "model.onnx").read_bytes()) == before
        assert it.versions == ["1"]
        assert it.promote(it.candidate).code == 0


def test_a_rollback_ends_a_trial_that_is_watched(stage: Callable[..., Any]) -> None:
    with stage(clients=4) as it:
        process = it.on_trial(50, it.candidate)
        it.clients.wait_for("scale.next", "2")
        back = it.rollback()
        assert back.code == 0, back.err
        data = back.json["data"]
        assert (data["ended"], data["version"], data["serves"]) == ("trial", 2, [1])
        assert "version 2 gets no more requests" in back.err
        out, err = process.communicate(timeout=60)
        assert (process.returncode, "hold: it was taken back meanwhile" in out) == (1, True), err
        assert "Stopped at `hold`: version 1 serves as before." in out
        assert it.files == ["scale.rollout.jsonl"]
        it.clients.wait_for("scale", "1")
        nothing = it.rollback()
        assert (nothing.code, "there is nothing to take back" in nothing.err) == (2, True)
    assert it.steps[-3:] == ["trial begun", "ending", "trial ended"]


@pytest.mark.long
def test_a_rollback_while_a_trial_is_widened_ends_all_of_it(stage: Callable[..., Any]) -> None:
    with stage(clients=8) as it:
        first = it.promote(it.candidate, "--percent", 25, "--hold", "2s")
        assert first.code == 0, first.err
        process = it.on_trial(60)
        back = it.rollback()
        assert (back.code, back.json["data"]["ended"], back.json["data"]["serves"]) == (0, "trial", [1]), back.err
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1, err
        assert it.files == ["scale.rollout.jsonl"]


@pytest.mark.long
def test_the_trial_of_a_run_that_was_killed_is_ended_by_rollback(stage: Callable[..., Any]) -> None:
    with stage() as it:
        process = it.on_trial(5, it.candidate)
        process.kill()
        process.communicate()
        wider = it.promote("--percent", 25)
        assert (wider.code, "got the watch of version 2 was cut off" in wider.err) == (2, True), wider.err
        back = it.rollback()
        assert (back.code, back.json["data"]["ended"], back.json["data"]["serves"]) == (0, "trial", [1]), back.err
        assert it.files == ["scale.rollout.jsonl"]


@pytest.mark.long
def test_an_interrupted_trial_leaves_the_old_version(stage: Callable[..., Any]) -> None:
    with stage() as it:
        process = it.on_trial(5, it.candidate)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130, err
        assert it.files == ["scale.rollout.jsonl"]
        assert it.log[-1]["at"] == "KeyboardInterrupt"
        nothing = it.rollback()
        assert (nothing.code, "there is nothing to take back" in nothing.err) == (2, True)


def test_a_rollback_beside_a_rollout_that_has_noted_nothing_yet_tells_of_it(stage: Callable[..., Any]) -> None:
    with stage() as it, Ledger(it.model):
        held = it.rollback()
    assert (held.code, "another rollout of this model is under way" in held.err) == (2, True), held.err


def test_a_server_in_another_mode_is_told_before_anything_is_done(
    tmp_path: Path, scaled: Callable[..., Path], runtime: Any, run_cli: Any
) -> None:
    """A load call is refused unless the server is in explicit mode."""

    class Fixed(EmbeddedServer):
        def _command(self, *args: Any) -> list[str]:
            command = super()._command(*args)
            return [word.replace("control-mode=explicit", "control-mode=none") for word in command]

    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new")
    with Fixed(model.parent, runtime) as server:
        for argv in (["promote", model, candidate], ["rollback", model]):
            done = run_cli(*argv, "--url", server.http_url)
            assert (done.code, done.out) == (2, "")
            assert "server not in explicit mode" in done.err
            assert "explicit model load / unload is not allowed" in done.err
            assert "hint: restart with --model-control-mode=explicit" in done.err
    assert [entry.name for entry in model.parent.iterdir()] == ["scale"]


@pytest.mark.long
def test_what_cannot_be_promoted_is_told(
    tmp_path: Path, scaled: Callable[..., Path], stage: Callable[..., Any], run_cli: Any
) -> None:
    other = scaled(tmp_path / "other")
    (other / "config.pbtxt").write_text((other / "config.pbtxt").read_text().replace("dims: [ 4 ]", "dims: [ 5 ]"))
    odd = tmp_path / "canary.json"
    odd.write_text('{"data": []}')
    with stage() as it:
        for argv, says in (
            ([it.model, other], "the same requests do not fit both"),
            ([it.model, tmp_path / "nowhere"], "neither a path that is there nor a setting"),
            ([tmp_path / "nowhere", other], "not a model directory"),
            ([it.model, "instances=many"], "not a whole number"),
            ([it.model, "instances=2", "--skip", "parties"], "did you mean `parity`?"),
            ([it.model, "instances=2", "--slo", "p99"], "no limit in it"),
            ([it.model, "instances=2", "--canary", odd], "`data` holds no requests"),
            ([it.model, "instances=2", "--percent", "0"], "--percent"),
        ):
            done = run_cli("promote", *argv, "--url", it.server.http_url)
            assert (done.code, done.out) == (2, ""), (argv, done.err)
            assert says in done.err, done.err
        nobody = run_cli("promote", it.model, "instances=2", "--url", "127.0.0.1:1")
        assert (nobody.code, "no Triton server answers here" in nobody.err) == (3, True)
        it.model.with_name("scale.rollout.jsonl").write_bytes(b"\xff\xfe not a log\n")
        damaged = it.rollback()
        assert (damaged.code, "the decision log is damaged" in damaged.err) == (2, True)
        assert it.files == ["scale.rollout.jsonl"]


@pytest.mark.long
def test_a_guarded_load_api_gets_its_key(stage: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from tooling.server.flags import ServerFlags

    monkeypatch.setenv("TRITON_CONTROL_KEY", "open sesame")
    with stage(flags=ServerFlags(control_key="open sesame")) as it:
        monkeypatch.setenv("TRITON_CONTROL_KEY", "open")
        wrong = it.promote("instances=2")
        assert (wrong.code, "This API is restricted, expecting header 'triton-control-key'" in wrong.err) == (1, True)
        assert "hint: set TRITON_CONTROL_KEY" in wrong.err
        monkeypatch.setenv("TRITON_CONTROL_KEY", "open sesame")
        done = it.promote("instances=2")
        assert done.code == 0, done.err
        assert it.server.model_config("scale")["instance_group"][0]["count"] == 2


@pytest.mark.long
def test_the_config_for_the_hardware_is_replaced_where_the_server_takes_it(
    tmp_path: Path, scaled: Callable[..., Path], stage: Callable[..., Any]
) -> None:
    from tooling.server.flags import ServerFlags

    model = scaled(tmp_path / "models with a blank")
    portable = (model / "config.pbtxt").read_text()
    own = model / "configs" / "cpu-2.pbtxt"
    own.parent.mkdir()
    own.write_text(portable)
    with stage(model=model, flags=ServerFlags(config_name="cpu-2")) as it:

        def instances() -> int:
            return int(it.server.model_config("scale")["instance_group"][0]["count"])

        other = it.promote("instances=2")
        assert (other.code, "the server takes another config for the new version" in other.err) == (4, True)
        assert (own.read_text(), it.config, instances()) == (portable, portable, 1)
        done = it.promote("instances=2", "--config-name", "cpu-2")
        assert done.code == 0, done.err
        assert "count: 2" in own.read_text()
        assert (it.config, instances()) == (portable, 2)
        assert it.rollback().code == 0
        assert (own.read_text(), instances()) == (portable, 1)
