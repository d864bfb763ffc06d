"""Rules about shapes that only a TensorRT plan has: profiles, static batches, shape tensors. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tooling.check.files import json_object
from tooling.check.finding import Evidence, Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, note, request
from tooling.check.sizes import type_name
from tooling.check.wording import shape_text
from tooling.signature.spec import ModelSignature, Profile, TensorSpec
from tooling.signature.tensorrt_plan import largest_batch

_SOURCE: Final = "tensorrt backend"
_Y: Final = 'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'


def _example(config: str, shape: str = "-1, -1", sizes: Sequence[str] = ("[1, 1]", "[4, 8]", "[8, 16]")) -> str:
    """A plan whose input x has this shape, with a profile of these sizes."""
    profile = ", ".join(f'"{key}": {size}' for key, size in zip(("min", "opt", "max"), sizes, strict=True))
    sidecar = (
        '{"tensorrt": "10.5.0", "compute_capability": "8.9", '
        f'"inputs": [{{"name": "x", "data_type": "FP32", "shape": [{shape}]}}], '
        '"outputs": [{"name": "y", "data_type": "FP32", "shape": [-1, 8]}]'
        + (f', "profiles": [{{"x": {{{profile}}}}}]}}' if sizes[0] else "}")
    )
    return (
        f'platform: "tensorrt_plan"\n{config}--- 1/model.onnx\nabsent\n--- 1/model.plan\nplan 10.5.0\n'
        f"--- 1/model.plan.json\n{sidecar}"
    )


def _x(dims: str, more: str = "") -> str:
    return f'input {{ name: "x" data_type: TYPE_FP32 dims: {dims} {more}}}\n'


_GPU: Final = "max_batch_size: 8\ndynamic_batching { }\ninstance_group { kind: KIND_GPU }\n"

OUTSIDE = load(
    "plan-dims-outside-profile",
    "A fixed dim of the config lies outside of the plan's profile.",
    "-1 leaves the length to the profile.",
    _example(_GPU + _x("[ 32 ]") + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
STATIC = request(
    "plan-batch-fixed",
    "The plan takes batches of one size only.",
    "Auto-complete takes the fixed first axis for the largest batch; every batch of another size fails.",
    _example(_GPU + _x("[ 16 ]") + _Y, "8, 16", ("", "", "")),
    _SOURCE,
    evidence=Evidence.READ,
)
SHAPE_TENSOR = load(
    "plan-shape-tensor-flag",
    "is_shape_tensor says something else than the plan.",
    "A shape tensor holds lengths; the flag must stand where the plan has one, and nowhere else.",
    _example(_GPU + _x("[ 16 ]", "is_shape_tensor: true ") + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
SHAPE_TYPE = load(
    "plan-shape-tensor-type",
    "A shape tensor has a type that shapes do not have.",
    "Inputs are TYPE_INT32 or TYPE_INT64, outputs TYPE_INT64.",
    _example(_GPU + _x("[ 16 ]", "is_shape_tensor: true ") + _Y, "17", ("", "", "")).replace(
        '"shape": [17]', '"shape": [17], "shape_tensor": true'
    ),
    _SOURCE,
    evidence=Evidence.READ,
)
HINTS = load(
    "plan-batch-contradicting",
    "Some tensors leave the batch axis out, others do not.",
    "With max_batch_size left out, auto-complete concludes from the dims whether the model batches.",
    _example("instance_group { kind: KIND_GPU }\n" + _x("[ 16 ]") + _Y.replace("[ 8 ]", "[ -1, 8 ]")),
    _SOURCE,
    evidence=Evidence.READ,
)
COPIES = note(
    "plan-weights-per-instance",
    "Every instance of a plan with free axes holds the weights anew.",
    "Instances share an engine only where every axis is fixed.",
    _example(_GPU.replace("GPU }", "GPU count: 2 }") + _x("[ -1 ]") + _Y),
    _SOURCE,
)
GAP = request(
    "plan-profile-gap",
    "The profiles in use leave a length out.",
    "A request that fits no profile fails when it runs, not at load.",
    _example(
        'max_batch_size: 8\ndynamic_batching { }\ninstance_group { kind: KIND_GPU profile: [ "0", "1" ] }\n'
        + _x("[ -1 ]")
        + _Y
    ).replace('"profiles": [', '"profiles": [{"x": {"min": [1, 32], "opt": [4, 64], "max": [8, 64]}}, '),
    _SOURCE,
    evidence=Evidence.READ,
)
UNUSED = advice(
    "plan-profiles-unused",
    "Instances do not use the profiles that take the plan's longest or shortest inputs.",
    "Without `instance_group.profile` only profile 0 is used; what it does not take fails when it comes. Any instance "
    "may get any request, so each group needs all profiles.",
    _example(_GPU + _x("[ -1 ]") + _Y).replace(
        "]}}]}", ']}}, {"x": {"min": [1, 17], "opt": [8, 32], "max": [8, 32]}}]}'
    ),
    _SOURCE,
)
ROWS = request(
    "plan-profile-rows",
    "The profiles in use do not take every batch at every length.",
    "Triton sends batches of every size from 1 to max_batch_size; one that fits no profile fails when it runs.",
    _example(
        'max_batch_size: 8\ndynamic_batching { }\ninstance_group { kind: KIND_GPU profile: [ "0", "1" ] }\n'
        + _x("[ -1 ]")
        + _Y
    ).replace('"profiles": [', '"profiles": [{"x": {"min": [1, 17], "opt": [4, 32], "max": [4, 32]}}, '),
    _SOURCE,
    evidence=Evidence.READ,
)
TEXTS = request(
    "plan-shorter-than-texts",
    "The tokenizer of a text pipeline cuts texts at more tokens than the plan takes.",
    "Texts between the two limits fail when they run.",
    _example(_GPU + _x("[ -1 ]") + _Y)
    + '\n--- ../texts/config.pbtxt\nplatform: "ensemble"\nmax_batch_size: 8\n'
    + 'input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }\n'
    + _Y
    + 'ensemble_scheduling { step { model_name: "tokenizer" model_version: -1 '
    'input_map { key: "text" value: "text" } output_map { key: "x" value: "x" } } '
    'step { model_name: "example" model_version: -1 '
    'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }\n--- ../texts/1/.keep\n'
    + '--- ../tokenizer/config.pbtxt\nbackend: "python"\nmax_batch_size: 8\ndynamic_batching { }\n'
    + 'input { name: "text" data_type: TYPE_STRING dims: [ 1 ] }\n'
    + _x("[ -1 ]").replace("input", "output")
    + "--- ../tokenizer/1/model.py\nclass TritonPythonModel:\n    def execute(self, requests):\n        return None\n"
    + '--- ../tokenizer/1/text.json\n{"max_tokens": 512}',
    _SOURCE,
    evidence=Evidence.READ,
)
RULES = (OUTSIDE, STATIC, SHAPE_TENSOR, SHAPE_TYPE, HINTS, COPIES, GAP, UNUSED, ROWS, TEXTS)


def shapes(model: Model, signature: ModelSignature, groups: Sequence[Sequence[Profile]]) -> Iterator[Finding]:
    """The config's shapes against a plan's; `groups` are the profiles that each group of instances uses."""
    config = model.config
    for what, listed, specs in (
        ("input", config.input, signature.inputs),
        ("output", config.output, signature.outputs),
    ):
        known = {spec.name: spec for spec in specs}
        for index, tensor in enumerate(listed):
            if tensor.name in known:
                yield from _shape_tensor(model, what, index, tensor, known[tensor.name])
    for index, tensor in enumerate(config.input):
        yield from _in_profiles(model, index, tensor, [profile for group in groups for profile in group])
    yield from next(filter(None, (_of_group(model, signature, group) for group in groups)), ())
    if config.max_batch_size > 0:
        yield from _static(model, signature)
    elif not model.target.strict and not any(tensor.allow_ragged_batch for tensor in config.input):
        yield from _hints(model, signature)
    free = any(-1 in spec.dims for spec in (*signature.inputs, *signature.outputs))
    several = next((group for group in model.instances if group.count > 1), None)
    if free and several is not None:
        yield model.find(
            COPIES,
            f"{several.count} instances on a GPU hold the weights {several.count} times",
            *("instance_group", several.index, "count"),
        )


def _shape_tensor(model: Model, what: str, index: int, tensor: Any, spec: TensorSpec) -> Iterator[Finding]:
    name, where = model.config.name, (what, index, "is_shape_tensor")
    start = f"{what} '{tensor.name}' for model '{name}' is"
    if tensor.is_shape_tensor != spec.shape_tensor:
        wrong = "a shape tensor but the model configuration doesn't mark it as a shape tensor."
        if tensor.is_shape_tensor:
            wrong = "incorrectly marked as a shape tensor in the model configuration."
        yield model.find(
            SHAPE_TENSOR,
            f"{what} {tensor.name} is {'a' if spec.shape_tensor else 'no'} shape tensor in the plan",
            *where,
            says=f"{start} {wrong}",
            fix=(f"{what}[{index}].is_shape_tensor={str(spec.shape_tensor).lower()}",),
        )
        return
    written = type_name(tensor.data_type)
    allowed = ("TYPE_INT32", "TYPE_INT64") if what == "input" else ("TYPE_INT64",)
    if spec.shape_tensor and spec.data_type not in allowed:
        yield model.find(
            SHAPE_TYPE,
            f"shape {what} {tensor.name} is {spec.data_type} in the plan",
            *(what, index, "data_type"),
            says=f"unexpected datatype {spec.data_type} in engine for shape {what} '{tensor.name}'",
            hint="cast it inside the network",
        )
        return
    if tensor.is_shape_tensor and written not in allowed:
        yield model.find(
            SHAPE_TYPE,
            f"shape {what} {tensor.name} is {written}",
            *(what, index, "data_type"),
            says=f"unexpected datatype {written} in model configuration for shape {what} '{tensor.name}', expecting "
            f"{' or '.join(allowed)}"
            if what == "input"
            else f"unexpected datatype '{written}' in model configuration for shape output '{tensor.name}', expecting "
            "TYPE_INT64",
            hint=" or ".join(allowed),
        )


def _in_profiles(model: Model, index: int, tensor: Any, profiles: Sequence[Profile]) -> Iterator[Finding]:
    first = 1 if model.config.max_batch_size > 0 else 0
    for profile in profiles:
        low, high = profile.smallest.get(tensor.name), profile.largest.get(tensor.name)
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        if low is None or high is None or len(dims) + first != len(low):
            continue
        for axis, length in enumerate(dims, start=first):
            if length != -1 and not low[axis] <= length <= high[axis]:
                yield model.find(
                    OUTSIDE,
                    f"input {tensor.name} axis {axis}: config {length}, profile {low[axis]} to {high[axis]}",
                    *("input", index, "reshape" if tensor.HasField("reshape") else "dims"),
                    says=f"model configuration specified invalid shape for input '{tensor.name}' for model "
                    f"{model.config.name}. Error details: model expected the shape of dimension {axis} to be between "
                    f"{low[axis]} and {high[axis]} but received {length}",
                    hint="dims: [ -1 ], or build the plan with a wider profile",
                )
                return


def _of_group(model: Model, signature: ModelSignature, profiles: Sequence[Profile]) -> list[Finding]:
    """What requests may come that the profiles of one group of instances do not take."""
    return [
        *_gaps(model, profiles),
        *_unused(model, signature, profiles),
        *_rows(model, profiles),
        *_texts(model, profiles),
    ]


def _rows(model: Model, profiles: Sequence[Profile]) -> Iterator[Finding]:
    """Batches that are taken at some lengths and not at others; what no profile takes has rules of its own."""
    top, lone = model.config.max_batch_size, [profile for profile in profiles if profile.batches[0] == 1]
    if top <= 0 or not lone:
        return
    many = [profile for profile in profiles if not any(one.spans(profile) for one in lone)]
    most = largest_batch(tuple(profiles))
    says = None
    if many:
        says = f"a single request of the lengths of a profile for {many[0].batches[0]} rows and more"
    elif most < top <= max(profile.batches[1] for profile in profiles):
        says = f"a batch of {most + 1} to {top} rows at every length"
    if says:
        yield model.find(
            ROWS,
            f"no profile in use takes {says}",
            "instance_group",
            hint="build every profile with the same batches, from 1 to max_batch_size",
        )


def _gaps(model: Model, profiles: Sequence[Profile]) -> Iterator[Finding]:
    """Along every axis but the batch, each by itself: what lies between two profiles."""
    axes = dict.fromkeys(
        (name, axis) for profile in profiles for name, low in profile.smallest.items() for axis in range(1, len(low))
    )
    for name, axis in axes:
        spans = sorted((profile.smallest[name][axis], profile.largest[name][axis]) for profile in profiles)
        top = spans[0][1]
        for low, high in spans[1:]:
            if low > top + 1:
                yield model.find(
                    GAP,
                    f"input {name} axis {axis}: no profile takes {top + 1} to {low - 1}",
                    "instance_group",
                    hint="build adjacent profiles, or list all of them in instance_group.profile",
                )
                return
            top = max(top, high)


def _spans(profiles: Sequence[Profile]) -> dict[tuple[str, int], tuple[int, int]]:
    """The least and the most that any of the profiles takes, by input and axis but the first."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for profile in profiles:
        for name, high in profile.largest.items():
            for axis, most in enumerate(high[1:], start=1):
                least = profile.smallest[name][axis]
                low, top = spans.get((name, axis), (least, most))
                spans[name, axis] = min(least, low), max(most, top)
    return spans


def _unused(model: Model, signature: ModelSignature, profiles: Sequence[Profile]) -> Iterator[Finding]:
    built = _spans(signature.profiles)
    for (name, axis), (least, most) in _spans(profiles).items():
        low, top = built[name, axis]
        if top > most:
            says = f"the profiles in use take {most}, others {top}"
        elif low < least:
            says = f"the profiles in use take {least} and more, others {low}"
        else:
            continue
        yield model.find(
            UNUSED,
            f"input {name} axis {axis}: {says}",
            "instance_group",
            hint="list them in instance_group.profile",
        )
        return


def _texts(model: Model, profiles: Sequence[Profile]) -> Iterator[Finding]:
    """Against what every text pipeline says that feeds the plan: a step before it, or one that calls it by name."""
    lengths = [most for (_, axis), (_, most) in _spans(profiles).items() if axis == 1]
    steps = set(_before(model))
    for name, step in sorted(model.siblings.items()) if lengths else ():
        said = [json_object(step.version_dir(version) / "text.json") or {} for version in step.served]
        feeding = [one for one in said if name in steps or one.get("model") == model.name]
        most = max((one["max_tokens"] for one in feeding if isinstance(one.get("max_tokens"), int)), default=0)
        if most > min(lengths):
            yield model.find(
                TEXTS,
                f"{name} cuts texts at {most} tokens, the plan takes {min(lengths)}",
                "instance_group",
                hint=f"build the plan with --max-tokens {most}, or the pipeline with --max-tokens {min(lengths)}",
            )


def _before(model: Model) -> Iterator[str]:
    """The steps before the model in the ensembles that it is a step of."""
    for pipeline in model.siblings.values():
        steps = [step.model_name for step in pipeline.config.ensemble_scheduling.step]
        if model.name in steps:
            yield from steps[: steps.index(model.name)]


def _static(model: Model, signature: ModelSignature) -> Iterator[Finding]:
    fixed = next((spec for spec in signature.inputs if spec.dims and spec.dims[0] > 1 and not spec.shape_tensor), None)
    if fixed is not None:
        size = fixed.dims[0]
        yield model.find(
            STATIC,
            f"input {fixed.name} is {shape_text(fixed.dims)} in the engine: every batch must hold {size}",
            "max_batch_size",
            hint=f"build it with batch 1 to {size}, or use max_batch_size: 0 and whole shapes",
        )


def _hints(model: Model, signature: ModelSignature) -> Iterator[Finding]:
    config = model.config
    ranks = {spec.name: len(spec.dims) for spec in (*signature.inputs, *signature.outputs) if not spec.shape_tensor}
    without = {
        tensor.name: ranks[tensor.name] == len(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims) + 1
        for tensor in (*config.input, *config.output)
        if tensor.name in ranks and tensor.dims
    }
    if len(set(without.values())) > 1:
        left_out = ", ".join(name for name, leaves in without.items() if leaves)
        yield model.find(
            HINTS,
            f"the batch axis is left out of {left_out}, and not of the others",
            says=f"unable to autofill for '{config.name}', model tensor configurations are contradicting each other in "
            "terms of whether batching is supported",
            hint="write max_batch_size, and leave the batch axis out everywhere",
        )
