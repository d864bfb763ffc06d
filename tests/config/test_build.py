"""A built config says what the signature says, and knobs that Triton refuses are refused with its rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.config.build import build_config
from tooling.config.changes import Changes
from tooling.config.knobs import Knobs
from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature, TensorSpec


def signature(*inputs: TensorSpec, outputs: tuple[TensorSpec, ...] = ()) -> ModelSignature:
    return ModelSignature(
        Path("model.onnx"), "onnxruntime", inputs, outputs or (TensorSpec("y", "TYPE_FP32", (-1, 384)),)
    )


X = TensorSpec("x", "TYPE_INT64", (-1, -1))
ALONE = Knobs(max_batch_size=0, dynamic_batching=False)


def problems(sig: ModelSignature, knobs: Knobs, name: str = "m") -> list[str]:
    with pytest.raises(UsageError) as caught:
        build_config(sig, name, knobs)
    return [str(p) for p in caught.value.problems]


def test_batching_leaves_the_first_axis_out():
    config = build_config(signature(X), "m", Knobs())
    assert (config.name, config.backend, config.platform, config.max_batch_size) == ("m", "onnxruntime", "", 8)
    assert [(t.name, list(t.dims)) for t in (*config.input, *config.output)] == [("x", [-1]), ("y", [384])]
    assert config.HasField("dynamic_batching") and not config.instance_group and not config.parameters


def test_without_batching_the_shapes_are_whole():
    config = build_config(signature(X), "m", ALONE)
    assert [list(t.dims) for t in (*config.input, *config.output)] == [[-1, -1], [-1, 384]]
    assert not config.HasField("dynamic_batching")


def test_a_tensor_with_only_the_batch_axis_is_reshaped_from_one():
    config = build_config(signature(TensorSpec("x", "TYPE_FP32", (-1,))), "m", Knobs())
    assert list(config.input[0].dims) == [1] and config.input[0].HasField("reshape")
    assert list(config.input[0].reshape.shape) == []


def test_a_scalar_without_batching_is_one_without_reshape():
    config = build_config(signature(TensorSpec("x", "TYPE_FP32", ())), "m", ALONE)
    assert list(config.input[0].dims) == [1] and not config.input[0].HasField("reshape")


def test_optional_inputs_are_listed_only_without_batching():
    sig = signature(X, TensorSpec("w", "TYPE_FP32", (1,), optional=True))
    assert [t.name for t in build_config(sig, "m", Knobs()).input] == ["x"]
    assert [(t.name, t.optional) for t in build_config(sig, "m", ALONE).input] == [("x", False), ("w", True)]


def test_tensors_that_cannot_batch_are_all_named():
    sig = signature(X, TensorSpec("z", "TYPE_FP32", (1, 3)), outputs=(TensorSpec("s", "TYPE_FP32", ()),))
    assert not sig.can_batch
    found = problems(sig, Knobs())
    assert len(found) == 2
    assert "`z`" in found[0] and "got shape [1, 3]; expected shape [-1, …]" in found[0]
    assert "`s`" in found[1] and "got shape []" in found[1]


def test_an_axis_of_length_zero_is_refused():
    assert "axis of length 0" in problems(signature(TensorSpec("x", "TYPE_FP32", (-1, 0))), Knobs())[0]


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        (Knobs(max_batch_size=-1), ["max_batch_size is out of range (got -1;", "dynamic batching needs batches"]),
        (Knobs(max_batch_size=0), ["dynamic batching needs batches (got max_batch_size 0;"]),
        (Knobs(max_batch_size=2**31), ["max_batch_size is out of range"]),
        (Knobs(instance_count=0), ["instances is out of range (got 0;"]),
        (Knobs(intra_op_threads=-1), ["threads is out of range (got -1;"]),
        (Knobs(max_queue_delay_us=-1), ["max_queue_delay is out of range (got -1;"]),
        (Knobs(max_queue_delay_us=2**64), ["max_queue_delay is out of range"]),
        (
            Knobs(dynamic_batching=False, preferred_batch_size=(4,), max_queue_delay_us=9),
            ["preferred_batch_size needs dynamic batching", "max_queue_delay needs dynamic batching"],
        ),
        (
            Knobs(max_batch_size=0, dynamic_batching=False, preferred_batch_size=(4,)),
            ["preferred_batch_size needs dynamic batching (got max_batch_size 0"],
        ),
        (
            Knobs(max_queue_delay_us=-9, instance_count=-1, intra_op_threads=-2),
            ["instances is out of range", "threads is out of range", "max_queue_delay is out of range"],
        ),
    ],
)
def test_impossible_knobs(knobs, expected):
    found = problems(signature(X), knobs)
    assert len(found) == len(expected)
    assert all(text in problem for text, problem in zip(expected, found, strict=True)), found


@pytest.mark.parametrize(
    "name", ["", "mini lm", 'a"b', "a'b", "modèle", "a/b", "a\\b", "..", "a..b", ".hidden", "-x", "a\n"]
)
def test_names_that_triton_or_the_file_system_trips_over(name):
    assert "not a usable model name" in problems(signature(X), Knobs(), name)[0]


def test_name_and_knobs_are_refused_together():
    assert len(problems(signature(X), Knobs(instance_count=-1), "mini lm")) == 2


def test_what_triton_feeds_itself_leaves_the_lists():
    """Controls, states and batch inputs are the model's tensors too; listed twice they would be one too many."""
    inputs = tuple(TensorSpec(name, "TYPE_FP32", (-1, 1)) for name in ("x", "START", "state_in", "len"))
    outputs = tuple(TensorSpec(name, "TYPE_FP32", (-1, 1)) for name in ("y", "state_out"))
    state = {"input_name": "state_in", "output_name": "state_out", "data_type": "FP32", "dims": [1]}
    start = {"name": "START", "control": [{"kind": "START", "fp32_false_true": [0, 1]}]}
    settings = {
        "sequence_batching": {"control_input": [start], "state": [state]},
        "batch_input": [{"target_name": "len", "data_type": "FP32", "source_input": "x"}],
    }
    config = build_config(signature(*inputs, outputs=outputs), "m", Knobs(), changes=Changes(settings, "f"))
    assert [t.name for t in config.input] == ["x"] and [t.name for t in config.output] == ["y"]
