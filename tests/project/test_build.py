"""`tritune build`: what is done, what is not done again, and what is told of it; every step is the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tooling.project.digests import Digests
from tooling.project.lock import Done
from tooling.project.plan import facts_of, judge
from tooling.project.steps import Step

ALL = ["one config", "two config", "check", "deploy compose"]


def ran(result: Any) -> list[str]:
    assert result.code == 0, result.err
    return result.json["data"]["ran"]


def test_a_build_makes_all_and_the_next_does_nothing(project: Path, run_cli: Callable[..., Any]) -> None:
    assert sorted(ran(run_cli("build", "--json"))) == sorted(ALL)
    assert "max_batch_size: 4" in (project / "model_repository/one/config.pbtxt").read_text()
    assert (project / "deploy/compose/docker-compose.yml").exists()
    before = (project / "tritune.lock").read_bytes()
    again = run_cli("build")
    assert (again.code, again.out) == (0, "nothing to do: all 4 steps are unchanged\n"), again.err
    assert (project / "tritune.lock").read_bytes() == before


def test_a_dry_run_writes_nothing(project: Path, run_cli: Callable[..., Any]) -> None:
    shown = run_cli("build", "--dry-run")
    assert shown.code == 0
    assert "+ one config: it was never done" in shown.out
    assert "tritune gen-config model_repository/one --release 24.10 --max-batch-size=4 --from=more.yaml" in shown.out
    assert "4 to do, 0 perhaps after these, 0 unchanged" in shown.out
    assert not (project / "tritune.lock").exists()
    assert not (project / "model_repository/one/config.pbtxt").exists()


CHANGES: dict[str, tuple[Callable[[Path, Callable[[Path, float], None]], object], list[str], str]] = {
    "a model": (
        lambda root, write: write(root / "model_repository/two/1/model.onnx", 4.0),
        ["two config", "check"],
        "model_repository/two changed",
    ),
    "an option": (
        lambda root, _: edit(root / "tritune.yaml", "max_batch_size: 4", "max_batch_size: 2"),
        ["one config", "check"],
        "--max-batch-size=4 became --max-batch-size=2",
    ),
    "a file of an option": (
        lambda root, _: (root / "more.yaml").write_text("version_policy: {latest: {num_versions: 2}}\n"),
        ["one config", "check"],
        "more.yaml changed",
    ),
    "what it made": (
        lambda root, _: (root / "model_repository/two/config.pbtxt").unlink(),
        ["two config"],
        "model_repository/two/config.pbtxt is missing",
    ),
    "a deployed file": (
        lambda root, _: (root / "deploy/compose/.env").unlink(),
        ["deploy compose"],
        "is missing",
    ),
    "the release": (
        lambda root, _: edit(root / "tritune.yaml", '"24.10"', '"25.01"'),
        ALL,
        "24.10 became 25.01",
    ),
    "the owner": (
        lambda root, _: edit(root / "tritune.yaml", "search", "ads"),
        ["deploy compose"],
        "--owner=search became --owner=ads",
    ),
}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "an option" else [pytest.mark.long]) for name in CHANGES]
)
def test_each_input_does_again_what_follows_from_it_and_nothing_else(
    name: str, built: Path, run_cli: Callable[..., Any], write_onnx: Callable[[Path, float], None]
) -> None:
    change, again, why = CHANGES[name]
    change(built, write_onnx)
    assert why in run_cli("build", "--dry-run").out
    done = ran(run_cli("build", "--json"))
    deploys = {"deploy compose"} if "check" in again else set()  # where its files come out the same or not
    assert set(again) <= set(done) <= {*again, *deploys}
    assert "nothing to do" in run_cli("build").out


def test_a_library_of_another_version_exports_again(
    built: Path, run_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tooling.project import plan

    real = plan.version
    monkeypatch.setattr(plan, "version", lambda name: "99" if name == "tritune" else real(name))
    shown = run_cli("build", "--dry-run").out
    assert f"tritune: {real('tritune')} before, 99 now" in shown
    assert "4 to do" in shown


def test_what_a_study_of_an_older_format_answered_is_measured_again(tmp_path: Path) -> None:
    """Only where something is built: the study stands on the machine that measured, not in what is committed."""
    step = Step(name="m tune", action="tune", words=("tune", "m"), reads=(), alone=True)
    digests = Digests(tmp_path, tmp_path / "stamps.json")
    facts = facts_of(step, digests, "cpu-2")
    assert judge(step, Done(facts, {}), digests, "cpu-2").state == "unchanged"
    older = Done({**facts, "format of studies": "1"}, {})
    assert judge(step, older, digests, "cpu-2").why == ("format of studies: 1 before, 2 now",)
    assert judge(step, older, digests, "cpu-2", committed=True).state == "unchanged"


@pytest.mark.long
def test_a_file_only_touched_changes_nothing(built: Path, run_cli: Callable[..., Any]) -> None:
    os.utime(built / "model_repository/one/1/model.onnx")
    assert "nothing to do" in run_cli("build").out


@pytest.mark.long
def test_an_edited_config_keeps_its_edit(built: Path, run_cli: Callable[..., Any]) -> None:
    config = built / "model_repository/one/config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "mine" value { string_value: "1" } }\n')
    assert "one config" in ran(run_cli("build", "--json"))
    assert '"mine"' in config.read_text()


HAND = """# ours
name: "two"
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


def test_a_config_of_somebody_s_own_is_taken_as_it_is(project: Path, run_cli: Callable[..., Any]) -> None:
    config = project / "model_repository/two/config.pbtxt"
    config.write_text(HAND)
    assert sorted(ran(run_cli("build", "--json"))) == sorted(set(ALL) - {"two config"})
    assert config.read_text() == HAND
    assert "nothing to do" in run_cli("build").out
    assert run_cli("build", "--frozen").code == 0


def test_a_generated_config_that_was_edited_is_kept_where_no_options_change_it(
    built: Path, run_cli: Callable[..., Any]
) -> None:
    config = built / "model_repository/two/config.pbtxt"
    edited = config.read_text() + 'parameters { key: "mine" value { string_value: "1" } }\n'
    config.write_text(edited)
    assert "two config" not in ran(run_cli("build", "--json"))
    assert config.read_text() == edited


def test_what_a_deployment_tells_is_told_by_the_build(project: Path, run_cli: Callable[..., Any]) -> None:
    tuned = project / "model_repository/two/configs/cpu-2.pbtxt"
    tuned.parent.mkdir()
    tuned.write_text(HAND)
    done = run_cli("build")
    assert done.code == 0, done.err
    assert "warning: deploy compose: config.pbtxt is served; --config-name takes what was made" in done.err


@pytest.mark.long
def test_an_edited_deployment_is_not_replaced(built: Path, run_cli: Callable[..., Any]) -> None:
    compose = built / "deploy/compose/docker-compose.yml"
    compose.write_text(compose.read_text() + "# mine\n")
    refused = run_cli("build")
    assert (refused.code, refused.out) == (2, "")
    assert "deploy compose: " in refused.err and "--force" in refused.err
    assert "# mine" in compose.read_text()


@pytest.mark.long
def test_a_refused_check_ends_the_build(project: Path, run_cli: Callable[..., Any]) -> None:
    broken = project / "model_repository" / "broken" / "config.pbtxt"
    broken.parent.mkdir()
    broken.write_text('name: "broken" backend: "onnxruntime"')
    refused = run_cli("build")
    assert (refused.code, refused.out) == (1, "")
    assert "error: check: " in refused.err and "not done, as it comes after: deploy compose" in refused.err
    broken.unlink()
    broken.parent.rmdir()
    assert ran(run_cli("build", "--json")) == ["check", "deploy compose"], "what was finished is kept"


@pytest.mark.long
def test_a_step_taken_out_of_the_project_is_forgotten(built: Path, run_cli: Callable[..., Any]) -> None:
    edit(built / "tritune.yaml", "deploy:\n  compose: {gpus: none}\n", "")
    assert "- deploy compose: no longer in the project" in run_cli("build", "--dry-run").out
    assert run_cli("build").code == 0
    assert "deploy compose" not in (built / "tritune.lock").read_text()
    assert (built / "deploy/compose/docker-compose.yml").exists()


def test_frozen(built: Path, run_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from tooling.project import plan

    whole = run_cli("build", "--frozen")
    assert (whole.code, whole.out) == (0, "4 steps: what is committed fits together\n")
    monkeypatch.setattr(plan, "version", lambda name: "99")
    assert run_cli("build", "--frozen").code == 0, "the versions here made nothing that is committed"
    before = (built / "tritune.lock").read_bytes()
    edit(built / "tritune.yaml", "max_batch_size: 4", "max_batch_size: 2")
    stale = run_cli("build", "--frozen")
    assert (stale.code, stale.out) == (1, "")
    assert "one config: its options: --max-batch-size=4 became --max-batch-size=2" in stale.err
    assert "run `tritune build` and commit" in stale.err
    assert (built / "tritune.lock").read_bytes() == before
    assert "max_batch_size: 4" in (built / "model_repository/one/config.pbtxt").read_text()


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema_version": 2}', '{"schema_version": 1, "hardware": "cpu-2", "steps": {"a": 1}}']
)
def test_a_damaged_lock_is_refused(built: Path, run_cli: Callable[..., Any], text: str) -> None:
    (built / "tritune.lock").write_text(text)
    refused = run_cli("build")
    assert refused.code == 2
    assert "tritune.lock" in refused.err


@contextmanager
def building(directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tooling.cli.step", "build"]
    with subprocess.Popen(
        command, cwd=directory, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it is ignored in the background
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def children_of(process: subprocess.Popen[str]) -> list[Path]:
    """The steps that a build runs, once it runs any."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        files = Path(f"/proc/{process.pid}/task").glob("*/children")
        if found := [Path("/proc") / pid for file in files for pid in file.read_text().split()]:
            return found
        time.sleep(0.01)
    raise AssertionError("the build runs no step")


def signal_all(processes: list[Path], number: int) -> None:
    for process in processes:
        os.kill(int(process.name), number)


def gone(processes: list[Path]) -> bool:
    deadline = time.monotonic() + 60
    while any(process.exists() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(process.exists() for process in processes)


def test_a_second_build_at_once_is_refused_and_an_interrupt_ends_all(
    project: Path, run_cli: Callable[..., Any]
) -> None:
    with building(project) as first:
        steps = children_of(first)
        signal_all(steps, signal.SIGSTOP)  # so that it still runs when it is interrupted, however busy the machine
        second = run_cli("build")
        assert second.code == 2
        assert "another build of this project runs" in second.err
        first.send_signal(signal.SIGINT)
        signal_all(steps, signal.SIGCONT)
        assert first.wait(60) == 130
        assert gone(steps)
    assert run_cli("build").code == 0
    assert sorted(json.loads((project / "tritune.lock").read_text())["steps"]) == sorted(ALL)


def test_a_killed_build_takes_its_steps_along(project: Path) -> None:
    with building(project) as first:
        steps = children_of(first)
        first.kill()
        assert gone(steps)


def test_serve_takes_the_repository_of_the_project(
    run_cli: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run_cli("serve")
    assert refused.code == 2
    assert "there is no project here" in refused.err and "tritune init" in refused.err
