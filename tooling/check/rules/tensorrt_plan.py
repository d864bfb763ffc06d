"""Rules about TensorRT plans, judged by their header and the sidecar their builder left. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tooling.check.files import is_file
from tooling.check.finding import Evidence, Finding, Place
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, note, request
from tooling.check.rules.tensorrt_options import spans_devices
from tooling.check.rules.tensorrt_shapes import shapes
from tooling.check.rules.tensorrt_sidecar import sidecar
from tooling.check.rules.tensorrt_tensors import tensors, twice
from tooling.errors import UsageError
from tooling.signature.declared import Declared
from tooling.signature.plan_manifest import read_manifest
from tooling.signature.spec import ModelSignature
from tooling.signature.tensorrt_plan import manifest_path, plan_runs, plan_version, read_plan

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
RULES = (BROKEN, NO_SIDECAR, VERSION, KIND, BATCH_MAX, BATCH_MIN, PROFILE_INDEX)


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
    yield from twice(model)
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
            at = place if problem.where is None else Place(model.shown_path(Path(problem.where)))
            yield model.find(BROKEN, str(replace(problem, where=None)), place=at, hint=problem.hint)
        return
    serves = model.target.release.tensorrt
    compatible = manifest is not None and manifest.version_compatible
    if serves and not plan_runs(version, serves, compatible=compatible):
        yield model.find(
            VERSION,
            f"built by TensorRT {version}, and Triton {model.target.release.tag} has {serves}",
            place=place,
            hint="build it in the TensorRT image of the same tag",
        )
    if signature is None or manifest is None:
        yield model.find(NO_SIDECAR, f"no {manifest_path(path).name}: tensors and profiles are not judged", place=place)
        return
    yield from _profiles(model, signature)
    yield from tensors(model, signature)
    last = len(signature.profiles) - 1
    groups = [[signature.profiles[index] for index in group if index <= last] for group in _chosen(model)]
    yield from shapes(model, signature, groups)
    yield from sidecar(model, manifest, place)


def _chosen(model: Model) -> list[tuple[int, ...]]:
    """The profiles that instances use, for each group that differs from others: the first, where none is named. Any
    instance may get any request."""
    named = [[text for text in group.profile if text.isdecimal()] for group in model.written.instance_group]
    groups = [tuple(sorted({int(text) for text in texts} or {0})) for texts in named] or [(0,)]
    return list(dict.fromkeys(groups))


def _profiles(model: Model, signature: ModelSignature) -> Iterator[Finding]:
    profiles, top = signature.profiles, model.config.max_batch_size
    if not profiles:
        fixed = [spec.dims[0] for spec in signature.inputs if spec.dims and not spec.shape_tensor and spec.dims[0] > 0]
        if fixed and top > min(fixed):
            yield _batch_above(model, min(fixed), f"the plan's fixed batch of {min(fixed)}")
        return
    name = model.config.name
    chosen = [index for group in _chosen(model) for index in group]
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
        yield _batch_above(model, most, f"profile max batch {most}")
    if least > 1:
        yield model.find(
            BATCH_MIN,
            f"engine needs at least {least} rows; Triton may send 1",
            "max_batch_size",
            hint="build with min batch 1",
        )


def _batch_above(model: Model, most: int, what: str) -> Finding:
    top = model.config.max_batch_size
    return model.find(
        BATCH_MAX,
        f"max_batch_size {top} > {what}",
        "max_batch_size",
        says=f"autofill failed for model '{model.config.name}': configuration specified max-batch {top} but TensorRT "
        f"engine only supports max-batch {most}",
        hint="build with a profile that has larger max shapes (use min/opt/max shapes)",
    )
