"""Rules of Triton's core: every one is told before Triton would, all at once; what Triton takes is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.config.build import build_config
from tooling.config.changes import Changes
from tooling.config.knobs import Knobs
from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature, TensorSpec

IDS = TensorSpec("ids", "TYPE_INT64", (-1, -1))
EMB = TensorSpec("emb", "TYPE_FP32", (-1, 4))


def build(settings: dict, backend: str = "python", inputs=(IDS,), outputs=(EMB,), folder=None, **knobs):
    signature = ModelSignature(Path("file"), backend, inputs, outputs)
    return build_config(signature, "m", Knobs(**knobs), changes=Changes(settings, "f"), folder=folder)


def problems(settings: dict, **more) -> list[str]:
    with pytest.raises(UsageError) as caught:
        build(settings, **more)
    return [str(problem) for problem in caught.value.problems]


def dynamic(**fields) -> dict:
    return {"dynamic_batching": fields}


def controls(*entries: dict, **more) -> dict:
    return {"sequence_batching": {"control_input": list(entries), **more}}


START = {"kind": "START", "int32_false_true": [0, 1]}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            dynamic(preferred_batch_size=[16]),
            "preferred_batch_size must be positive and at most max_batch_size (got 16",
        ),
        (dynamic(priority_levels=2), "default_priority_level is no level (got 0; expected 1 (first) to 2"),
        (
            dynamic(priority_levels=2, default_priority_level=1, priority_queue_policy={3: {}}),
            "priority_queue_policy 3 is for no level",
        ),
        (dynamic(priority_queue_policy={1: {}}), "expected priority_levels 1 or more"),
        (
            dynamic(priority_levels=2, default_priority_level=1, preserve_ordering=True),
            "preserve_ordering needs priority_levels <= 1",
        ),
        (
            dynamic(
                preserve_ordering=True,
                default_queue_policy={"timeout_action": "DELAY", "default_timeout_microseconds": "1s"},
            ),
            "default_queue_policy cannot delay requests",
        ),
        (dynamic(default_queue_policy={"allow_timeout_override": True}), "allow_timeout_override has no effect"),
        (
            dynamic(max_queue_delay_microseconds=5000, default_queue_policy={"default_timeout_microseconds": 500}),
            "default_queue_policy lets requests expire before a batch forms",
        ),
        (controls({"name": "", "control": [START]}), "a sequence control has no name"),
        (controls({"name": "S", "control": [START]}, {"name": "S"}), "control input `S` stands twice"),
        (
            controls({"name": "S", "control": [START]}, {"name": "T", "control": [START]}),
            "CONTROL_SEQUENCE_START is given to 2 tensors",
        ),
        (controls({"name": "S", "control": [{"kind": "END"}]}), "needs its values for false and true (got none"),
        (
            controls({"name": "S", "control": [{**START, "fp32_false_true": [0, 1]}]}),
            "(got int32_false_true, fp32_false_true",
        ),
        (
            controls({"name": "S", "control": [{"kind": "READY", "bool_false_true": [False, True, True]}]}),
            "bool_false_true has two values (got 3",
        ),
        (
            controls({"name": "C", "control": [{"kind": "CORRID", "data_type": "FP32"}]}),
            "CONTROL_SEQUENCE_CORRID `C` cannot be TYPE_FP32",
        ),
        (
            controls({"name": "C", "control": [{"kind": "CORRID", "data_type": "UINT64", "int32_false_true": [0, 1]}]}),
            "takes no false and true values",
        ),
        (controls(oldest={"preferred_batch_size": [9]}), "oldest.preferred_batch_size must be positive and at most"),
        (controls(direct={"minimum_slot_utilization": 1.5}), "minimum_slot_utilization is a share of the slots"),
        ({"instance_group": [{"kind": "CPU", "gpus": [0]}]}, "instance_group 0: KIND_CPU must not list gpus (got [0]"),
        ({"instance_group": [{"gpus": [-1]}]}, "a GPU has no negative number"),
        ({"instance_group": [{"count": -1}]}, "count is negative"),
        ({"instance_group": [{"profile": ["0"]}]}, "profile is for TensorRT plans only"),
        (
            {"instance_group": [{"rate_limiter": {"resources": [{"name": "R"}]}}]},
            "a rate limiter resource needs a name and a count (got `R`, count 0",
        ),
        ({"response_cache": {"enable": True}, **controls()}, "does not work with sequence batching"),
        (
            {"response_cache": {"enable": True}, "model_transaction_policy": {"decoupled": True}},
            "does not work with decoupled responses",
        ),
        ({"version_policy": {"latest": {}}}, "version_policy loads no version (got latest 0"),
        ({"version_policy": {"specific": {}}}, "version_policy loads no version (got specific without versions"),
    ],
)
def test_schedulers_instances_and_policies(settings, said):
    found = problems(settings)
    assert any(said in problem for problem in found), found


def tensor(**fields) -> dict:
    return {"input": [{"name": "ids", **fields}]}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (tensor(dims=[0]), "input `ids` has unusable dims (got [0]"),
        (tensor(dims=None), "input `ids` has no dims"),
        (tensor(data_type="INVALID"), "input `ids` has no data_type"),
        (tensor(dims=[4], reshape={"shape": [3]}), "hold another number of elements (got dims [4], reshape [3]"),
        (tensor(dims=[-1], reshape={"shape": [1]}), "another number of -1"),
        (tensor(dims=[2, 4, -1, 6], reshape={"shape": [4, -1, 2, 6]}), "another number of elements"),
        (tensor(dims=[4], reshape={}), "another number of elements"),
        (tensor(format="NHWC"), "input `ids` has an image format (got 1 dims"),
        (tensor(is_non_linear_format_io=True), "non-linear formats are for TensorRT only"),
        ({"input": [{"data_type": "FP32", "dims": [1]}]}, "input `` has no name"),
        ({"output": [{"name": "emb", "label_filename": "../l.txt"}]}, "lie outside of the model directory"),
        ({"output": [{"name": "emb", "label_filename": "l.txt"}]}, "labels of `emb` are missing"),
        ({"batch_input": [{"target_name": "n", "data_type": "INT32"}]}, "has one source_input (got 0"),
        ({"batch_input": [{"target_name": "n", "data_type": "INT64", "source_input": "ids"}]}, "(got TYPE_INT64"),
        ({"batch_input": [{"data_type": "INT32", "source_input": "idz"}]}, "`idz` is no input (expected ids"),
        ({"batch_input": [{"data_type": "INT32", "source_input": "ids"}]}, "feeds no tensor"),
        ({"batch_output": [{"source_input": "ids", "target_name": ["x"]}]}, "`x` is no output (expected emb"),
        ({"batch_output": [{"source_input": "ids", "target_name": ["emb", "emb"]}]}, "`emb` stands twice"),
        ({"name": "other"}, "a model must have the name of its directory (got `other`; expected `m`"),
    ],
)  # fmt: skip
def test_tensors(settings, said, tmp_path):
    found = problems(settings, folder=tmp_path)
    assert any(said in problem for problem in found), found


def test_an_empty_reshape_needs_batching():
    found = problems(tensor(dims=[1], reshape={}), max_batch_size=0, dynamic_batching=False)
    assert any("cannot be reshaped to a scalar" in problem for problem in found)


@pytest.mark.parametrize(
    "settings",
    [
        tensor(dims=[1], reshape={}),
        tensor(dims=[2, 4, -1, 6], reshape={"shape": [8, -1, 1, 6]}),
        tensor(dims=[3, 2, 2], format="NCHW"),
        dynamic(priority_levels=2, default_priority_level=2, priority_queue_policy={1: {"max_queue_size": 1}}),
        dynamic(preserve_ordering=True, priority_levels=1, default_priority_level=1),
        dynamic(preserve_ordering=True, default_queue_policy={"timeout_action": "DELAY"}),
        {"sequence_batching": {}},
        controls({"name": "S", "control": [START]}, oldest={"max_candidate_sequences": 64}, iterative_sequence=True),
        {"sequence_batching": {"direct": {"minimum_slot_utilization": 0.5}}},
        {"version_policy": {"all": {}}},
        {"instance_group": [{"count": 1, "kind": "GPU", "gpus": [0]}, {"count": 2, "kind": "CPU"}]},
        {"model_transaction_policy": {"decoupled": True}},
    ],
)
def test_what_triton_takes(settings):
    build(settings)


def test_what_triton_feeds_itself_leaves_the_lists():
    """Controls, states and batch inputs are the model's tensors too; listed twice they would be one too many."""
    names = ("x", "START", "state_in", "len")
    inputs = tuple(TensorSpec(name, "TYPE_FP32", (-1, 1)) for name in names)
    outputs = tuple(TensorSpec(name, "TYPE_FP32", (-1, 1)) for name in ("y", "state_out"))
    state = {"input_name": "state_in", "output_name": "state_out", "data_type": "FP32", "dims": [1]}
    settings = controls({"name": "START", "control": [{"kind": "START", "fp32_false_true": [0, 1]}]}, state=[state])
    settings["batch_input"] = [{"target_name": "len", "data_type": "FP32", "source_input": "x"}]
    config = build(settings, backend="onnxruntime", inputs=inputs, outputs=outputs)
    assert [t.name for t in config.input] == ["x"] and [t.name for t in config.output] == ["y"]


def test_labels_that_are_there(tmp_path):
    (tmp_path / "labels.txt").write_text("no\nyes\n")
    build({"output": [{"name": "emb", "label_filename": "labels.txt"}]}, folder=tmp_path)


def test_everything_at_once():
    found = problems({**dynamic(preferred_batch_size=[9]), **tensor(dims=[0]), "response_cache": {"enable": True},
                      "model_transaction_policy": {"decoupled": True}})  # fmt: skip
    assert len(found) == 3
