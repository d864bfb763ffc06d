"""Rules about what a config asks of the TensorRT backend beside tensors: graphs, devices, parameters. Layer: check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tooling.check.files import exists, is_file
from tooling.check.finding import Evidence, Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load
from tooling.check.rules.options import parameter, unknown
from tooling.errors import UsageError
from tooling.signature.plan_manifest import read_manifest
from tooling.signature.tensorrt_plan import manifest_path

_SOURCE: Final = "tensorrt backend"
_FILES: Final = "--- 1/model.onnx\nabsent\n--- 1/model.plan\nplan 10.5.0"
_TENSORS: Final = (
    'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\noutput { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
)
_ALLOCATION: Final = "execution_context_allocation_strategy"
_STRATEGIES: Final = ("STATIC", "ON_PROFILE_CHANGE")
_DEVICES: Final = "multi_device_gpus"
_MULTI: Final = "enable_multi_device"
_SINCE: Final = {
    _ALLOCATION: "25.05",
    _MULTI: "26.06",
    _DEVICES: "26.06",
    "multi_device_per_rank_engines": "26.06",
}
_CAPABILITY: Final = re.compile(r"\d+\.\d+")


def _example(config: str, group: str = "kind: KIND_GPU") -> str:
    return f'platform: "tensorrt_plan"\nmax_batch_size: 8\n{_TENSORS}instance_group {{ {group} }}\n{config}{_FILES}'


def _graphs(spec: str) -> str:
    return _example(f"optimization {{ cuda {{ graphs: true graph_spec {{ {spec} }} }} }}\n")


GRAPH_BATCH = load(
    "graph-spec-batch-size",
    "The batch size of a CUDA graph is none the model runs.",
    "1 to max_batch_size, or 0 for a model that does not batch; a lower bound is not above its own graph.",
    _graphs("batch_size: 16"),
    _SOURCE,
    evidence=Evidence.READ,
)
GRAPH_BOUND = load(
    "graph-spec-lower-bound",
    "The lower bound of a CUDA graph does not fit the graph.",
    "It gives every input of the graph, with as many dims, none of them larger.",
    _graphs(
        'batch_size: 8 input { key: "x" value { dim: [ 8 ] } } graph_lower_bound { batch_size: 1 input { key: "x" '
        "value { dim: [ 9 ] } } }"
    ),
    _SOURCE,
    evidence=Evidence.READ,
)
GRAPH_IGNORED = advice(
    "cuda-graphs-ignored",
    "CUDA graphs are captured for TensorRT plans only.",
    "Other backends do not read `optimization.cuda`.",
    "max_batch_size: 8\noptimization { cuda { graphs: true } }",
    _SOURCE,
)
OPTIMIZATION = advice(
    "plan-optimization-ignored",
    "The TensorRT backend reads neither `optimization.graph` nor accelerators.",
    "A plan is optimised when it is built; these are for ONNX Runtime.",
    _example("optimization { graph { level: 1 } }\n"),
    _SOURCE,
)
SECONDARY = load(
    "plan-secondary-device",
    "An instance group has a secondary device that TensorRT does not run on.",
    "At most one, of KIND_NVDLA.",
    _example("", "kind: KIND_GPU secondary_devices [ { kind: KIND_NVDLA }, { kind: KIND_NVDLA device_id: 1 } ]"),
    _SOURCE,
    evidence=Evidence.READ,
)
STRATEGY = load(
    "plan-allocation-strategy",
    f"{_ALLOCATION} is none of its values.",
    "STATIC or ON_PROFILE_CHANGE, in capitals.",
    _example(parameter(_ALLOCATION, "static")) + "\n--- options\n--release 25.05",
    _SOURCE,
    evidence=Evidence.READ,
    since="25.05",
)
MULTI_DEVICE = load(
    "plan-multi-device",
    "An engine over several GPUs is not set up as such.",
    "It needs KIND_MODEL and `multi_device_gpus` with two GPUs or more, as `0,1`.",
    _example(parameter(_MULTI, "true")) + "\n--- options\n--release 26.06",
    _SOURCE,
    evidence=Evidence.READ,
    since="26.06",
)
UNKNOWN = advice(
    "plan-parameter-unknown",
    "The TensorRT backend of the release does not read this parameter.",
    "It is ignored in silence.",
    _example('parameters { key: "precision_mode" value { string_value: "FP16" } }\n'),
    _SOURCE,
)
CAPABILITY = advice(
    "cc-file-name",
    "A file of cc_model_filenames can never be chosen.",
    "The key is a compute capability such as `8.9`, the file stands in the version directory.",
    _example('cc_model_filenames { key: "sm89" value: "model.plan" }\n'),
    "backend library",
)
CAPABILITY_DIFFERS = load(
    "cc-file-capability",
    "A plan is chosen for GPUs of another compute capability than it was built on.",
    "A plan runs on the capability that it was built on, unless it was built hardware-compatible: `ampere+` from 8.0 "
    "upwards. Its sidecar says both.",
    _example('cc_model_filenames { key: "9.0" value: "model.plan" }\n')
    + '\n--- 1/model.plan.json\n{"tensorrt": "10.5.0", "compute_capability": "8.9", '
    '"inputs": [{"name": "x", "data_type": "FP32", "shape": [-1, 8]}], '
    '"outputs": [{"name": "y", "data_type": "FP32", "shape": [-1, 8]}], '
    '"profiles": [{"x": {"min": [1, 8], "opt": [8, 8], "max": [8, 8]}}]}',
    "TensorRT's plan check",
    evidence=Evidence.DOCUMENTED,
)
RULES = (
    *(GRAPH_BATCH, GRAPH_BOUND, GRAPH_IGNORED, OPTIMIZATION, SECONDARY, STRATEGY, MULTI_DEVICE, UNKNOWN),
    *(CAPABILITY, CAPABILITY_DIFFERS),
)


def options(model: Model) -> Iterator[Finding]:
    """Settings of the TensorRT backend, and those of its settings that other backends do not read."""
    config = model.config
    cuda = config.optimization.cuda
    if config.backend != "tensorrt":
        if cuda.graphs and config.backend:
            yield model.find(
                GRAPH_IGNORED,
                f"optimization.cuda.graphs: the {config.backend} backend does not read it",
                *("optimization", "cuda", "graphs"),
            )
        yield from _capabilities(model)
        return
    for index, spec in enumerate(cuda.graph_spec):
        yield from _graph(model, index, spec)
    for field in ("graph", "execution_accelerators"):
        if config.optimization.HasField(field):
            yield model.find(
                OPTIMIZATION, f"optimization.{field}: the tensorrt backend does not read it", "optimization", field
            )
    yield from _secondary(model)
    yield from _parameters(model)
    yield from _capabilities(model)


def spans_devices(model: Model) -> bool:
    """Whether the engine is one over several GPUs, where the release knows of such."""
    text = model.config.parameters[_MULTI].string_value if _MULTI in model.config.parameters else ""
    return text.lower() in ("true", "1") and model.target.release.tag >= _SINCE[_MULTI]


def _graph(model: Model, index: int, spec: Any) -> Iterator[Finding]:
    top, where = model.completed.max_batch_size, ("optimization", "cuda", "graph_spec", index)
    low = spec.graph_lower_bound
    says = None
    if top == 0 and spec.batch_size != 0:
        says = "graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0"
    elif top > 0 and not 1 <= spec.batch_size <= top:
        says = f"graph spec expects 'batch_size' to be >= 1 and <= {top}"
    elif spec.HasField("graph_lower_bound") and low.batch_size > spec.batch_size:
        says = "graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'"
    if says:
        yield model.find(
            GRAPH_BATCH,
            f"graph_spec {index}: batch_size {spec.batch_size}, max_batch_size {top}"
            + (f", lower bound {low.batch_size}" if low.batch_size else ""),
            *where,
            says=says,
        )
    for name, shape in sorted(spec.input.items()) if spec.HasField("graph_lower_bound") else ():
        bound = list(low.input[name].dim) if name in low.input else None
        wrong = _bound(name, list(shape.dim), bound)
        if wrong:
            given = "no shape" if bound is None else str(bound)
            text = f"graph_spec {index}: input {name} is {list(shape.dim)}, its lower bound {given}"
            yield model.find(GRAPH_BOUND, text, *where, says=wrong)


def _bound(name: str, dims: list[int], bound: list[int] | None) -> str | None:
    if bound is None:
        return f"graph lower bound spec expects shape for input '{name}'"
    if len(bound) != len(dims):
        return f"graph lower bound spec expects to have '{len(dims)} dimensions, got {len(bound)}"
    above = next((dim for low, dim in zip(bound, dims, strict=True) if low > dim), None)
    return None if above is None else f"graph lower bound spec expects input '{name}' to have dimension <= {above}"


def _secondary(model: Model) -> Iterator[Finding]:
    kinds = model.config.instance_group
    for own in model.instances:
        devices = kinds[own.index].secondary_devices if own.written else []
        where = ("instance_group", own.index, "secondary_devices")
        if len(devices) > 1:
            # The doubled `or` is the server's.
            says = f"{own.name}_0 of model {model.config.name} must have either zero or or one secondary devices"
            yield model.find(SECONDARY, f"{len(devices)} secondary devices, at most one is run on", *where, says=says)


def _parameters(model: Model) -> Iterator[Finding]:
    config, tag = model.config, model.target.release.tag
    given = {key: value.string_value for key, value in config.parameters.items()}
    if _ALLOCATION in given and given[_ALLOCATION] not in _STRATEGIES:
        yield model.find(
            STRATEGY,
            f"{_ALLOCATION} is `{given[_ALLOCATION]}`",
            *("parameters", _ALLOCATION),
            says=f"Invalid value for '{_ALLOCATION}': '{given[_ALLOCATION]}' for model instance '{config.name}'. "
            "Supported values are 'STATIC' and 'ON_PROFILE_CHANGE'.",
            hint=" or ".join(_STRATEGIES),
        )
    if spans_devices(model):
        yield from _several_devices(model, given.get(_DEVICES, ""))
    yield from unknown(model, UNKNOWN, [key for key, since in _SINCE.items() if since <= tag])


def _several_devices(model: Model, devices: str) -> Iterator[Finding]:
    name = model.config.name
    profiles = {text for group in model.written.instance_group for text in group.profile}
    if len(profiles) > 1:
        yield model.find(
            MULTI_DEVICE,
            f"{_MULTI} with {len(profiles)} profiles",
            "instance_group",
            says=f"TensorRT Multi-Device for '{model.instances[0].name}_0' requires exactly one optimization profile, "
            f"got {len(profiles)}",
            hint="name one profile",
        )
    if any(group.kind != "KIND_MODEL" for group in model.instances):
        yield model.find(
            MULTI_DEVICE,
            f"{_MULTI} without KIND_MODEL",
            "instance_group",
            says=f"unable to load model '{name}', TensorRT Multi-Device ({_MULTI}) requires instance_group kind "
            "KIND_MODEL",
            hint="instance_group { kind: KIND_MODEL }",
        )
    ids = [part.strip() for part in devices.split(",")] if devices else []
    odd = next((part for part in ids if not part.isdecimal()), None)
    if odd is not None:
        says = f"Invalid '{_DEVICES}' entry '{odd}' for model '{name}'; expected comma-separated GPU ids."
    elif len(ids) < 2:
        says = (
            f"'{_MULTI}' is true but '{_DEVICES}' lists fewer than 2 GPUs for model '{name}'; multi-device requires "
            "at least 2 ranks."
        )
    else:
        return
    yield model.find(MULTI_DEVICE, f"{_DEVICES} is `{devices}`", "parameters", _DEVICES, says=says, hint="such as 0,1")


def _capabilities(model: Model) -> Iterator[Finding]:
    for key, file in sorted(model.config.cc_model_filenames.items()):
        where = ("cc_model_filenames", key)
        missing = [version for version in model.served if not exists(model.version_dir(version) / file)]
        if not _CAPABILITY.fullmatch(key):
            yield model.find(CAPABILITY, f"key {key} is no compute capability", *where, hint="such as 8.9")
        elif missing:
            path = f"{model.name}/{missing[0].number}/{file}"
            yield model.find(CAPABILITY, f"{path} not found, for GPUs of compute capability {key}", *where)
        else:
            built = {version.number: _built_on(model.version_dir(version) / file, key) for version in model.served}
            for number, other in built.items():
                if other is not None:
                    yield model.find(
                        CAPABILITY_DIFFERS,
                        f"{file} of version {number} was built on compute capability {other}, but is chosen for {key}",
                        *where,
                        hint="build it on such a GPU, or hardware-compatible",
                    )


def _built_on(plan: Path, key: str) -> str | None:
    """The capability that a plan was built on, where a GPU of this one cannot run it; else None."""
    sidecar = manifest_path(plan)
    try:
        manifest = read_manifest(sidecar) if is_file(sidecar) else None
    except UsageError:  # told by the checks of the plan itself
        return None
    if manifest is None or manifest.compute_capability == key:
        return None
    newer = tuple(map(int, key.split("."))) >= (8, 0)
    return None if manifest.hardware_compatibility == "ampere+" and newer else manifest.compute_capability
