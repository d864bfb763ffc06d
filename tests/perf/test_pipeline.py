"""An ensemble in a tuning: which of its models is tuned, and that its clients' requests are what is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perf.pipeline import front_of
from tooling.errors import UsageError

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 64 ] } ]
ensemble_scheduling {
  step [
    { model_name: "first" model_version: -1
      input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } },
    { model_name: "second" model_version: -1
      input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
  ]
}
"""


@pytest.fixture
def ensemble(tmp_path: Path, layered: Any) -> Path:
    """`both` = `first`, then the larger `second`."""
    layered(tmp_path / "repo" / "first", 0)
    layered(tmp_path / "repo" / "second", 3)
    (tmp_path / "repo" / "both" / "1").mkdir(parents=True)
    (tmp_path / "repo" / "both" / "config.pbtxt").write_text(ENSEMBLE)
    return tmp_path / "repo" / "both"


def test_the_largest_onnx_model_is_the_part(ensemble: Path) -> None:
    front = front_of(ensemble)
    assert front is not None and front.part == ensemble.parent / "second"
    assert [spec.name for spec in front.signature.required_inputs] == ["x"]
    assert front_of(front.part) is None
    assert front_of(ensemble.parent) is None


def test_an_ensemble_without_onnx_cannot_be_tuned(ensemble: Path) -> None:
    for name in ("first", "second"):
        (ensemble.parent / name / "1/model.onnx").rename(ensemble.parent / name / "1/model.py")
    with pytest.raises(UsageError, match="no model of this ensemble can be tuned") as raised:
        front_of(ensemble)
    assert raised.value.problems[0].got == "first, second"


def test_wrong_usage_is_told(ensemble: Path, run_cli: Any) -> None:
    small = run_cli("tune", ensemble, "--max-batch-size", "1,2")
    assert small.code == 2 and "the ensemble takes more rows than any batch asked" in small.err
    lengths = run_cli("tune", ensemble, "--lengths", "16")
    assert lengths.code == 2 and "lengths: the model's inputs have no length" in lengths.err


@pytest.mark.live
@pytest.mark.long
def test_an_ensemble_is_tuned_as_one(ensemble: Path, run_cli: Any, tmp_path: Path, layered: Any) -> None:
    small = layered(tmp_path / "small", 0)
    argv = ["--concurrency", 3, "--instances", 1, "--threads", 1, "--max-batch-size", "2,8", "--delay", 0]
    argv += ["--budget", "110s", "--study", tmp_path / "study", "--also", small, "--apply"]
    done = run_cli("tune", ensemble, *argv, "--json")
    assert done.code == 0, done.err
    data = done.json["data"]
    assert data["model"] == "second" and "Requests went to the ensemble both." in data["method"]
    assert {trial["knobs"]["max_batch_size"] for trial in data["trials"]} == {8}, "2 is less than the ensemble takes"
    rows = [json.loads(line) for line in (tmp_path / "study" / "study.jsonl").read_text().splitlines()]
    argvs = [row["measurement"]["argv"] for row in rows if row["record"] == "measurement"]
    asked = {words[words.index("-m") + 1] for words in argvs}
    assert asked >= {"both", "both.candidate", "both.candidate-2"}
    chosen = next(trial for trial in data["trials"] if trial["id"] == data["chosen"])
    assert chosen["form"] == str(small) and Path(data["config"]).parent == small / "configs"
    url = run_cli("tune", ensemble, "--url", "127.0.0.1:1", "--allow-reconfigure")
    assert url.code == 3, "nothing listens there"
