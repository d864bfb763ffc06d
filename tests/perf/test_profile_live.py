"""`tritune profile` on the real server: the stored curve, and what `tritune simulate` makes of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from perf.curve import Setting, read_curve
from perf.profile import profile
from perf.profile_request import ProfileRequest
from tooling.console import Console
from tooling.repository import read_config
from tooling.server import EmbeddedServer, ServerFlags, ServerOptions

pytestmark = pytest.mark.live

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { max_queue_delay_microseconds: 500000 default_queue_policy { max_queue_size: 1 } }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """FP32 [-1, -1] → its square, in a path with a blank and an accent; its config makes every request wait."""
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "x"], ["y"])], "square", [x], [y])
    directory = tmp_path / "dépôt one" / "square"
    (directory / "1").mkdir(parents=True)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), directory / "1/model.onnx"
    )
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory


@pytest.mark.long
def test_a_curve_is_measured_stored_and_simulated(run_cli: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    options = ("--instances", 2, "--threads", 1, "--traffic", "8,64", "--rows", "1,4", "--budget", "10s")
    plot = tmp_path / "curve one.svg"
    result = run_cli("profile", model, "--curve", path, "--plot", plot, *options)
    assert result.code == 0, result.err
    assert result.out.startswith("2 instances × 1 thread\nrows × length")
    assert "law " in result.out
    assert str(path) in result.out
    drawing = ElementTree.parse(plot).getroot()
    texts = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"8 tokens", "64 tokens", "1", "4"} <= set(texts)
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}circle"))) == 4

    curve = read_curve(path)
    assert curve.model["name"] == "square"
    assert curve.lengths == (8, 64)
    series = curve.of(Setting(instances=2, threads=1))
    assert set(series.points) == {(1, 8), (1, 64), (4, 8), (4, 64)}
    assert all(len(runs) >= 2 for runs in series.busy(1).values())
    assert all(0.01 < time < 100 for time in series.points.values())
    assert all(batch.rows == run.rows for runs in series.busy(1).values() for run in runs for batch in run.batches)
    assert {run.clients for run in series.runs if run.lengths == (8, 64)} == {5}
    merged = [run for run in series.runs if run.clients == 16 and run.rows == 1]
    assert max(batch.rows for run in merged for batch in run.batches) == 4
    assert all(sum(b.rows * b.executions for b in run.batches) == len(run.sent_us) * run.rows for run in series.runs)

    data = run_cli(
        "simulate", model, "--curve", path, "--threads", 1, "--instances", 2, "--concurrency", 1, "--json"
    ).json["data"]
    answer = data["predicted"][-1]
    lone_us = min(min(run.latency_us) for run in series.busy(1)[1, 8])
    assert answer["avg_us"] > 500_000  # the delay of the config, which the curve was measured without
    assert answer["avg_us"] - 500_000 > 0.5 * lone_us


@pytest.mark.long
def test_a_budget_leaves_runs_out_or_is_refused(run_cli: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    """Two rounds of all 15 runs of 0.2 s take 6 s, of the 5 that make a curve 2 s."""
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 4", "max_batch_size: 64"))
    path = tmp_path / "curve.json"
    options = ("--curve", path, "--instances", 2, "--threads", 1, "--traffic", "8,32,64")
    code, out, err = run_cli("profile", model, *options, "--budget", "1s")
    assert (code, out) == (2, "")
    assert "square: the budget is too small for this profile (got 1s; expected about " in err
    assert not path.exists()

    result = run_cli("profile", model, *options, "--budget", "5s", "--json")
    assert result.code == 0, result.err
    curve, setting = read_curve(path), Setting(instances=2, threads=1)
    left_out = curve.left_out[str(setting)]
    assert result.json["data"]["left_out"] == {str(setting): list(left_out)}
    assert left_out[0] == "33 rows"
    assert {rows for rows, _ in curve.of(setting).points} == {1, 64}
    assert all(len(runs) >= 2 for runs in curve.of(setting).busy(1).values())
    crowd = [run for run in curve.runs if run.clients == 256]
    assert bool(crowd) == ("requests to be merged" not in left_out)

    played = run_cli("simulate", model, "--curve", path, "--instances", 2, "--threads", 1, "--json").json["data"]
    told = f"with {setting} these were not measured, for want of time: 33 rows"
    assert any(note.startswith(told) for note in played["notes"])


def test_a_tuning_without_time_measures_the_least_once(model: Path, runtime: Any) -> None:
    request = ProfileRequest(model_dir=model, settings=(Setting(2, 1),), traffic=(8, 32, 64), budget_s=0.1, brief=True)
    curve = profile(request, runtime=runtime, console=Console(show_progress=False))
    loads = [(run.clients, run.rows, run.lengths) for run in curve.runs]
    assert loads == [(1, 1, (8,)), (1, 4, (8,)), (1, 1, (64,)), (1, 4, (64,)), (2, 1, (8,))]
    assert curve.left_out["2 instances × 1 thread"][-1] == "busy instances beyond one point"


@pytest.mark.long
def test_settings_are_loaded_together_and_measured_in_turn(model: Path, runtime: Any) -> None:
    both = (Setting(1, 1), Setting(2, 1))
    request = ProfileRequest(model_dir=model, settings=both, traffic=(8,), rows=(1,), budget_s=8)
    curve = profile(request, runtime=runtime, console=Console(show_progress=False))
    turns = [setting for setting, _ in groupby(curve.runs, key=lambda run: (run.instances, run.threads))]
    assert turns[:4] == [*both, *both]


@pytest.mark.long
def test_a_response_cache_is_not_taken_for_the_model(
    run_cli: Callable[..., Any], model: Path, tmp_path: Path, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with EmbeddedServer(model.parent, runtime, ServerOptions(flags=ServerFlags(cache_bytes=2**24))) as server:
        config = read_config(model)
        config.dynamic_batching.Clear()
        config.response_cache.enable = True
        server.load("square", config)
        options = ("--url", server.http_url, "--curve", tmp_path / "c.json", "--traffic", 8, "--lengths", 8)
        refused = run_cli("profile", "square", *options, "--rows", 1)
        assert (refused.code, "Triton does not count what it executed" in refused.err) == (4, True)
        assert "hint: its response cache answers: give --allow-reconfigure, or turn it off" in refused.err
        done = run_cli(
            "profile", "square", *options, "--rows", 1, "--allow-reconfigure", "--instances", 1, "--budget", "9s"
        )
        assert done.code == 0, done.err
        assert server.model_config("square")["response_cache"] == {"enable": True}


@pytest.mark.long
def test_a_running_server_is_profiled_as_it_is_or_given_back(
    run_cli: Callable[..., Any], model: Path, tmp_path: Path, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with EmbeddedServer(model.parent, runtime) as server:
        config = read_config(model)
        config.dynamic_batching.Clear()
        config.instance_group.add(count=1)
        server.load("square", config)
        before = server.model_config("square")
        path = tmp_path / "curve.json"
        options = ("--url", server.http_url, "--curve", path, "--traffic", "8,64", "--rows", "1,4", "--budget", "20s")
        only = run_cli("profile", "square", *options)
        assert only.code == 0, only.err
        curve = read_curve(path)
        assert [setting.instances for setting in curve.settings] == [1]
        assert curve.server["url"] == server.http_url
        assert curve.model["sha256"] is None
        both = run_cli("profile", "square", *options, "--instances", "1,2", "--threads", 1, "--allow-reconfigure")
        assert both.code == 0, both.err
        assert read_curve(path).settings == (Setting(1, 1), Setting(2, 1))
        assert server.model_config("square") == before


def test_a_model_that_cannot_be_profiled_is_refused(run_cli: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    (model / "export.json").write_text('{"max_tokens": 64}')
    for options, message in (
        (("--rows", "5"), "more rows than the model takes"),
        ((), "no tokenizer.json"),
        (("--threads", "x"), "--threads"),
        (("--traffic", "8", "--lengths", "16,99"), "longer than the model can take"),
        (("--traffic", "99"), "longer than the model can take"),
        (("--traffic", "8", "--curve", tmp_path), "not a regular file"),
        (("--traffic", "8", "--curve", "/proc/none/c.json"), "cannot be written"),
        (("--traffic", "8", "--plot", model / "config.pbtxt" / "x.svg"), "x.svg: cannot be written"),
    ):
        code, out, err = run_cli("profile", model, "--curve", tmp_path / "no.json", *options)
        assert (code, out) == (2, ""), message
        assert message in err
    assert not (tmp_path / "no.json").exists()
