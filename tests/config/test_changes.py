"""What is asked of a config: a file, then knobs, then assignments; of a written one, nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tooling.config.build import build_config, change_config
from tooling.config.changes import Changes
from tooling.config.knobs import Knobs
from tooling.config.proto import pb
from tooling.config.render import parse
from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature, TensorSpec

SIGNATURE = ModelSignature(
    Path("model.onnx"),
    "onnxruntime",
    (TensorSpec("ids", "TYPE_INT64", (-1, -1)), TensorSpec("n", "TYPE_INT64", (-1,))),
    (TensorSpec("emb", "TYPE_FP32", (-1, 384)),),
)
WRITTEN = """
platform: "onnxruntime_onnx" max_batch_size: 4
input [{ name: "ids" data_type: TYPE_INT64 dims: -1 }, { name: "n" data_type: TYPE_INT64 dims: 1 reshape {} }]
output { name: "emb" data_type: TYPE_FP32 dims: 384 label_filename: "" }
instance_group [{ count: 2 kind: KIND_GPU gpus: 0 }, { kind: KIND_CPU }]
"""


def changed(text: str = WRITTEN, **changes):
    return change_config(parse(text, "config"), "m", SIGNATURE, Changes(**changes))


def problems(text: str = WRITTEN, **changes) -> list[str]:
    with pytest.raises(UsageError) as caught:
        changed(text, **changes)
    return [str(problem) for problem in caught.value.problems]


def test_nearer_wins():
    asked = Changes(
        {"max_batch_size": 2, "metric_tags": {"a": "file"}}, "f", {"max_batch_size": 4}, ("metric_tags[a]=set",)
    )
    assert asked.max_batch_size == 4
    config = build_config(SIGNATURE, "m", Knobs(), changes=asked)
    assert (config.max_batch_size, config.metric_tags["a"]) == (4, "set")
    again = Changes({}, "", {"max_batch_size": 4}, ("max_batch_size=16",))
    assert build_config(SIGNATURE, "m", Knobs(), changes=again).max_batch_size == 16


@pytest.mark.parametrize(
    ("changes", "batch"),
    [
        (Changes(), None),
        (Changes({"max_batch_size": "many"}), None),
        (Changes(assignments=("max_batch_size=many",)), None),
        (Changes(assignments=("max_batch_size=4", "-max_batch_size")), 0),
        (Changes({"max_batch_size": 3}, assignments=("max_batch_sizes=4",)), 3),
    ],
)
def test_the_batch_that_is_asked_for(changes, batch):
    assert changes.max_batch_size == batch


def test_without_batching_shapes_are_whole_and_nothing_is_merged():
    config = build_config(SIGNATURE, "m", Knobs(), changes=Changes(assignments=("max_batch_size=0",)))
    assert [list(t.dims) for t in config.input] == [[-1, -1], [-1]] and not config.HasField("dynamic_batching")


def test_only_what_is_asked_for_changes():
    before = parse(WRITTEN, "config")
    after = changed(knobs={"max_batch_size": 16})
    assert after.max_batch_size == 16
    after.max_batch_size = 4
    assert after == before
    assert changed(settings={"metric_tags": {"a": "b"}}).metric_tags["a"] == "b"
    assert parse(WRITTEN, "config") == before


def test_the_shapes_of_the_model_follow_where_batching_goes_and_comes():
    alone = changed(knobs={"max_batch_size": 0})
    assert [(list(t.dims), t.HasField("reshape")) for t in alone.input] == [([-1, -1], False), ([-1], False)]
    assert list(alone.output[0].dims) == [-1, 384]
    back = change_config(alone, "m", SIGNATURE, Changes(knobs={"max_batch_size": 4}))
    assert back == parse(WRITTEN, "config")
    narrow = WRITTEN.replace("dims: -1", "dims: 128")
    (problem,) = [p for p in problems(narrow, knobs={"max_batch_size": 0}) if "follow" in p]
    assert "the shape of `ids` does not follow from the model's (got dims [128]" in problem
    asked = changed(narrow, knobs={"max_batch_size": 0}, assignments=("input[ids].dims=[-1, 128]",))
    assert [list(t.dims) for t in asked.input] == [[-1, 128], [-1]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"assignments": ("foo=1",)}, "--set foo=1: `ModelConfig` has no field `foo`"),
        ({"assignments": ("name=x",)}, "name: a model must have the name of its directory (got `x`; expected `m`)"),
        ({"assignments": ("output[emb].data_type=FP16",)}, "another type than the model (got TYPE_FP16; expected"),
        ({"assignments": ("output[emb].dims=[-1]",)}, "`emb` has another shape than the model (got [-1, -1] with"),
        ({"assignments": ("input[ids].dims=[2, 2]",)}, "input `ids` has another shape than the model"),
        ({"assignments": ("-input[n]",)}, "nothing feeds input `n` of the model"),
        ({"assignments": ("input[0].name=id",)}, "input `id` is no input of the model (expected ids, n)"),
        ({"knobs": {"instance_count": 1}}, "several instance groups"),
        ({"knobs": {"max_queue_delay_us": 5}}, "max_queue_delay needs dynamic batching"),
        ({"knobs": {"max_batch_size": -1}}, "max_batch_size is out of range"),
        ({"assignments": ("instance_group[0].kind=7",)}, "instance_group[0].kind: no value of this field (got 7)"),
        ({"assignments": ("input[0].data_type=99",)}, "input[0].data_type: no value of this field (got 99)"),
        ({"settings": {"instance_groop": 1}, "origin": "f"}, "f: instance_groop: `ModelConfig` has no field"),
    ],
)  # fmt: skip
def test_the_result_must_fit_the_model(changes, said):
    with pytest.raises(UsageError) as caught:
        change_config(parse(WRITTEN, "config"), "m", SIGNATURE, Changes(**changes))
    assert any(said in str(problem) for problem in caught.value.problems), caught.value


def test_all_that_cannot_be_is_told_at_once():
    found = problems(settings={"a": 1}, origin="f", knobs={"max_batch_size": -1}, assignments=("b=1", "c=1"))
    assert [text.split(" ")[:2] for text in found] == [
        *(["f:", "a:"], ["max_batch_size", "is"], ["--set", "b=1:"], ["--set", "c=1:"])
    ]


def test_what_triton_fills_in_may_be_missing():
    """A config may leave its tensors and its backend to Triton."""
    assert changed("max_batch_size: 8", assignments=("response_cache.enable=true",)).response_cache.enable


def test_older_platforms_name_their_backend():
    threads = change_config(
        pb().ModelConfig(platform="pytorch_libtorch"),
        "m",
        None,
        Changes(knobs={"intra_op_threads": 2, "dynamic_batching": False}),
    )
    assert threads.parameters["INTRA_OP_THREAD_COUNT"].string_value == "2"
    plan = pb().ModelConfig(platform="tensorrt_plan")
    assert change_config(plan, "m", None, Changes(assignments=("instance_group[0].profile=['0']",))).instance_group


def test_a_control_takes_the_place_of_its_input():
    control = "{ kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }"
    asked = Changes(assignments=(f"sequence_batching.control_input[0]={{ name: 'n' control {control} }}",))
    inputs = (SIGNATURE.inputs[0], TensorSpec("n", "TYPE_INT32", (-1, 1)))
    after = change_config(parse(WRITTEN, "config"), "m", replace(SIGNATURE, inputs=inputs), asked)
    assert [t.name for t in after.input] == ["ids"]
