"""The version before a promotion stays loaded while the new one is watched: the way back is a switch."""

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

pytestmark = pytest.mark.live

GATES = ("--skip", "slo", "--skip", "ab")


def log_of(model_dir: Path) -> list[dict[str, Any]]:
    lines = model_dir.with_name(f"{model_dir.name}.rollout.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def loads(server: Any) -> int:
    """How many instances the server has made so far."""
    return server.log_path.read_text().count("TRITONBACKEND_ModelInstanceInitialize")


def started(argv: list[object], model: Path) -> subprocess.Popen[str]:
    """A promotion in a process of its own, which has switched and watches."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", f"{code}from tooling.cli import entry; entry()", *map(str, argv)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log, deadline = model.with_name("scale.rollout.jsonl"), time.monotonic() + 60
    while not (log.exists() and '"promoted"' in log.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no promotion"
        time.sleep(0.05)
    return process


def test_the_old_version_stays_loaded_until_the_new_one_has_held(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    (model / "export.json").write_text("{}")
    (candidate / "export.json").write_text('{"of": "the new one"}')
    before = (model / "config.pbtxt").read_text()
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 8) as clients:
        nothing = run_cli("rollback", model, "--url", server.http_url)
        assert (nothing.code, "there is nothing to take back" in nothing.err) == (2, True)
        assert [entry.name for entry in model.parent.iterdir()] == ["scale"]
        made = loads(server)
        done = run_cli("promote", model, candidate, "--url", server.http_url, *GATES, "--hold", "2s", "--json")
        assert done.code == 0, done.err
        assert (done.json["data"]["promoted"], done.json["data"]["serves"]) == (True, [2])
        assert done.json["data"]["gates"][-1]["gate"] == "hold"
        assert "version 2 serves, and the one before stays loaded for 2 s" in done.err
        assert loads(server) == made + 2, "the candidate beside the model, then as its version 2; version 1 never again"
        entries = {entry["step"]: entry for entry in log_of(model)}
        assert (entries["promoted"]["kept"], entries["let go"]["unloaded"]) == ([1], [1])
        assert (model / "export.json").read_text() == '{"of": "the new one"}'
        assert not model.with_name("scale.next").exists()
        assert model.with_name("scale.canary.json").exists()

        back = run_cli("rollback", model, "--url", server.http_url, "--json")
        assert (back.code, back.json["data"]["serves"]) == (0, [1]), back.err
        assert ((model / "config.pbtxt").read_text(), (model / "export.json").read_text()) == (before, "{}")
        assert not model.with_name("scale.canary.json").exists(), "its answers are those of the version that went"
        clients.wait_for("scale", "1")
    assert clients.failed == clients.wrong == []
    assert set(clients.seen) == {("scale", "1"), ("scale", "2")}


@pytest.mark.long
def test_a_rollback_while_it_is_watched_loads_nothing(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    before = (model / "config.pbtxt").read_text()
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 8) as clients:
        url = ("--url", server.http_url)
        process = started(["promote", model, candidate, *url, *GATES, "--hold", "60s"], model)
        clients.wait_for("scale", "2")
        made = loads(server)
        back = run_cli("rollback", model, *url, "--json")
        assert (back.code, back.json["data"]["serves"]) == (0, [1]), back.err
        assert loads(server) == made
        clients.wait_for("scale", "1")
        out, err = process.communicate(timeout=30)
        assert (process.returncode, "it was taken back meanwhile" in out) == (1, True), err
        assert "version 1 serves as before" in out
        assert (model / "config.pbtxt").read_text() == before
        assert [entry.name for entry in model.iterdir() if entry.name.isdecimal()] == ["1"]
        assert not model.with_name("scale.next").exists()
    assert clients.failed == clients.wrong == []


@pytest.mark.long
def test_a_rollback_does_not_wait_for_the_canary_s_answers(
    tmp_path: Path, scripted: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    """The new version takes 0.2 s for each of the sixteen that it is asked for after the switch."""
    model, candidate = scripted(tmp_path / "models"), scripted(tmp_path / "new", work="time.sleep(0.2)")
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 2) as clients:
        url = ("--url", server.http_url)
        process = started(["promote", model, candidate, *url, *GATES, "--hold", "60s"], model)
        back = run_cli("rollback", model, *url, "--json")
        assert (back.code, back.json["data"]["serves"]) == (0, [1]), back.err
        clients.wait_for("scale", "1")
        out, err = process.communicate(timeout=60)
        assert (process.returncode, "it was taken back meanwhile" in out) == (1, True), err
        assert not model.with_name("scale.canary.json").exists(), "those would be the answers of the version that went"
    assert clients.failed == clients.wrong == []


@pytest.mark.long
def test_of_two_rollbacks_one_takes_back_what_both_mean(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    model = scaled(tmp_path / "models")
    with serving(model.parent, "scale") as server:
        url = ("--url", server.http_url)
        for name in ("second", "third"):
            done = run_cli("promote", model, scaled(tmp_path / name), *url, *GATES, "--hold", "0s")
            assert done.code == 0, done.err
        with Ledger(model) as other:
            argv = ["rollback", str(model), *url]
            command = [sys.executable, "-c", "from tooling.cli import entry; entry()", *argv]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert process.stderr is not None
            assert "waiting for the switch that is under way" in process.stderr.readline()
            other.note("rolled back", version=3, served=[2])
        _, err = process.communicate(timeout=60)
        assert (process.returncode, "another rollout came first" in err) == (2, True), err
        assert server.model_config("scale")["version_policy"] == {"specific": {"versions": [3]}}, "nothing was changed"


@pytest.mark.long
def test_an_interrupted_watch_leaves_both_and_the_next_step_lets_go(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    model, candidate = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 4) as clients:
        url = ("--url", server.http_url)
        process = started(["promote", model, candidate, *url, *GATES, "--hold", "60s"], model)
        clients.wait_for("scale", "2")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode == 130
        third = run_cli("promote", model, scaled(tmp_path / "third"), *url, *GATES, "--hold", "1s", "--json")
        assert (third.code, third.json["data"]["serves"]) == (0, [3]), third.err
        assert [entry["unloaded"] for entry in log_of(model) if entry["step"] == "let go"] == [[1], [2]]
        for version in (2, 1):
            back = run_cli("rollback", model, *url, "--json")
            assert (back.code, back.json["data"]["serves"]) == (0, [version]), back.err
    assert clients.failed == clients.wrong == []


@pytest.mark.long
def test_a_version_that_fails_under_all_the_traffic_goes_back_by_itself(
    tmp_path: Path, scripted: Callable[..., Path], serving: Any, traffic: Any, run_cli: Any
) -> None:
    """One request in twenty, after the first five hundred."""
    model = scripted(tmp_path / "models")
    count = "self.n = getattr(self, 'n', 0) + len(requests)"
    work = f"{count}\n        if self.n > 500 and self.n % 20 < len(requests): raise RuntimeError('no memory')"
    candidate = scripted(tmp_path / "new", work=work)
    with serving(model.parent, "scale") as server, traffic(server.grpc_url, "scale", 4) as clients:
        done = run_cli("promote", model, candidate, "--url", server.http_url, *GATES, "--hold", "60s", "--json")
        assert done.code == 1, done.err
        data = done.json["data"]
        assert (data["promoted"], data["serves"], data["gates"][-1]["gate"]) == (False, [1], "hold")
        clients.wait_for("scale", "1")
    assert [entry["step"] for entry in log_of(model)[-2:]] == ["gate", "rolled back"]


@pytest.mark.long
def test_another_config_or_file_lets_the_old_version_go(
    tmp_path: Path, scaled: Callable[..., Path], serving: Any, run_cli: Any
) -> None:
    """A model has one config: with another one the old version would be another model."""
    model, labelled = scaled(tmp_path / "models"), scaled(tmp_path / "new", factor=2.01)
    (labelled / "labels.txt").write_text("yes\nno\n")
    with serving(model.parent, "scale") as server:
        for version, candidate in ((2, "instances=2"), (3, labelled)):
            done = run_cli("promote", model, candidate, "--url", server.http_url, *GATES, "--hold", "60s", "--json")
            assert (done.code, done.json["data"]["serves"]) == (0, [version]), done.err
            assert f"version {version - 1} does not stay loaded: it has another config, or other files" in done.err
            assert done.json["data"]["gates"][-1]["gate"] == "ab"
