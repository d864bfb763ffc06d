"""What the words of `tritune compare` stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.operands import Base, base_of, sides
from tooling.config.knobs import read
from tooling.errors import UsageError

CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { max_queue_delay_microseconds: 100 }
"""


def add_model(repository: Path, name: str = "double", config: str = CONFIG, code: str = "pass") -> Path:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(config)
    return repository / name


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return add_model(tmp_path / "dépôt one")


def test_settings_files_and_directories(model: Path, tmp_path: Path) -> None:
    (model / "configs").mkdir()
    (model / "configs" / "cpu-2.pbtxt").write_text(CONFIG.replace("100", "200"))
    loose = tmp_path / "other.pbtxt"
    loose.write_text(CONFIG.replace("100", "300"))
    words = [str(model), "delay=5ms,max-batch-size=16", "current", str(model / "configs" / "cpu-2.pbtxt"), str(loose)]
    base = base_of(words, None)
    assert (base.name, base.model_dir) == ("double", model)
    found = sides(words, base)
    assert [side.variant.id for side in found] == ["A", "B1", "B2", "B3", "B4"]
    knobs = [read(side.variant.config) for side in found]
    assert [k.max_queue_delay_us for k in knobs] == [100, 5_000, 100, 200, 300]
    assert [k.max_batch_size for k in knobs] == [8, 16, 8, 8, 8]
    assert all(side.variant.model_dir == model for side in found)
    assert found[0].digest == found[2].digest
    assert len({side.digest for side in found}) == 4


def test_any_field_of_the_config_is_a_setting(model: Path) -> None:
    base = base_of([], model)
    (side,) = sides(["parameters[limit]=7,instance_group[0].kind=KIND_CPU"], Base("double", base.config, model))
    config = side.variant.config
    assert config.parameters["limit"].string_value == "7"
    assert config.instance_group[0].kind == 2


def test_a_python_model_has_no_threads(model: Path) -> None:
    with pytest.raises(UsageError, match="the python backend has no setting for threads"):
        sides(["threads=2"], base_of([], model))


def test_repositories_stand_for_their_model(model: Path, tmp_path: Path) -> None:
    other = add_model(tmp_path / "new", code="other = True")
    add_model(tmp_path / "new", "another")
    words = [str(model.parent), str(tmp_path / "new")]
    found = sides(words, base_of(words, None))
    assert [side.variant.model_dir for side in found] == [model, other]
    assert found[0].digest != found[1].digest, "the same config with another model file"
    with pytest.raises(UsageError, match="it is not said which model the settings are for"):
        base_of([str(tmp_path / "new"), "delay=1ms"], None)


def test_a_model_that_is_named_and_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, what in (("file", "not a model directory"), ("nothing", "does not exist")):
        with pytest.raises(UsageError, match=f"{tmp_path / name}: {what}"):
            base_of([], tmp_path / name)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("delay=3", "not a duration"),
        ("delay", r"neither a path that is there nor a setting \(got `delay`"),
        ("instances=two", "not a whole number"),
        ("instances=0", "instances is out of range"),
        ("dealy=3ms", "no setting of this name"),
        ("threads=1,threads=2", r"a setting is given twice \(got `threads`\)"),
        ("max-batch-size=4,max_batch_size=8", r"a setting is given twice \(got `max_batch_size`\)"),
        ("", r"neither a path that is there nor a setting \(got ``"),
        ("batching=maybe", "neither on nor off"),
        ("max-batch-size=0", "dynamic batching needs batches"),
        ("max-batch-size=0,batching=off,delay=0", "batching in only one of them"),
        ("input[0].dims=[3]", "other inputs"),
    ],
)
def test_what_cannot_be_compared_says_why(model: Path, word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sides([str(model), word], base_of([str(model)], None))


def test_all_wrong_words_are_told_at_once(model: Path) -> None:
    with pytest.raises(UsageError) as raised:
        sides([str(model), "dealy=3ms", "instances=x"], base_of([str(model)], None))
    assert [p.where for p in raised.value.problems] == ["`dealy=3ms`", "`instances=x`"]
    assert raised.value.problems[0].hint == "did you mean `delay`?"


def test_a_bare_config_or_an_empty_place_is_refused(model: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.pbtxt"
    bare.write_text('backend: "python"')
    with pytest.raises(UsageError, match="leaves inputs, outputs and batching to Triton"):
        sides([str(model), str(bare)], base_of([str(model)], None))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="not a model directory"):
        sides([str(model), str(tmp_path / "empty")], base_of([str(model)], None))


def test_on_a_running_server_files_are_its_own(model: Path) -> None:
    base = Base("double", base_of([], model).config, None)
    found = sides(["current", "delay=1ms", str(model / "config.pbtxt")], base)
    assert [side.variant.model_dir for side in found] == [None] * 3
    with pytest.raises(UsageError, match="the files of a running server are its own"):
        sides([str(model)], base)
