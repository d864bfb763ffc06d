"""A plan says its version, and its sidecar the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tooling.errors import UsageError
from tooling.signature.declared import Declared, declare
from tooling.signature.tensorrt_plan import plan_version, read_plan

HEADER = b"ftrt" + bytes(20) + bytes([10, 5, 0, 18])
MANIFEST = {
    "schema_version": 1,
    "tensorrt": "10.5.0.18",
    "compute_capability": "8.9",
    "inputs": [{"name": "ids", "data_type": "INT64", "shape": [-1, -1]}],
    "outputs": [{"name": "emb", "data_type": "FP32", "shape": [-1, 384]}],
    "profiles": [
        {"ids": {"min": [1, 1], "opt": [8, 64], "max": [16, 64]}},
        {"ids": {"min": [1, 65], "opt": [8, 128], "max": [32, 128]}},
    ],
}


@pytest.fixture
def plan(tmp_path: Path):
    """`plan(**changes)` writes a plan with its sidecar; `plan(None)` without one."""

    def write(manifest=MANIFEST, **changes) -> Path:
        path = tmp_path / "model.plan"
        path.write_bytes(HEADER + b"weights")
        if manifest is not None:
            (tmp_path / "model.plan.json").write_text(json.dumps({**manifest, **changes}))
        return path

    return write


def test_sidecar_and_header(plan):
    signature = read_plan(plan(), Declared())
    assert (signature.backend, signature.built_with) == ("tensorrt", "10.5.0.18")
    assert signature.max_batch_size == 16, "17 short requests fit no profile"
    assert [(t.name, t.data_type, t.dims) for t in (*signature.inputs, *signature.outputs)] == [
        ("ids", "TYPE_INT64", (-1, -1)),
        ("emb", "TYPE_FP32", (-1, 384)),
    ]
    assert [profile.batches for profile in signature.profiles] == [(1, 16), (1, 32)]
    assert signature.can_batch


@pytest.mark.parametrize(
    ("sizes", "largest"),
    [
        ([(1, 8, 1, 64)], 8),
        ([(2, 8, 1, 64)], 0),
        ([(1, 16, 1, 64), (1, 32, 65, 128)], 16),
        ([(1, 4, 1, 64), (1, 32, 1, 128)], 32),
        ([(1, 32, 1, 64), (1, 4, 1, 128)], 4),
        ([(1, 32, 1, 128), (8, 64, 1, 128)], 32),
    ],
)
def test_the_largest_batch_is_taken_at_every_length(plan, sizes, largest):
    """Rows from, to; lengths from, to."""
    ranges = [((few, low), (most, high)) for few, most, low, high in sizes]
    profiles = [{"ids": {"min": least, "opt": most, "max": most}} for least, most in ranges]
    assert read_plan(plan(profiles=profiles), Declared()).max_batch_size == largest


def test_a_plan_that_takes_no_single_request_cannot_batch(plan):
    profile = {"ids": {"min": [64, 1], "opt": [64, 8], "max": [128, 64]}}
    signature = read_plan(plan(profiles=[profile]), Declared())
    assert signature.max_batch_size == 0 and not signature.can_batch


def test_without_a_sidecar_only_the_version_is_known(plan):
    with pytest.raises(UsageError) as caught:
        read_plan(plan(None), Declared())
    assert "TensorRT 10.5.0.18" in str(caught.value) and "no --input and no --output-tensor" in str(caught.value)
    signature = read_plan(plan(None), declare(["x:FP32:-1,3"], ["y:FP32:-1,2"]))
    assert signature.built_with == "10.5.0.18" and signature.profiles == ()


def test_a_sidecar_of_another_plan(plan):
    with pytest.raises(UsageError, match=r"belongs to another plan \(got TensorRT 10\.6"):
        read_plan(plan(tensorrt="10.6.0.26"), Declared())
    with pytest.raises(UsageError, match="belongs to another plan"):
        read_plan(plan(tensorrt="10.5.0.1"), Declared())
    assert read_plan(plan(tensorrt="10.5"), Declared()).profiles


def test_everything_wrong_in_a_sidecar_is_told(plan, tmp_path):
    with pytest.raises(UsageError) as caught:
        read_plan(
            plan(
                compute_capability="sm89",
                extra=1,
                inputs=[{"name": "ids", "data_type": "FLOAT", "shape": [-1, -1]}],
                profiles=[{"ids": {"min": [2], "opt": [1], "max": [3]}}],
            ),
            Declared(),
        )
    keys = [problem.what.partition(": ")[0] for problem in caught.value.problems]
    assert keys == ["compute_capability", "inputs.0.data_type", "profiles.0.ids", "extra"]
    assert {problem.where for problem in caught.value.problems} == {str(tmp_path / "model.plan.json")}
    assert all(problem.hint for problem in caught.value.problems)


IDS, EMB = MANIFEST["inputs"][0], MANIFEST["outputs"][0]
RANGE = {"min": [1, 1], "opt": [8, 64], "max": [16, 64]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema_version": 2}, "schema_version: not of its form (got 2; expected 1)"),
        ({"tensorrt": 10.5}, "tensorrt: no text (got 10.5)"),
        ({"tensorrt": "ten"}, "tensorrt: not of its form (got `ten`; expected a version such as 10.5.0.18)"),
        (
            {"hardware_compatibility": "ampere+", "compute_capability": "7.5"},
            "the sidecar: ampere+ on compute capability 7.5: no such build (expected 8.0 or more)",
        ),
        (
            {"version_compatible": True, "compute_capability": "6.1"},
            "the sidecar: a version-compatible plan on compute capability 6.1: no such build (expected 7.0 or more)",
        ),
        (
            {"hardware_compatibility": "same-compute-capability", "tensorrt": "10.9", "compute_capability": "7.0"},
            "the sidecar: same-compute-capability on compute capability 7.0: no such build (expected 7.5 or more)",
        ),
        (
            {"hardware_compatibility": "same-compute-capability"},
            "the sidecar: same-compute-capability of TensorRT 10.5.0.18: no such build (expected 10.9 or more)",
        ),
        (
            {"weight_streaming": True, "precision": "fp16"},
            "the sidecar: weight streaming with precision fp16: no such build (expected onnx)",
        ),
        (
            {"tensorrt": "11.1.0.106", "precision": "fp16"},
            "the sidecar: precision fp16 of TensorRT 11.1.0.106: no such build (expected onnx, since 11)",
        ),
        ({"build_s": "long"}, "build_s: no number (got `long`)"),
        ({"build_s": float("nan")}, "build_s: no number (got nan; expected seconds)"),
        ({"build_s": -1}, "build_s: below 0 (got -1; expected seconds)"),
        ({"built": []}, "built: no time (got []; expected such as 2026-01-31T12:00:00Z)"),
        ({"inputs": []}, "the sidecar: no tensors (expected the engine's inputs and outputs)"),
        ({"inputs": "ids"}, "inputs: no list (got `ids`)"),
        ({"inputs": [IDS, IDS]}, "tensors of the same name: ids (expected each once)"),
        ({"outputs": [{**EMB, "name": "ids"}]}, "tensors of the same name: ids (expected each once)"),
        ({"inputs": [{**IDS, "shape": [-2, 0]}]}, "inputs.0.shape: no shape (got [-2, 0]; expected sizes from 1"),
        ({"inputs": [{**IDS, "shape": [True, 8]}]}, "inputs.0.shape.0: no whole number (got True)"),
        ({"inputs": [{**IDS, "data_type": "STRING"}]}, "inputs.0.data_type: no type of an engine's tensor"),
        ({"inputs": [{**IDS, "name": "i" * 10_000}]}, "profile 0 is for ids (expected every input: iiii"),
        ({"profiles": [{"mask": RANGE}]}, "profile 0 is for mask (expected every input: ids)"),
        ({"profiles": [{}]}, "profile 0 is for no input (expected every input: ids)"),
        ({"profiles": [{"ids": {**RANGE, "max": [10**30, 64]}}]}, "profiles.0.ids: no range of shapes"),
        ({"profiles": [{"ids": None}]}, "profiles.0.ids: no object (got None)"),
        ({"profiles": [{"ids": {"min": [1], "opt": [1], "max": [1]}}]}, "profile 0 does not fit input ids"),
        (
            {"inputs": [{**IDS, "shape": [-1, 128]}], "profiles": [{"ids": RANGE}]},
            "profile 0 does not fit input ids (expected sizes as in its shape, [-1, 128])",
        ),
        ({"built": "yesterday"}, "built: no time (got `yesterday`; expected such as 2026-01-31T12:00:00Z)"),
    ],
)
def test_a_sidecar_that_says_what_no_engine_has(plan, changes, said):
    with pytest.raises(UsageError) as caught:
        read_plan(plan(**changes), Declared())
    assert said in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"tensorrt": "10', b'{"tensorrt": "\xff"}', b"[" * 100_000, b"9" * 5_000, b"{}" + b" " * 2**20],
    ids=["empty", "list", "cut", "not-utf8", "deep", "long-number", "huge"],
)
def test_a_sidecar_that_is_no_object_of_json(plan, content, tmp_path):
    path = plan()
    (tmp_path / "model.plan.json").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_plan(path, Declared())
    (problem,) = caught.value.problems
    assert problem.where == str(tmp_path / "model.plan.json")
    assert problem.expected or problem.got
    assert problem.hint == "write it again by building the plan"
    assert len(str(problem)) < 500


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "got an empty file"),
        (b"ftrt\0\0\0\0", r"not a whole TensorRT plan \(got 8 bytes; expected at least 28\)"),
        (b"\x08\x08" * 20, "not a TensorRT plan"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a TensorRT plan"),
        (b"ftrt\x01" + bytes(40), "header of an unknown form"),
    ],
)
def test_no_plan(content, said, tmp_path):
    path = tmp_path / "model.plan"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        plan_version(path)


def test_a_missing_plan(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        plan_version(tmp_path / "model.plan")


def test_a_key_of_a_tensor_that_is_spelt_otherwise_is_named(plan):
    with pytest.raises(UsageError, match=r"inputs\.0\.dtype: no key of a sidecar") as caught:
        read_plan(plan(inputs=[{"name": "ids", "dtype": "INT64", "shape": [-1, -1]}]), Declared())
    assert "did you mean `data_type`?" in [problem.hint for problem in caught.value.problems]
