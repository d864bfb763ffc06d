"""What a plan's sidecar, the config and the target say of each other, with the backend's own words where it has any."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

X = 'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
Y = 'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
SHAPE = 'input { name: "s" data_type: TYPE_INT64 dims: [ 2 ] is_shape_tensor: true }\n'
IMAGE = 'input { name: "x" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] }\n'
PLAN_X = {"name": "x", "data_type": "FP32", "shape": [-1, 8]}
PLAN_Y = {"name": "y", "data_type": "FP32", "shape": [-1, 8]}
PLAN_S = {"name": "s", "data_type": "INT64", "shape": [3], "shape_tensor": True}
PLAN_IMAGE = {**PLAN_X, "shape": [-1, 3, 8, 8]}
CODE = "class TritonPythonModel:\n    def execute(self, requests):\n        return None\n"


@pytest.fixture
def errors(example: Callable[[str], Any], check: Callable[..., dict[str, Any]]) -> Callable[..., list[Any]]:
    """`errors(config, *options, **sidecar)`: rule and server's words of what is no note about a batching plan."""

    def judge(config: str, *options: str, built: str = "10.5.0", more: str = "", **sidecar: Any) -> list[Any]:
        manifest = {"tensorrt": built, "compute_capability": "8.9", "inputs": [PLAN_X], "outputs": [PLAN_Y], **sidecar}
        made = example(
            'platform: "tensorrt_plan"\nmax_batch_size: 8\ninstance_group { kind: KIND_GPU }\n'
            f"{config}--- 1/model.onnx\nabsent\n--- 1/model.plan\nplan {built}\n"
            f"--- 1/model.plan.json\n{json.dumps(manifest)}\n{more}"
        )
        findings = check(made.path, *options)["findings"]
        return [(one["rule"], one["server"] or "") for one in findings if one["severity"] != "info"]

    return judge


SAID = [
    pytest.param(
        IMAGE + Y,
        {"inputs": [{**PLAN_IMAGE, "non_linear": True}]},
        "plan-non-linear-flag",
        "input 'x' for model 'example' uses a non-linear IO format, but 'is_non_linear_format_io' is incorrectly "
        "set to false in the model configuration.",
        id="vectorised",
    ),
    pytest.param(
        IMAGE.replace(" }", " is_non_linear_format_io: true }") + Y,
        {"inputs": [PLAN_IMAGE]},
        "plan-non-linear-flag",
        "input 'x' for model 'example' uses a linear IO format, but 'is_non_linear_format_io' is incorrectly set to "
        "true in the model configuration.",
        id="not-vectorised",
    ),
    pytest.param(
        X + SHAPE + Y,
        {"inputs": [PLAN_X, {**PLAN_S, "shape": [2, 2]}]},
        "plan-shape-tensor-rank",
        "unable to load model 'example', shape binding 's' can only be 0-d or 1-D tensor, got [2,2]",
        id="shape-tensor-of-two-axes",
    ),
    pytest.param(
        X + SHAPE + Y,
        {"inputs": [PLAN_X, {**PLAN_S, "shape": [2]}]},
        "plan-tensor-shape",
        "unable to load model 'example', binding 's' shape expected by framework",
        id="shape-tensor-without-the-batch",
    ),
    pytest.param(
        X + SHAPE + Y.replace(" }", " is_shape_tensor: true }").replace("FP32", "INT32"),
        {"inputs": [PLAN_X, PLAN_S], "outputs": [{**PLAN_S, "name": "y", "data_type": "INT32", "shape": [9]}]},
        "plan-shape-tensor-type",
        "unexpected datatype TYPE_INT32 in engine for shape output 'y'",
        id="shape-output-of-int32",
    ),
    pytest.param(
        'input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }\n' + Y,
        {"inputs": [{**PLAN_X, "shape": []}]},
        "plan-tensor-shape",
        "model 'example', tensor 'x': for the model to support batching the shape should have at least 1 dimension; "
        "but shape expected by the model is []",
        id="scalar-of-a-batching-model",
    ),
    pytest.param(
        X + Y,
        {"inputs": [{**PLAN_X, "shape": [1, 8]}], "outputs": [{**PLAN_Y, "shape": [1, 8]}]},
        "plan-batch-above-profile",
        "autofill failed for model 'example': configuration specified max-batch 8 but TensorRT engine only supports "
        "max-batch 1",
        id="fixed-batch-of-one",
    ),
    pytest.param(
        'input { name: "x" data_type: TYPE_FP32 dims: [ 32 ] reshape { shape: [ 4, 8 ] } }\n' + Y,
        {
            "inputs": [{**PLAN_X, "shape": [-1, -1, 8]}],
            "profiles": [{"x": {"min": [1, 1, 8], "opt": [4, 2, 8], "max": [8, 2, 8]}}],
        },
        "plan-dims-outside-profile",
        "model configuration specified invalid shape for input 'x' for model example. Error details: model expected "
        "the shape of dimension 1 to be between 1 and 2 but received 4",
        id="reshaped-outside-the-profile",
    ),
    pytest.param(
        X + X + Y,
        {},
        "plan-tensor-twice",
        "input 'x'  has already appeared as an input or output for example_0_0",
        id="listed-twice",
    ),
]


@pytest.mark.parametrize(("config", "sidecar", "rule", "says"), SAID)
def test_the_backend_says(
    config: str, sidecar: dict[str, Any], rule: str, says: str, errors: Callable[..., list[Any]]
) -> None:
    assert errors(config, **sidecar) == [(rule, says)]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (X + Y + X.replace('"x"', '"w"'), "configuration expects 2 inputs, model provides at most 1"),
        (X.replace('"x"', '"y"') + Y, "input 'y' is expected to be an input in model for example_0_0"),
        (X + Y + Y.replace('"y"', '"x"'), "output 'x' is expected to be an input in model for example_0_0"),
    ],
    ids=["too-many", "an-output", "an-input"],
)
def test_a_server_without_auto_complete_says_of_an_unknown_name(
    config: str, says: str, errors: Callable[..., list[Any]]
) -> None:
    rule, said = errors(config, "--strict")[0]
    assert rule == "plan-tensor-unknown" and said.endswith(says)


def test_no_tensor_need_be_listed_where_auto_complete_is_on(errors: Callable[..., list[Any]]) -> None:
    assert errors("") == []


def test_every_tensor_must_be_listed_where_it_is_off(errors: Callable[..., list[Any]]) -> None:
    assert errors("", "--strict") == [
        ("plan-tensor-unlisted", f"expected configuration for {what} for example_0_0")
        for what in ("input 'x'", "output 'y'")
    ]


SHORT, LONG = (1, 8, 1, 16), (1, 8, 17, 32)
"""Rows from, to; lengths from, to."""


@pytest.mark.parametrize(
    ("groups", "profiles", "said"),
    [
        ([[0, 1]], [SHORT, LONG], []),
        ([[0]], [SHORT, LONG], ["plan-profiles-unused: the profiles in use take 16, others 32"]),
        ([[1]], [SHORT, LONG], ["plan-profiles-unused: the profiles in use take 17 and more, others 1"]),
        ([[0, 1], [1]], [SHORT, LONG], ["plan-profiles-unused: the profiles in use take 17 and more, others 1"]),
        ([[0, 1]], [SHORT, (1, 4, 17, 32)], ["plan-profile-rows: a batch of 5 to 8 rows at every length"]),
        ([[0, 1]], [SHORT, (1, 4, 1, 16)], []),
        ([[0, 1]], [SHORT, (2, 8, 17, 32)], ["plan-profile-rows: lengths of a profile for 2 rows and more"]),
        ([[0, 1]], [SHORT, (2, 8, 1, 16)], []),
        ([[0, 1]], [(1, 4, 1, 32), (5, 8, 1, 32)], ["plan-profile-rows: a batch of 5 to 8 rows at every length"]),
    ],
)
def test_each_group_of_instances_takes_every_batch_at_every_length(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]], groups: Any, profiles: Any, said: list[str]
) -> None:
    written = "".join(
        f"instance_group {{ kind: KIND_GPU profile: {json.dumps(list(map(str, one)))} }}\n" for one in groups
    )
    ranges = [{"min": [few, low], "opt": [most, high], "max": [most, high]} for few, most, low, high in profiles]
    inputs = [{**PLAN_X, "shape": [-1, -1]}]
    sidecar = {"tensorrt": "10.5.0", "compute_capability": "8.9", "inputs": inputs, "outputs": [PLAN_Y]}
    made = example(
        f'platform: "tensorrt_plan"\nmax_batch_size: 8\n{written}'
        f"{X.replace('8', '-1')}{Y}--- 1/model.onnx\nabsent\n--- 1/model.plan\nplan 10.5.0\n"
        f"--- 1/model.plan.json\n{json.dumps({**sidecar, 'profiles': [{'x': one} for one in ranges]})}\n"
    )
    found = [one for one in check(made.path)["findings"] if one["severity"] != "info"]
    assert len(found) == len(said)
    for one, words in zip(found, said, strict=True):
        rule, _, part = words.partition(": ")
        assert one["rule"] == rule and part in one["message"]


@pytest.mark.parametrize(
    ("config", "sidecar"),
    [
        (X + SHAPE + Y, {"inputs": [PLAN_X, PLAN_S]}),
        (IMAGE.replace(" }", " is_non_linear_format_io: true }") + Y, {"inputs": [{**PLAN_IMAGE, "non_linear": True}]}),
        (X + Y, {"version_compatible": True, "built": "10.3.0"}),
        (
            'sequence_batching { state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [ 8 ] } }\n'
            + X
            + Y,
            {"inputs": [PLAN_X, {**PLAN_X, "name": "s"}], "outputs": [PLAN_Y, {**PLAN_Y, "name": "t"}]},
        ),
    ],
    ids=["shape-tensor-and-batch", "vectorised", "older-and-version-compatible", "state"],
)
def test_what_fits_is_not_told(config: str, sidecar: dict[str, Any], errors: Callable[..., list[Any]]) -> None:
    assert errors(config, **sidecar) == []


@pytest.mark.parametrize(
    "sidecar",
    [{"stripped": True}, {"version_compatible": True, "lean_runtime": False}, {"platform": "windows"}],
    ids=lambda sidecar: "-".join(sidecar),
)
def test_plans_that_cannot_run(sidecar: dict[str, Any], errors: Callable[..., list[Any]]) -> None:
    assert [rule for rule, _ in errors(X + Y, **sidecar)] == ["plan-cannot-run"]


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ("--http-port=8000", ["plan-version-compatible"]),
        ("--backend-config=tensorrt,version-compatible=false", ["plan-version-compatible"]),
        ("--backend-config=tensorrt,version-compatible=true", []),
    ],
)
def test_whether_the_server_allows_version_compatible_plans(
    allowed: str, expected: list[str], errors: Callable[..., list[Any]]
) -> None:
    assert [rule for rule, _ in errors(X + Y, "--server-args", allowed, version_compatible=True)] == expected


def test_a_newer_plan_does_not_run_on_an_older_release(errors: Callable[..., list[Any]]) -> None:
    assert [rule for rule, _ in errors(X + Y, built="10.9.0", version_compatible=True)] == ["plan-version"]


TOKENS = {
    "inputs": [{**PLAN_X, "shape": [-1, -1]}],
    "profiles": [{"x": {"min": [1, 1], "opt": [4, 8], "max": [8, 128]}}],
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_tokens": 512, "model": "example"}, ["plan-shorter-than-texts"]),
        ({"max_tokens": 128, "model": "example"}, []),
        ({"max_tokens": 512, "model": "another"}, []),
        ({"max_tokens": "512", "model": "example"}, []),
    ],
    ids=["longer", "as-long", "of-another-model", "no-number"],
)
def test_a_pipeline_that_merges_texts_calls_the_plan_by_its_name(
    settings: dict[str, Any], expected: list[str], errors: Callable[..., list[Any]]
) -> None:
    python = 'backend: "python"\nmax_batch_size: 8\ninput { name: "text" data_type: TYPE_STRING dims: [ 1 ] }\n'
    merged = f"--- ../merged/config.pbtxt\n{python}{Y}--- ../merged/1/model.py\n{CODE}"
    config = f"{X}{Y}".replace("dims: [ 8 ]", "dims: [ -1 ]", 1)
    found = errors(config, **TOKENS, more=f"{merged}--- ../merged/1/text.json\n{json.dumps(settings)}\n")
    assert [rule for rule, _ in found] == expected


def test_what_is_wrong_in_a_sidecar_stands_at_the_sidecar(
    example: Callable[[str], Any], check: Callable[..., dict[str, Any]]
) -> None:
    files = '--- 1/model.onnx\nabsent\n--- 1/model.plan\nplan 10.5.0\n--- 1/model.plan.json\n{"tensorrt": "ten"}'
    made = example(f'platform: "tensorrt_plan"\nmax_batch_size: 8\ninstance_group {{ kind: KIND_GPU }}\n{X}{Y}{files}')
    found = [one for one in check(made.path)["findings"] if one["rule"] == "plan-broken"]
    assert {one["file"].rpartition("/")[2] for one in found} == {"model.plan.json"}
    assert [one["message"].partition(":")[0] for one in found] == [
        *("tensorrt", "compute_capability", "inputs", "outputs"),
    ]
