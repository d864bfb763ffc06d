"""Tensors that Triton feeds are named only: their types and dims are the model's, and they leave the lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.config.build import build_config, change_config
from tooling.config.changes import Changes
from tooling.config.fed import Fed, batch_kinds
from tooling.config.knobs import Knobs
from tooling.config.proto import pb
from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature, TensorSpec

SIGNATURE = ModelSignature(
    Path("model.onnx"),
    "onnxruntime",
    (
        TensorSpec("x", "TYPE_FP32", (-1, 4)),
        TensorSpec("start", "TYPE_FP32", (-1, 1)),
        TensorSpec("ready", "TYPE_BOOL", (-1, 1)),
        TensorSpec("end", "TYPE_INT32", (-1, 1)),
        TensorSpec("id", "TYPE_UINT64", (-1, 1)),
        TensorSpec("h", "TYPE_FP16", (-1, 1, 256)),
    ),
    (TensorSpec("y", "TYPE_FP32", (-1, 2)), TensorSpec("h_next", "TYPE_FP16", (-1, 1, 256))),
)
CONTROLS = {"start": "START", "ready": "READY", "end": "END", "id": "CORRID"}
ASKED = Changes(fed=Fed("oldest", True, CONTROLS, {"h": "h_next"}))


def test_a_sequence_model():
    config = build_config(SIGNATURE, "m", Knobs(), changes=ASKED)
    batching = config.sequence_batching
    assert config.WhichOneof("scheduling_choice") == "sequence_batching"
    assert batching.WhichOneof("strategy_choice") == "oldest" and batching.iterative_sequence
    controls = {entry.name: entry.control[0] for entry in batching.control_input}
    assert list(controls["start"].fp32_false_true) == [0, 1]
    assert list(controls["ready"].bool_false_true) == [False, True]
    assert list(controls["end"].int32_false_true) == [0, 1]
    assert controls["id"].data_type == pb().TYPE_UINT64
    state = batching.state[0]
    assert (state.input_name, state.output_name, state.data_type, list(state.dims)) == (
        "h", "h_next", pb().TYPE_FP16, [1, 256],
    )  # fmt: skip
    assert [t.name for t in config.input] == ["x"] and [t.name for t in config.output] == ["y"]


def test_what_is_there_already_stays():
    config = build_config(SIGNATURE, "m", Knobs(), changes=ASKED)
    config.sequence_batching.state[0].use_same_buffer_for_input_output = True
    assert change_config(config, "m", SIGNATURE, ASKED) == config


def test_a_ragged_batch():
    signature = ModelSignature(
        Path("model.onnx"),
        "onnxruntime",
        (TensorSpec("row", "TYPE_FP32", (-1,)), TensorSpec("ends", "TYPE_INT32", (-1, 1))),
        (TensorSpec("y", "TYPE_FP32", (-1, 2)),),
    )
    fed = Fed(batch_inputs={"ends": ("ACCUMULATED_ELEMENT_COUNT", "row")}, ragged=("row",))
    config = build_config(signature, "m", Knobs(), changes=Changes(fed=fed))
    batch = config.batch_input[0]
    assert (batch.kind, batch.data_type) == (pb().BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT, pb().TYPE_INT32)
    assert (list(batch.target_name), list(batch.source_input)) == (["ends"], ["row"])
    assert [t.name for t in config.input] == ["row"] and config.HasField("dynamic_batching")
    assert len(batch_kinds()) == 6


@pytest.mark.parametrize(
    ("fed", "said"),
    [
        (Fed(controls={"strat": "START"}), "--control strat=START: `strat` is no input of the model"),
        (Fed(controls={"h": "START"}), "`h` has a type that no control has (got TYPE_FP16; expected TYPE_INT32"),
        (Fed(controls={"x": "START"}), "`x` must be one value for each request (got [-1, 4]; expected [-1, 1]"),
        (Fed(ragged=("rows",)), "--ragged rows: `rows` is no input of the model"),
        (Fed(states={"h": "y_next", "g": "y"}), "`y_next` is no output of the model (expected y, h_next)"),
        (Fed(batch_inputs={"n": ("ELEMENT_COUNT", "x")}), "--batch-input n=ELEMENT_COUNT:x: `n` is no input"),
    ],
)
def test_what_the_model_does_not_have(fed, said):
    with pytest.raises(UsageError) as caught:
        build_config(SIGNATURE, "m", Knobs(), changes=Changes(fed=fed))
    assert said in str(caught.value)
