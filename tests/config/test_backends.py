"""What each backend needs stands in the config by itself; what it refuses is refused with all its rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.config.build import build_config
from tooling.config.changes import Changes
from tooling.config.knobs import Knobs
from tooling.config.proto import pb
from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature, Profile, TensorSpec

X = TensorSpec("x", "TYPE_FP32", (-1, 3))
Y = TensorSpec("y", "TYPE_FP32", (-1, 2))
ALONE = Knobs(max_batch_size=0, dynamic_batching=False)


def signature(backend: str, inputs=(X,), outputs=(Y,), **more) -> ModelSignature:
    return ModelSignature(Path("file"), backend, inputs, outputs, **more)


def problems(sig: ModelSignature, knobs: Knobs = Knobs(), settings: dict | None = None) -> list[str]:
    with pytest.raises(UsageError) as caught:
        build_config(sig, "m", knobs, changes=Changes(settings or {}, "f"))
    return [str(problem) for problem in caught.value.problems]


def profile(low: int, high: int, longest: int = 3) -> Profile:
    return Profile({"x": (low, 1)}, {"x": (high, 2)}, {"x": (high, longest)})


def test_tensorrt():
    config = build_config(signature("tensorrt", profiles=(profile(1, 8),)), "m", Knobs())
    assert (config.platform, config.backend, config.max_batch_size) == ("tensorrt_plan", "tensorrt", 8)
    assert not config.instance_group  # one profile is used anyway


def test_every_profile_of_a_plan_is_used():
    sig = signature("tensorrt", profiles=(profile(1, 4), profile(1, 16)))
    config = build_config(sig, "m", Knobs(max_batch_size=16, instance_count=2))
    assert [(g.count, list(g.profile)) for g in config.instance_group] == [(2, ["0", "1"])]
    chosen = build_config(
        sig, "m", Knobs(max_batch_size=4), changes=Changes({"instance_group": [{"profile": ["0"]}]}, "f")
    )
    assert [list(g.profile) for g in chosen.instance_group] == [["0"]]


@pytest.mark.parametrize(
    ("profiles", "knobs", "settings", "said"),
    [
        ([profile(1, 4)], Knobs(), {}, "larger than the plan's profiles allow (got 8; expected at most 4"),
        (
            [profile(1, 4), profile(1, 16)],
            Knobs(),
            {"instance_group": [{"profile": ["0"]}]},
            "(got 8; expected at most 4",
        ),
        ([profile(64, 128)], Knobs(), {}, "the plan needs at least 64 rows, and Triton may send 1"),
        ([profile(1, 8)], Knobs(), {"instance_group": [{"profile": ["1"]}]}, "no such profile (got profile 1"),
        ([profile(1, 8)], Knobs(instance_kind="cpu"), {}, "(got KIND_CPU; expected KIND_AUTO or KIND_GPU"),
        (
            [profile(1, 8)],
            Knobs(),
            {"input": [{"name": "x", "dims": [512]}]},
            "input `x` is outside profile 0 on axis 1 (got 512; expected 1 to 3, or -1",
        ),
        (
            [profile(1, 8)],
            Knobs(),
            {"input": [{"name": "x", "dims": [2, 256], "reshape": {"shape": [512]}}]},
            "input `x` is outside profile 0 on axis 1 (got 512; expected 1 to 3, or -1",
        ),
    ],
)
def test_tensorrt_refuses(profiles, knobs, settings, said):
    found = problems(signature("tensorrt", profiles=tuple(profiles)), knobs, settings)
    assert any(said in problem for problem in found), found


def test_a_shape_tensor_has_no_batch_axis():
    shape = TensorSpec("s", "TYPE_INT32", (3,), shape_tensor=True)
    config = build_config(signature("tensorrt", inputs=(X, shape)), "m", Knobs())
    assert [(list(t.dims), t.is_shape_tensor) for t in config.input] == [([3], False), ([2], True)]


def test_openvino_runs_on_the_cpu_and_pads():
    config = build_config(signature("openvino"), "m", ALONE)
    assert [(g.kind, g.count) for g in config.instance_group] == [(pb().ModelInstanceGroup.KIND_CPU, 0)]
    assert (list(config.input[0].dims), dict(config.parameters)) == ([-1, 3], {})
    batching = build_config(signature("openvino"), "m", Knobs(intra_op_threads=2, instance_count=2))
    assert {key: value.string_value for key, value in batching.parameters.items()} == {
        "INFERENCE_NUM_THREADS": "2",
        "ENABLE_BATCH_PADDING": "YES",
    }
    assert batching.instance_group[0].kind == pb().ModelInstanceGroup.KIND_CPU
    assert (
        "does not run on instances of this kind (got KIND_GPU"
        in problems(signature("openvino"), Knobs(instance_kind="gpu"))[0]
    )


def test_pytorch_names():
    sig = signature("pytorch", arguments=("x",))
    config = build_config(sig, "m", Knobs(intra_op_threads=1))
    assert (config.platform, config.parameters["INTRA_OP_THREAD_COUNT"].string_value) == ("pytorch_libtorch", "1")
    two = (X, TensorSpec("mask", "TYPE_FP32", (-1, 1)))
    assert (
        "input `mask` is no argument of `forward`, and the others are"
        in problems(signature("pytorch", inputs=two, arguments=("x", "attention_mask")))[0]
    )
    by_index = tuple(TensorSpec(f"INPUT__{i}", "TYPE_FP32", (-1, 1)) for i in range(2))
    build_config(signature("pytorch", inputs=by_index, arguments=("x", "attention_mask")), "m", Knobs())


def test_pytorch_strings_have_one_axis():
    text = TensorSpec("x", "TYPE_STRING", (-1, 1))
    assert "input `x` must be one list of strings" in problems(signature("pytorch", inputs=(text,)))[0]
    build_config(signature("pytorch", inputs=(TensorSpec("x", "TYPE_STRING", (-1,)),)), "m", Knobs())


@pytest.mark.parametrize(
    ("backend", "data_type"), [("pytorch", "TYPE_UINT16"), ("openvino", "TYPE_FP64"), ("tensorrt", "TYPE_STRING")]
)
def test_types_a_backend_does_not_serve(backend, data_type):
    found = problems(signature(backend, outputs=(TensorSpec("y", data_type, (-1, 2)),)), ALONE)
    assert f"output `y` has a type that Triton's {backend} backend does not serve (got {data_type}" in found[0]


def test_python_keeps_optional_inputs_with_batching():
    optional = TensorSpec("k", "TYPE_INT32", (-1, 1), optional=True)
    config = build_config(signature("python", inputs=(X, optional), decoupled=True), "m", Knobs())
    assert [(t.name, t.optional) for t in config.input] == [("x", False), ("k", True)]
    assert config.model_transaction_policy.decoupled
    for backend in ("tensorrt", "onnxruntime"):
        found = problems(signature(backend), settings={"input": [{"name": "x", "optional": True}]})
        assert "input `x` cannot be optional" in found[0]


def test_python_has_a_batch_of_its_own():
    sig = signature("python", max_batch_size=4)
    assert "more than the model says of itself (got 4" in problems(sig)[0]
    assert "has no setting for threads" in problems(sig, Knobs(max_batch_size=4, intra_op_threads=1))[0]


def test_vllm():
    sig = signature("vllm", inputs=(), outputs=(), max_batch_size=0, decoupled=True)
    config = build_config(sig, "m", ALONE)
    assert [g.kind for g in config.instance_group] == [pb().ModelInstanceGroup.KIND_MODEL]
    assert config.model_transaction_policy.decoupled and config.max_batch_size == 0
    found = problems(
        sig,
        ALONE,
        {
            "model_transaction_policy": {"decoupled": False},
            "instance_group": [{"kind": "CPU"}],
            "input": [{"name": "text_input", "data_type": "STRING", "dims": [1]}],
            "dynamic_batching": {},
        },
    )
    assert len(found) == 4
    alone = build_config(sig, "m", ALONE, changes=Changes({"instance_group": [{"kind": "GPU", "gpus": [1]}]}, "f"))
    assert list(alone.instance_group[0].gpus) == [1], "an engine on one GPU"


def test_a_ragged_model_fed_by_batch_input():
    """Rank 1 data and an index that Triton makes: the model's second input is not listed, and nothing is missing."""
    row, index, z = (TensorSpec(name, "TYPE_FP32", (-1,)) for name in ("row", "index", "z"))
    ragged = {
        "input": [{"name": "row", "allow_ragged_batch": True}],
        "batch_input": [
            {"kind": "ACCUMULATED_ELEMENT_COUNT", "target_name": "index", "data_type": "FP32", "source_input": "row"}
        ],
    }
    config = build_config(signature("onnxruntime", (row, index), (z,)), "m", Knobs(), changes=Changes(ragged, "f"))
    assert [(t.name, list(t.dims), t.HasField("reshape")) for t in config.input] == [("row", [-1], False)]
    assert (list(config.output[0].dims), list(config.output[0].reshape.shape)) == ([1], [])
    found = problems(signature("onnxruntime"), Knobs(), {"input": [{"name": "x", "allow_ragged_batch": True}]})
    assert "input `x` is ragged, and the model takes more than one axis (got [-1, 3]; expected [-1]" in found[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"sequence_batching": {"control_input": [{"name": "START", "control": [
                {"kind": "START", "int32_false_true": [0, 1]}]}]}},
            "sequence control `START` is no input of the model",
        ),
        ({"output": [{"name": "z", "data_type": "FP32", "dims": [1]}]}, "output `z` is no output of the model"),
    ],
)  # fmt: skip
def test_tensors_are_the_model_s(settings, said):
    assert said in problems(signature("onnxruntime"), Knobs(), settings)[0]


def test_ragged_inputs_only_where_they_work():
    ragged = {"input": [{"name": "x", "allow_ragged_batch": True}]}
    assert "input `x` cannot be ragged (got backend openvino" in problems(signature("openvino"), ALONE, ragged)[0]
    build_config(signature("python"), "m", Knobs(), changes=Changes(ragged, "f"))


def test_another_file_name_is_said():
    assert build_config(signature("python"), "m", Knobs(), file="other.py").default_model_filename == "other.py"
