"""A share of the traffic for a candidate: given, held, widened, taken back; and ends that come at a bad time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.rollout.ledger import Ledger
from tooling.server import EmbeddedServer

pytestmark = pytest.mark.live

FAST = ("--skip", "slo", "--skip", "ab", "--hold", "0s")


def log_of(model_dir: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in model_dir.with_name(f"{model_dir.name}.rollout.jsonl").read_text().splitlines()
    ]


@pytest.mark.long
def test_a_trial_is_widened_while_it_holds_and_then_serves(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    split = model.with_name("scale.split.json")
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 8, split=split) as clients:

        def promote(*argv: object) -> Any:
            return run_cli("promote", model, *argv, "--url", server.http_url, *FAST, "--hold", "2s", "--json")

        nothing = promote("--percent", 25)
        assert (nothing.code, "nothing is on trial" in nothing.err) == (2, True)
        first = promote(candidate, "--percent", 25)
        assert first.code == 0, first.err
        assert (first.json["data"]["promoted"], first.json["data"]["percent"]) == (False, 25)
        assert json.loads(split.read_text()) == {"model": "scale", "candidate": "scale.next", "percent": 25}
        other = promote(candidate, "--percent", 50)
        assert (other.code, "version 2 is on trial, with 25 %" in other.err) == (2, True)

        second = promote("--percent", 60)
        assert second.code == 0, second.err
        assert json.loads(split.read_text())["percent"] == 60
        assert [gate["gate"] for gate in second.json["data"]["gates"]] == ["parity", "slo", "hold"]
        last = promote()
        assert last.code == 0, last.err
        assert (last.json["data"]["promoted"], last.json["data"]["serves"]) == (True, [2])
        assert not split.exists()
        clients.wait_for("scale", "2")
    assert clients.failed == clients.wrong == []
    assert set(clients.seen) == {("scale", "1"), ("scale.next", "2"), ("scale", "2")}
    assert [entry["percent"] for entry in log_of(model) if entry["step"] == "trial"] == [25, 60]
    assert not model.with_name("scale.next").exists()


@pytest.mark.long
def test_a_share_that_does_not_hold_goes_back_to_the_one_before(
    tmp_path: Path, scaled: Callable[..., Path], scripted: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    """The candidate fails one request in twenty: too few for the canary, too many for a trial."""
    model = scaled(tmp_path / "models")
    count = "self.n = getattr(self, 'n', 0) + len(requests)"
    work = f"{count}\n        if self.n > 60 and self.n % 20 < len(requests): raise RuntimeError('no memory')"
    candidate = scripted(tmp_path / "new", work=work)
    split = model.with_name("scale.split.json")
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 4, split=split) as clients:
        argv = [
            "promote",
            model,
            candidate,
            "--url",
            server.http_url,
            *FAST,
            "--percent",
            50,
            "--hold",
            "10s",
            "--json",
        ]
        done = run_cli(*argv)
        assert done.code == 1, done.err
        gate = done.json["data"]["gates"][-1]
        assert (gate["gate"], gate["outcome"]) == ("hold", "failed")
        assert "failed" in gate["why"]
        assert not split.exists()
        assert not model.with_name("scale.next").exists()
        clients.wait_for("scale", "1")
    assert clients.failed, "what a trial costs is told to the clients that were in it"
    assert log_of(model)[-1]["step"] == "stopped"


@pytest.mark.long
def test_nobody_in_the_trial_is_no_evidence_and_rollback_ends_it(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    with serving(model.parent, "scale") as server:
        url = ("--url", server.http_url)
        nothing = run_cli("rollback", model, *url)
        assert (nothing.code, "there is nothing to take back" in nothing.err) == (2, True)
        done = run_cli("promote", model, candidate, *url, *FAST, "--percent", 5, "--hold", "1s", "--json")
        assert done.code == 1
        assert "only 0 requests reached the candidate" in done.json["data"]["gates"][-1]["why"]
        assert not model.with_name("scale.next").exists()
        assert server.model_config("scale")["version_policy"] == {"latest": {"num_versions": 1}}


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
def test_a_run_killed_while_it_switches_is_put_right_by_rollback(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any, moves: int
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    before = {p.name: p.read_bytes() for p in (model / "config.pbtxt", model / "1" / "model.onnx")}
    with serving(model.parent, "scale") as server:
        argv = ["promote", str(model), str(candidate), "--url", server.http_url, *FAST]
        done = subprocess.run([sys.executable, "-c", KILLED, str(moves), *argv], capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr
        again = run_cli(*argv)
        assert (again.code, "was ended while it switched versions" in again.err) == (2, True)
        back = run_cli("rollback", model, "--url", server.http_url, "--json")
        assert back.code == 0, back.err
        assert back.json["data"]["serves"] == [1]
        assert {p.name: p.read_bytes() for p in (model / "config.pbtxt", model / "1" / "model.onnx")} == before
        assert [entry.name for entry in model.iterdir() if entry.name.isdecimal()] == ["1"]
        assert run_cli(*argv).code == 0


def on_trial(model: Path, percent: int, *argv: object) -> subprocess.Popen[str]:
    """A promotion in a process of its own, whose candidate has got this share."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from tooling.cli import entry; entry()"
    words = ["promote", model, *argv, *FAST, "--percent", percent, "--hold", "60s"]
    command = [sys.executable, "-c", code, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    split, deadline = model.with_name("scale.split.json"), time.monotonic() + 60
    while not (split.exists() and json.loads(split.read_text())["percent"] == percent):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no share"
        time.sleep(0.05)
    return process


def test_a_rollback_ends_a_trial_that_is_watched(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    split = model.with_name("scale.split.json")
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 4, split=split) as clients:
        url = ("--url", server.http_url)
        process = on_trial(model, 50, candidate, *url)
        clients.wait_for("scale.next", "2")
        back = run_cli("rollback", model, *url, "--json")
        assert back.code == 0, back.err
        assert (back.json["data"]["ended"], back.json["data"]["version"], back.json["data"]["serves"]) == (
            "trial",
            2,
            [1],
        )
        assert "version 2 gets no more requests" in back.err
        out, err = process.communicate(timeout=60)
        assert (process.returncode, "hold: it was taken back meanwhile" in out) == (1, True), err
        assert "Stopped at `hold`: version 1 serves as before." in out
        assert sorted(entry.name for entry in model.parent.iterdir()) == ["scale", "scale.rollout.jsonl"]
        clients.wait_for("scale", "1")
        nothing = run_cli("rollback", model, *url)
        assert (nothing.code, "there is nothing to take back" in nothing.err) == (2, True)
    assert clients.failed == clients.wrong == []
    assert [entry["step"] for entry in log_of(model)[-3:]] == ["trial begun", "ending", "trial ended"]


@pytest.mark.long
def test_a_rollback_while_a_trial_is_widened_ends_all_of_it(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    split = model.with_name("scale.split.json")
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 8, split=split) as clients:
        url = ("--url", server.http_url)
        first = run_cli("promote", model, candidate, *url, *FAST, "--percent", 25, "--hold", "2s")
        assert first.code == 0, first.err
        process = on_trial(model, 60, *url)
        back = run_cli("rollback", model, *url, "--json")
        assert (back.code, back.json["data"]["ended"], back.json["data"]["serves"]) == (0, "trial", [1]), back.err
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1, err
        assert sorted(entry.name for entry in model.parent.iterdir()) == ["scale", "scale.rollout.jsonl"]
    assert clients.failed == clients.wrong == []


@pytest.mark.long
def test_the_trial_of_a_run_that_was_killed_is_ended_by_rollback(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    with serving(model.parent, "scale") as server:
        url = ("--url", server.http_url)
        process = on_trial(model, 5, candidate, *url)
        process.kill()
        process.communicate()
        wider = run_cli("promote", model, "--percent", 25, *url, *FAST)
        assert (wider.code, "got the watch of version 2 was cut off" in wider.err) == (2, True), wider.err
        back = run_cli("rollback", model, *url, "--json")
        assert (back.code, back.json["data"]["ended"], back.json["data"]["serves"]) == (0, "trial", [1]), back.err
        assert sorted(entry.name for entry in model.parent.iterdir()) == ["scale", "scale.rollout.jsonl"]


@pytest.mark.long
def test_an_interrupted_trial_leaves_the_old_version(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    with serving(model.parent, "scale") as server:
        process = on_trial(model, 5, candidate, "--url", server.http_url)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130, err
        assert sorted(entry.name for entry in model.parent.iterdir()) == ["scale", "scale.rollout.jsonl"]
        assert log_of(model)[-1]["at"] == "KeyboardInterrupt"
        nothing = run_cli("rollback", model, "--url", server.http_url)
        assert (nothing.code, "there is nothing to take back" in nothing.err) == (2, True)


def test_a_rollback_beside_a_rollout_that_has_noted_nothing_yet_tells_of_it(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    model = scaled(tmp_path / "models")
    with serving(model.parent, "scale") as server, Ledger(model):
        held = run_cli("rollback", model, "--url", server.http_url)
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
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    model = scaled(tmp_path / "models")
    other = scaled(tmp_path / "other")
    (other / "config.pbtxt").write_text((other / "config.pbtxt").read_text().replace("dims: [ 4 ]", "dims: [ 5 ]"))
    odd = tmp_path / "canary.json"
    odd.write_text('{"data": []}')
    with serving(model.parent, "scale") as server:
        url = ("--url", server.http_url)
        for argv, says in (
            ([model, other], "the same requests do not fit both"),
            ([model, tmp_path / "nowhere"], "neither there nor a setting"),
            ([tmp_path / "nowhere", other], "not a model directory"),
            ([model, "instances=many"], "not a whole number"),
            ([model, "instances=2", "--skip", "parties"], "did you mean `parity`?"),
            ([model, "instances=2", "--slo", "p99"], "no limit in it"),
            ([model, "instances=2", "--canary", odd], "`data` holds no requests"),
            ([model, "instances=2", "--percent", "0"], "--percent"),
        ):
            done = run_cli("promote", *argv, *url)
            assert (done.code, done.out) == (2, ""), (argv, done.err)
            assert says in done.err, done.err
        nobody = run_cli("promote", model, "instances=2", "--url", "127.0.0.1:1")
        assert (nobody.code, "no Triton server answers here" in nobody.err) == (3, True)
        model.with_name("scale.rollout.jsonl").write_bytes(b"\xff\xfe not a log\n")
        damaged = run_cli("rollback", model, *url)
        assert (damaged.code, "the decision log is damaged" in damaged.err) == (2, True)
    assert not model.with_name("scale.next").exists()
    assert sorted(entry.name for entry in model.parent.iterdir()) == ["scale", "scale.rollout.jsonl"]


@pytest.mark.long
def test_a_guarded_load_api_gets_its_key(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tooling.server.flags import ServerFlags

    model = scaled(tmp_path / "models")
    monkeypatch.setenv("TRITON_CONTROL_KEY", "open sesame")
    with serving(model.parent, "scale", flags=ServerFlags(control_key="open sesame")) as server:
        argv = ["promote", model, "instances=2", "--url", server.http_url, *FAST, "--json"]
        monkeypatch.setenv("TRITON_CONTROL_KEY", "open")
        wrong = run_cli(*argv)
        assert (wrong.code, "This API is restricted, expecting header 'triton-control-key'" in wrong.err) == (1, True)
        assert "hint: set TRITON_CONTROL_KEY" in wrong.err
        monkeypatch.setenv("TRITON_CONTROL_KEY", "open sesame")
        done = run_cli(*argv)
        assert done.code == 0, done.err
        assert server.model_config("scale")["instance_group"][0]["count"] == 2


@pytest.mark.long
def test_the_config_for_the_hardware_is_replaced_where_the_server_takes_it(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    from tooling.server.flags import ServerFlags

    model = scaled(tmp_path / "models with a blank")
    portable = (model / "config.pbtxt").read_text()
    own = model / "configs" / "cpu-2.pbtxt"
    own.parent.mkdir()
    own.write_text(portable)
    with serving(model.parent, "scale", flags=ServerFlags(config_name="cpu-2")) as server:
        argv = ["promote", model, "instances=2", "--url", server.http_url, *FAST, "--json"]
        other = run_cli(*argv)
        assert (other.code, "the server takes another config for the new version" in other.err) == (4, True)
        assert (own.read_text(), (model / "config.pbtxt").read_text()) == (portable, portable)
        assert server.model_config("scale")["instance_group"][0]["count"] == 1
        done = run_cli(*argv, "--config-name", "cpu-2")
        assert done.code == 0, done.err
        assert "count: 2" in own.read_text()
        assert (model / "config.pbtxt").read_text() == portable
        assert server.model_config("scale")["instance_group"][0]["count"] == 2
        assert run_cli("rollback", model, "--url", server.http_url).code == 0
        assert own.read_text() == portable
        assert server.model_config("scale")["instance_group"][0]["count"] == 1
