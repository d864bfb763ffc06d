"""Settings that would not fit into memory are told before they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perf import footprint
from perf.footprint import OWN_BYTES, Room, taken_bytes
from perf.grid import Candidate
from tooling.config.knobs import Knobs
from tooling.config.proto import pb

CURRENT = Candidate("default", Knobs(instance_count=1))


def test_what_fits_beside_the_current_config() -> None:
    room = Room(10 << 30, "memory", 2 << 30)
    tries = [Candidate(str(n), Knobs(instance_count=n)) for n in (1, 4, 5)]
    assert [one.id for one in room.fitting(tries, CURRENT)] == ["1", "4"]
    assert room.left_out(tries * 2, CURRENT) == (
        "5 instances beside those of the current config take about 12.0 GiB, of 10.0 GiB of memory that are free",
    )
    assert room.refusal(Candidate("auto", Knobs()), CURRENT) is None, "Triton makes two on the CPU"


def test_settings_loaded_together_fit_together() -> None:
    room = Room(10 << 30, "memory", 2 << 30)
    tries = [Candidate(f"{n}-{number}", Knobs(instance_count=n)) for number, n in enumerate((1, 2, 2, 4, 1))]
    groups = room.groups(tries, CURRENT)
    assert [[one.id for one in group] for group in groups] == [["1-0", "2-1"], ["2-2"], ["4-3"], ["1-4"]]
    assert room.groups([], CURRENT) == []


def test_what_a_configured_model_takes(tmp_path: Path) -> None:
    config = pb().ModelConfig(instance_group=[{"count": 2}, {"count": 1}])
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.onnx").write_bytes(b"x" * (2 << 20))
    assert taken_bytes(config, tmp_path) == 3 * ((3 << 20) + OWN_BYTES)
    assert taken_bytes(config, None) == 0, "it is on another machine"


def test_weights_beside_the_graph_count(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x" * (1 << 20))
    (tmp_path / "model.onnx.data").write_bytes(b"x" * (3 << 20))
    room = Room.here(tmp_path / "model.onnx", gpu=False)
    assert room is not None and room.instance_bytes == (6 << 20) + OWN_BYTES
    assert 1 << 28 < room.free_bytes < 1 << 45


def test_the_fullest_gpu_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.onnx").write_bytes(b"x")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '80000\\n1024\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    room = Room.here(tmp_path / "model.onnx", gpu=True)
    assert room is not None and (room.free_bytes, room.kind) == (1 << 30, "GPU memory")
    program.write_text("#!/bin/sh\nexit 9\n")
    assert Room.here(tmp_path / "model.onnx", gpu=True) is None, "no driver answers"


@pytest.mark.live
@pytest.mark.long
def test_a_tuning_says_what_it_does_not_try(layered: Any, tmp_path: Path, run_cli: Any, monkeypatch: Any) -> None:
    model = layered(tmp_path / "repo" / "encoder", 1)
    room = Room.here(model / "1/model.onnx", gpu=False)
    assert room is not None
    monkeypatch.setattr(footprint, "free_main_bytes", lambda: 6 * room.instance_bytes)
    argv = ["--instances", "1,3,40", "--threads", 1, "--delay", 0, "--direct", "--budget", "1s", "--concurrency", 2]
    done = run_cli("tune", model, *argv, "--study", tmp_path / "study", "--json")
    assert done.code == 0, done.err
    assert "warning: not tried: 40 instances beside those of the current config take about" in done.err
    data = done.json["data"]
    assert {trial["knobs"]["instance_count"] for trial in data["trials"]} == {1, 3}
    assert "Not tried: 40 instances" in data["method"]
    none = run_cli("tune", model, "--instances", "40,50", "--direct")
    assert none.code == 1 and "no setting fits into memory" in none.err
