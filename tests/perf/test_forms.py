"""Other forms of a model in a tuning: what they may be, whose answers are near enough, and that the faster one wins."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perf.forms import forms
from perf.operands import Base
from perf.slo import Slo
from tooling.config.knobs import Knobs, read
from tooling.errors import UsageError
from tooling.repository import read_config


@pytest.fixture
def model(tmp_path: Path, layered: Any) -> Path:
    return layered(tmp_path / "repo" / "encoder", 1)


def base(model_dir: Path) -> Base:
    return Base(model_dir.name, read_config(model_dir), model_dir)


def with_cosine(model_dir: Path, cosine: float | None) -> Path:
    (model_dir / "export.json").write_text(json.dumps({"verification": {"cosine": cosine}}))
    return model_dir


def test_a_directory_and_settings_are_forms(model: Path, tmp_path: Path, layered: Any) -> None:
    small = with_cosine(layered(tmp_path / "other" / "small", 0), 0.9987)
    found = forms([str(small), "parameters[execution_mode]=1"], base(model))
    assert [form.text for form in found] == [f"{small} (cosine 0.9987)", "parameters[execution_mode]=1"]
    assert [form.model_dir for form in found] == [small, model]
    assert found[1].config.parameters["execution_mode"].string_value == "1"


def test_answers_must_be_near_enough_where_that_is_asked(model: Path, tmp_path: Path, layered: Any) -> None:
    small = with_cosine(layered(tmp_path / "small", 0), 0.97)
    (form,) = forms([str(small)], base(model))
    assert form.refusal(Slo.parse("throughput")) is None
    assert form.refusal(Slo.parse("cosine>0.96")) is None
    assert form.refusal(Slo.parse("cosine>0.99")) == "cosine>0.99: not met (0.97)"
    for broken in ("{", "[]", '{"verification": {"cosine": "high"}}', '{"verification": {"cosine": null}}'):
        (small / "export.json").write_text(broken)
        (form,) = forms([str(small)], base(model))
        assert form.refusal(Slo.parse("cosine>0.99")) == "cosine>0.99: no export.json tells its cosine"
        assert form.refusal(Slo.parse("p99<1s")) is None


def test_a_backend_without_threads_keeps_its_own(model: Path, tmp_path: Path, layered: Any) -> None:
    engine = layered(tmp_path / "engine", 0)
    (engine / "config.pbtxt").write_text((model / "config.pbtxt").read_text().replace('"onnxruntime"', '"tensorrt"'))
    (engine / "1/model.onnx").rename(engine / "1/model.plan")
    (form,) = forms([str(engine)], base(model))
    assert form.knobs(Knobs(instance_count=2, intra_op_threads=1)) == Knobs(instance_count=2)
    (same,) = forms(["current"], base(model))
    assert same.knobs(Knobs(intra_op_threads=1)) == Knobs(intra_op_threads=1)


def test_other_requests_are_refused(model: Path, tmp_path: Path, layered: Any) -> None:
    other = layered(tmp_path / "small", 0)
    (other / "config.pbtxt").write_text((model / "config.pbtxt").read_text().replace('"x"', '"ids"'))
    with pytest.raises(UsageError, match="the same requests do not fit both"):
        forms([str(other)], base(model))


@pytest.mark.live
@pytest.mark.long
def test_the_faster_form_is_taken(tmp_path: Path, run_cli: Any, layered: Any) -> None:
    slow = layered(tmp_path / "repo" / "encoder", 6)
    fast = with_cosine(layered(tmp_path / "small forms" / "encoder_small", 0), 0.995)
    far = with_cosine(layered(tmp_path / "far", 0), 0.5)
    argv = ["--concurrency", 2, "--instances", 1, "--threads", 1, "--delay", 0, "--direct", "--budget", "60s"]
    argv += ["--slo", "cosine>0.9", "--study", tmp_path / "study", "--apply"]
    done = run_cli("tune", slow, "--also", fast, "--also", far, *argv, "--json")
    assert done.code == 0, done.err
    data = done.json["data"]
    taken = next(trial for trial in data["trials"] if trial["id"] == data["chosen"])
    assert taken["form"] == f"{fast} (cosine 0.9950)" and taken["verdict"]["ratio"] > 1.3
    refused = next(trial for trial in data["trials"] if trial["form"].startswith(str(far)))
    assert (refused["state"], refused["reason"]) == ("failed", "cosine>0.9: not met (0.5)")
    written = Path(data["config"])
    assert written.parent == fast / "configs" and not (slow / "configs").exists()
    from tooling.config.render import parse

    tuned = parse(written.read_text(), str(written))
    assert read(tuned).intra_op_threads == taken["knobs"]["intra_op_threads"]
    record = json.loads((tmp_path / "study" / "decision.json").read_text())
    assert f"other answers: those of {fast} (cosine 0.9950)" in record["cost"]
    again = run_cli("tune", slow, "--also", fast, "--also", far, *argv)
    assert again.code == 0 and "encoder_small" in again.out
    shutil.rmtree(fast)
    gone = run_cli("tune", slow, "--also", fast, *argv)
    assert gone.code == 2 and "neither a path that is there nor a setting" in gone.err
