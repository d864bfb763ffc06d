"""Rules about TensorRT plans, judged by their header and the sidecar their builder left. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tooling.check.files import is_file
from tooling.check.finding import Evidence, Finding, Place
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, note, request
from tooling.check.rules.tensorrt_options import spans_devices
from tooling.check.rules.tensorrt_shapes import shapes
from tooling.check.rules.tensorrt_sidecar import sidecar
from tooling.check.sizes import type_name
from tooling.check.wording import shape_text, shapes_differ
from tooling.errors import UsageError, suggest
from tooling.signature.declared import Declared
from tooling.signature.plan_manifest import read_manifest
from tooling.signature.spec import ModelSignature, TensorSpec
from tooling.signature.tensorrt_plan import manifest_path, plan_version, read_plan

_SOURCE: Final = "tensorrt backend"
_CONFIG: Final = 'platform: "tensorrt_plan"\ninstance_group { kind: KIND_GPU }\n'
_X: Final = 'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
_Y: Final = 'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'


def _example(config: str, least: int = 1, most: int = 8, shape: str = "-1, 8", tensorrt: str = "10.5.0") -> str:
    sizes = ", ".join(f'"{key}": [{batch}, 8]' for key, batch in (("min", least), ("opt", most), ("max", most)))
    sidecar = (
        f'{{"tensorrt": "{tensorrt}", "compute_capability": "8.9", '
        f'"inputs": [{{"name": "x", "data_type": "FP32", "shape": [{shape}]}}], '
        f'"outputs": [{{"name": "y", "data_type": "FP32", "shape": [{shape}]}}], "profiles": [{{"x": {{{sizes}}}}}]}}'
    )
    files = f"--- 1/model.onnx\nabsent\n--- 1/model.plan\nplan {tensorrt}\n--- 1/model.plan.json\n{sidecar}"
    return f"{_CONFIG}{config}{files}"


BROKEN = load(
    "plan-broken",
    "The file is no TensorRT plan, or its sidecar does not belong to it.",
    "A plan starts with `ftrt`; text mode or an unfinished copy ruins it.",
    _CONFIG + "--- 1/model.onnx\nabsent\n--- 1/model.plan\nnot a plan",
    _SOURCE,
    evidence=Evidence.READ,
)
NO_SIDECAR = note(
    "plan-without-sidecar",
    "The plan has no sidecar: its tensors cannot be judged.",
    "A plan can only be opened on its GPU. `model.plan.json` beside it says its tensors and profiles.",
    _CONFIG + "--- 1/model.onnx\nabsent\n--- 1/model.plan\nplan 10.5.0",
    "tritune",
    evidence=Evidence.DOCUMENTED,
)
VERSION = advice(
    "plan-version",
    "The plan was built by another TensorRT than the release has.",
    "A plan runs on the version that built it. The versions of the images are those of NVIDIA's support matrix.",
    _example(_X + _Y, tensorrt="10.3.0"),
    "support matrix",
    evidence=Evidence.RECALLED,
)
KIND = load(
    "plan-kind",
    "A plan runs on KIND_GPU only.",
    "The backend refuses other instances.",
    _example(_X + _Y).replace("KIND_GPU", "KIND_CPU"),
    _SOURCE,
    evidence=Evidence.READ,
)
UNKNOWN = load(
    "plan-tensor-unknown",
    "A tensor of the config is none of the plan's.",
    "Names are case-sensitive.",
    _example(_X.replace('"x"', '"X"') + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
UNLISTED = load(
    "plan-tensor-unlisted",
    "A tensor of the plan is not in the config.",
    "Unlike with ONNX Runtime every input and every output must be listed, or none.",
    _example(_X + _Y.replace('"y"', '"z"')),
    _SOURCE,
    evidence=Evidence.READ,
)
TYPE = load(
    "plan-tensor-type",
    "A tensor has another type in the config than in the plan.",
    "Building with FP16 kernels does not change the types of inputs and outputs.",
    _example(_X + _Y.replace("FP32", "FP16")),
    _SOURCE,
    evidence=Evidence.READ,
)
SHAPE = load(
    "plan-tensor-shape",
    "A tensor has another shape in the config than in the plan.",
    "-1 fits anything on either side.",
    _example(_X.replace("[ 8 ]", "[ 9 ]") + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
RAGGED = load(
    "plan-ragged-rank",
    "A ragged input must have one axis in the plan.",
    "The requests' elements are put one behind the other; the server's message prints two shapes that may look alike.",
    _example(_X.replace("[ 8 ]", "[ 8 ] allow_ragged_batch: true") + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
BATCH_MAX = load(
    "plan-batch-above-profile",
    "max_batch_size is above what the plan's profiles take.",
    "The largest batch is that of the profile: its max shapes. A builder's max batch size belongs to networks with "
    "an implicit "
    "batch and has no effect. With auto-complete off, the model loads and larger batches fail.",
    _example("max_batch_size: 128\n" + _X + _Y, most=1),
    _SOURCE,
    evidence=Evidence.READ,
)
BATCH_MIN = request(
    "plan-batch-below-profile",
    "The plan's profiles take no batch of 1.",
    "Triton sends batches of every size from 1; smaller ones than the profile's min shapes fail.",
    _example("max_batch_size: 128\n" + _X + _Y, least=64, most=128),
    _SOURCE,
    evidence=Evidence.READ,
)
PROFILE_INDEX = load(
    "plan-profile-index",
    "An instance group names a profile that the plan has not.",
    "Profiles are counted from 0.",
    _example(_X + _Y).replace("KIND_GPU", 'KIND_GPU profile: [ "1" ]'),
    _SOURCE,
    evidence=Evidence.READ,
)
RULES = (
    *(BROKEN, NO_SIDECAR, VERSION, KIND, UNKNOWN, UNLISTED, TYPE, SHAPE, RAGGED, BATCH_MAX, BATCH_MIN, PROFILE_INDEX),
)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A config and the plan it is for; `instance` is how the server names the first instance."""

    model: Model
    signature: ModelSignature
    place: Place
    instance: str

    @property
    def batching(self) -> bool:
        return bool(self.model.config.max_batch_size > 0)


def plans(model: Model) -> Iterator[Finding]:
    """The plan of every version, as far as its header and sidecar tell."""
    if model.config.backend != "tensorrt":
        return
    for group in model.instances:
        if group.kind == "KIND_CPU" or (group.kind == "KIND_MODEL" and not spans_devices(model)):
            yield model.find(
                KIND,
                f"a plan on {group.kind}",
                "instance_group",
                group.index,
                "kind",
                says=f"unable to load model '{model.config.name}', TensorRT backend supports only GPU device",
                hint="KIND_GPU",
            )
    for version in model.served:
        path = model.version_dir(version) / model.config.default_model_filename
        if is_file(path):
            yield from _plan(model, path)


def _plan(model: Model, path: Path) -> Iterator[Finding]:
    place = Place(model.shown_path(path))
    try:
        version = plan_version(path)
        manifest = read_manifest(manifest_path(path)) if is_file(manifest_path(path)) else None
        signature = read_plan(path, Declared()) if manifest else None
    except UsageError as error:
        for problem in error.problems:
            yield model.find(BROKEN, str(replace(problem, where=None)), place=place, hint=problem.hint)
        return
    serves = model.target.release.tensorrt
    if serves and any(a != b for a, b in zip(version.split("."), serves.split("."), strict=False)):
        yield model.find(
            VERSION,
            f"built by TensorRT {version}, and Triton {model.target.release.tag} has {serves}",
            place=place,
            hint="build it in the TensorRT image of the same tag",
        )
    if signature is None or manifest is None:
        yield model.find(NO_SIDECAR, f"no {manifest_path(path).name}: tensors and profiles are not judged", place=place)
        return
    instance = f"{model.instances[0].name}_0" if model.instances else model.name
    plan = _Plan(model, signature, place, instance)
    yield from _profiles(plan)
    yield from _tensors(plan)
    used = [signature.profiles[index] for index in _chosen(model) if index < len(signature.profiles)]
    yield from shapes(model, signature, used)
    yield from sidecar(model, manifest, place)


def _chosen(model: Model) -> list[int]:
    """The profiles that the instances use: the first, where none is named."""
    return [int(text) for group in model.written.instance_group for text in group.profile if text.isdecimal()] or [0]


def _profiles(plan: _Plan) -> Iterator[Finding]:
    model, profiles = plan.model, plan.signature.profiles
    if not profiles:
        return
    name, top = model.config.name, model.config.max_batch_size
    chosen = _chosen(model)
    for index in sorted({index for index in chosen if index >= len(profiles)}):
        yield model.find(
            PROFILE_INDEX,
            f"profile {index}: the plan has {len(profiles)}",
            "instance_group",
            says=f"unable to autofill for '{name}', configuration specified invalid profile {index} . Number of "
            "profiles "
            f"supported by TensorRT engine: {len(profiles)}",
        )
    ranges = [profiles[index].batches for index in chosen if index < len(profiles)]
    if not ranges or top <= 0:
        return
    least, most = min(low for low, _ in ranges), max(high for _, high in ranges)
    if top > most:
        yield model.find(
            BATCH_MAX,
            f"max_batch_size {top} > profile max batch {most}",
            "max_batch_size",
            says=f"autofill failed for model '{name}': configuration specified max-batch {top} but TensorRT engine "
            "only "
            f"supports max-batch {most}",
            hint="build with a profile that has larger max shapes (use min/opt/max shapes)",
        )
    if least > 1:
        yield model.find(
            BATCH_MIN,
            f"engine needs at least {least} rows; Triton may send 1",
            "max_batch_size",
            hint="build with min batch 1",
        )


def _tensors(plan: _Plan) -> Iterator[Finding]:
    model = plan.model
    config = model.config
    fed = {entry.name for entry in config.sequence_batching.control_input}
    fed |= {name for entry in config.batch_input for name in entry.target_name}
    for what, listed, known in (
        ("input", config.input, {tensor.name: tensor for tensor in plan.signature.inputs}),
        ("output", config.output, {tensor.name: tensor for tensor in plan.signature.outputs}),
    ):
        for index, tensor in enumerate(listed):
            if tensor.name in known:
                yield from _tensor(plan, what, index, tensor, known[tensor.name])
                continue
            yield model.find(
                UNKNOWN,
                f"{what} {tensor.name} is not in the engine; {what}s are {', '.join(known)}",
                what,
                index,
                "name",
                says=f"unexpected inference {what} '{tensor.name}', allowed {what}s are: {', '.join(sorted(known))}",
                hint=suggest(tensor.name, known),
            )
        names = {tensor.name for tensor in listed}
        for name in known:
            if listed and name not in names | fed:
                yield model.find(
                    UNLISTED,
                    f"{what} {name} of the engine is not in the config",
                    what,
                    says=f"expected configuration for {what} '{name}' for {plan.instance}",
                )


def _tensor(plan: _Plan, what: str, index: int, tensor: Any, spec: TensorSpec) -> Iterator[Finding]:
    model, written = plan.model, type_name(tensor.data_type)
    if written not in (spec.data_type, "TYPE_INVALID"):
        yield model.find(
            TYPE,
            f"{what} {tensor.name}: engine {spec.data_type.removeprefix('TYPE_')}, config {written}",
            what,
            index,
            "data_type",
            says=f"unexpected datatype {spec.data_type} for inference {what} '{tensor.name}', expecting {written} for "
            f"{plan.instance}",
            hint=spec.data_type,
            fix=(f"{what}[{index}].data_type={spec.data_type}",),
        )
    dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    if what == "input" and tensor.allow_ragged_batch:
        if len(spec.dims) != 1:
            yield model.find(
                RAGGED,
                f"input {tensor.name}: input is rank {len(spec.dims)} in the engine; ragged input must be rank 1",
                what,
                index,
                "allow_ragged_batch",
                says=f"model '{model.config.name}', tensor '{tensor.name}': for the model to support ragged input, the "
                f"engine shape is: {shape_text(spec.dims)} while the model config shape is: {shape_text(dims)}",
                hint="remove allow_ragged_batch",
                fix=(f"-input[{index}].allow_ragged_batch",),
            )
        return
    # With auto-complete and max_batch_size 0 the backend takes the batch from the engine, and dims leave it out.
    completing = not model.target.strict and len(dims) + 1 == len(spec.dims)
    full = [-1, *dims] if (plan.batching or completing) and not spec.shape_tensor else dims
    fits = len(full) == len(spec.dims) and all(a == b or -1 in (a, b) for a, b in zip(full, spec.dims, strict=True))
    if dims and not fits:
        yield model.find(
            SHAPE,
            f"{what} {tensor.name}: engine {shape_text(spec.dims)}, config {shape_text(full)}",
            what,
            index,
            "dims",
            says=shapes_differ(model.config.name, tensor.name, spec.dims, full, batching=plan.batching),
        )
