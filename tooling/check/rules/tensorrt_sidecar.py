"""Rules about what only the sidecar of a plan tells: how it was built, formats, shape tensors. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tooling.check.finding import Evidence, Finding, Place
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, note
from tooling.check.wording import shape_text
from tooling.signature.plan_manifest import PlanManifest, PlanTensor

_SOURCE: Final = "tensorrt backend"
_X: Final = 'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
_Y: Final = 'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
_IMAGE: Final = 'input { name: "x" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] }\n'
_SCATTER: Final = "BATCH_SCATTER_WITH_INPUT_SHAPE"
_OLDEST: Final = (("25.03", (7, 5)), ("", (6, 0)))
"""The least compute capability of a release's image, by the first release it holds for (NVIDIA's release notes)."""


def _example(
    config: str,
    plan: str = "",
    x: str = '"shape": [-1, 8]',
    y: str = '"data_type": "FP32", "shape": [-1, 8]',
    *,
    more_inputs: str = "",
    capability: str = "8.9",
    tensorrt: str = "10.5.0",
    schedule: str = "dynamic_batching { }\n",
) -> str:
    """A plan x → y; `plan` adds to its sidecar, `x` and `y` say more of the tensors."""
    sidecar = (
        f'{{"tensorrt": "{tensorrt}", "compute_capability": "{capability}", {plan}'
        f'"inputs": [{{"name": "x", "data_type": "FP32", {x}}}{more_inputs}], '
        f'"outputs": [{{"name": "y", {y}}}]}}'
    )
    return (
        f'platform: "tensorrt_plan"\nmax_batch_size: 8\ninstance_group {{ kind: KIND_GPU }}\n{config}{schedule}'
        f"--- 1/model.onnx\nabsent\n--- 1/model.plan\nplan {tensorrt}\n--- 1/model.plan.json\n{sidecar}"
    )


CANNOT_RUN = load(
    "plan-cannot-run",
    "The plan was built in a way that Triton's backend cannot run.",
    "It refits no stripped weights, takes no lean runtime from outside, and runs plans of its own system only.",
    _example(_X + _Y, '"stripped": true, '),
    _SOURCE,
    evidence=Evidence.READ,
)
COMPATIBLE = load(
    "plan-version-compatible",
    "The plan is version-compatible, and the server does not allow such plans.",
    "It brings code of its own, which Triton runs only with `--backend-config=tensorrt,version-compatible=true`.",
    _example(_X + _Y, '"version_compatible": true, ') + "\n--- options\n--server-args --http-port=8000",
    _SOURCE,
    evidence=Evidence.READ,
)
NOT_STREAMED = note(
    "plan-weights-not-streamed",
    "The plan could stream its weights, and Triton does not.",
    "The backend sets no budget, so streaming stays off and all weights lie on the GPU.",
    _example(_X + _Y, '"weight_streaming": true, '),
    _SOURCE,
)
OLD_GPU = advice(
    "plan-capability-too-old",
    "The plan is for a GPU that the release no longer supports.",
    "Images up to 24.10 run on compute capability 6.0, later ones, at the latest from 25.03, on 7.5.",
    _example(_X + _Y, capability="7.0", tensorrt="10.9.0.34") + "\n--- options\n--release 25.03",
    "release notes",
    evidence=Evidence.DOCUMENTED,
)
FORMAT = load(
    "plan-non-linear-flag",
    "is_non_linear_format_io says something else than the plan.",
    "A tensor in a vectorised format takes padded bytes; the flag must stand where the plan has one, and nowhere else.",
    _example(_IMAGE.replace(" ]", " ] is_non_linear_format_io: true", 1) + _Y, x='"shape": [-1, 3, 8, 8]'),
    _SOURCE,
    evidence=Evidence.READ,
)
RAGGED_FORMAT = load(
    "plan-non-linear-ragged",
    "An input in a vectorised format cannot be ragged.",
    "Its bytes are padded, so they cannot be put one behind the other.",
    _example(
        _IMAGE.replace(" ]", " ] is_non_linear_format_io: true allow_ragged_batch: true", 1) + _Y,
        x='"shape": [-1], "non_linear": true',
    ),
    _SOURCE,
    evidence=Evidence.READ,
)
SHAPE_RANK = load(
    "plan-shape-tensor-rank",
    "A shape tensor of the plan has more than one axis.",
    "The backend takes a number or a row of numbers.",
    _example(
        _X + 'input { name: "s" data_type: TYPE_INT64 dims: [ 2 ] is_shape_tensor: true }\n' + _Y,
        more_inputs=', {"name": "s", "data_type": "INT64", "shape": [2, 2], "shape_tensor": true}',
    ),
    _SOURCE,
    evidence=Evidence.READ,
)
CONTROL = load(
    "plan-control-shape",
    "A sequence control of the plan has no free first axis.",
    "Triton feeds a value for each request of a batch.",
    _example(
        'sequence_batching { control_input { name: "c" control { kind: CONTROL_SEQUENCE_START '
        "fp32_false_true: [ 0, 1 ] } } }\n" + _X + _Y,
        more_inputs=', {"name": "c", "data_type": "FP32", "shape": [1, 1]}',
        schedule="",
    ),
    _SOURCE,
    evidence=Evidence.READ,
)
BATCH_OUTPUT = load(
    "plan-batch-output",
    "A batch output that the TensorRT backend does not make.",
    f"It knows {_SCATTER}, and not for shape tensors.",
    _example(
        _X
        + 'output { name: "y" data_type: TYPE_INT64 dims: [ 8 ] is_shape_tensor: true }\n'
        + 'batch_output { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }\n',
        y='"data_type": "INT64", "shape": [9], "shape_tensor": true',
    ),
    _SOURCE,
    evidence=Evidence.READ,
)
RULES = (CANNOT_RUN, COMPATIBLE, NOT_STREAMED, OLD_GPU, FORMAT, RAGGED_FORMAT, SHAPE_RANK, CONTROL, BATCH_OUTPUT)


def sidecar(model: Model, manifest: PlanManifest, place: Place) -> Iterator[Finding]:
    """The config and the target against a plan's sidecar, beyond names, types, shapes and profiles."""
    for wrong, hint in _unusable(manifest):
        yield model.find(CANNOT_RUN, wrong, place=place, hint=hint)
    if manifest.version_compatible and model.target.version_compatible is False:
        yield model.find(
            COMPATIBLE,
            "version-compatible, which this server does not allow",
            place=place,
            hint="start it with --backend-config=tensorrt,version-compatible=true",
        )
    if manifest.weight_streaming:
        yield model.find(NOT_STREAMED, "built with weight streaming, which stays off", place=place)
    tag = model.target.release.tag
    least = next(least for since, least in _OLDEST if tag >= since)
    if tuple(map(int, manifest.compute_capability.split("."))) < least:
        yield model.find(
            OLD_GPU,
            f"built on compute capability {manifest.compute_capability}; Triton {tag} needs {least[0]}.{least[1]}",
            place=place,
            hint="serve it with an older release, or on a newer GPU",
        )
    for what, listed, tensors in (
        ("input", model.config.input, manifest.inputs),
        ("output", model.config.output, manifest.outputs),
    ):
        known = {tensor.name: tensor for tensor in tensors}
        for index, tensor in enumerate(listed):
            if tensor.name in known:
                yield from _tensor(model, what, index, tensor, known[tensor.name])
    yield from _controls(model, manifest)
    yield from _batch_outputs(model, manifest)


def _unusable(manifest: PlanManifest) -> Iterator[tuple[str, str]]:
    if manifest.stripped:
        yield "its weights are stripped, and the backend does not refit", "build it without --stripWeights"
    if manifest.version_compatible and not manifest.lean_runtime:
        yield "it needs a lean runtime from outside", "build it without --excludeLeanRuntime"
    if manifest.platform != "linux":
        yield f"it was built for {manifest.platform}", "build it without --runtimePlatform"


def _tensor(model: Model, what: str, index: int, tensor: Any, plan: PlanTensor) -> Iterator[Finding]:
    name, where = model.config.name, (what, index, "is_non_linear_format_io")
    if tensor.is_non_linear_format_io != plan.non_linear:
        kind, wrong = ("a non-linear", "false") if plan.non_linear else ("a linear", "true")
        yield model.find(
            FORMAT,
            f"{what} {tensor.name} has {kind} format in the plan",
            *where,
            says=f"{what} '{tensor.name}' for model '{name}' uses {kind} IO format, but 'is_non_linear_format_io' is "
            f"incorrectly set to {wrong} in the model configuration.",
            fix=(f"{what}[{index}].is_non_linear_format_io={str(plan.non_linear).lower()}",),
        )
    elif what == "input" and plan.non_linear and tensor.allow_ragged_batch:
        instance = f"{model.instances[0].name}_0" if model.instances else model.name
        yield model.find(
            RAGGED_FORMAT,
            f"input {tensor.name} is ragged and in a vectorised format",
            *(what, index, "allow_ragged_batch"),
            says=f"unexpected allow-ragged for non-linear input '{tensor.name}' for {instance}",
            fix=(f"-input[{index}].allow_ragged_batch",),
        )
    if plan.shape_tensor and len(plan.shape) > 1:
        yield model.find(
            SHAPE_RANK,
            f"{what} {tensor.name} is {shape_text(plan.shape)} in the plan",
            *(what, index),
            says=f"unable to load model '{name}', shape binding '{tensor.name}' can only be 0-d or 1-D tensor, got "
            f"{shape_text(plan.shape)}",
            hint="build the network with a shape input of one axis",
        )


def _controls(model: Model, manifest: PlanManifest) -> Iterator[Finding]:
    known = {tensor.name: tensor for tensor in manifest.inputs}
    for index, control in enumerate(model.config.sequence_batching.control_input):
        tensor = known.get(control.name)
        if tensor is None or model.config.max_batch_size == 0 or not tensor.shape or tensor.shape[0] == -1:
            continue
        yield model.find(
            CONTROL,
            f"sequence control {control.name} is {shape_text(tensor.shape)} in the plan",
            *("sequence_batching", "control_input", index),
            says=f"unexpected shape {shape_text(tensor.shape)} for control input '{control.name}' for model "
            f"{model.config.name}: expects the first dimension to be -1 but the model specified {tensor.shape[0]}",
            hint="build it with a free first axis",
        )


def _batch_outputs(model: Model, manifest: PlanManifest) -> Iterator[Finding]:
    shapes = {tensor.name for tensor in manifest.outputs if tensor.shape_tensor}
    for index, entry in enumerate(model.config.batch_output):
        kind = type(entry).DESCRIPTOR.enum_types_by_name["Kind"].values_by_number[entry.kind].name
        for target in entry.target_name:
            says = None
            if kind != _SCATTER:
                says = f"batch output kind other than {_SCATTER} is not supported for {target}"
            elif target in shapes:
                says = f"batch output '{target}' can not be shape binding"
            if says:
                yield model.find(
                    BATCH_OUTPUT, f"batch output {target} of kind {kind}", *("batch_output", index), says=says
                )
