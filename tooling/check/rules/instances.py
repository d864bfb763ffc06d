"""Rules about instances: kinds, GPUs, counts, profiles, the rate limiter. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tooling.check.fill import Instances
from tooling.check.finding import Evidence, Finding, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load

_SOURCE: Final = "ValidateInstanceGroup (core)"
_CAPABILITY: Final = "6.000000"

MODEL_GPUS = load(
    "kind-model-with-gpus",
    "KIND_MODEL must not list gpus.",
    "The model or its backend chooses the devices.",
    "instance_group { kind: KIND_MODEL gpus: [ 0 ] }",
    _SOURCE,
)
CPU_GPUS = load(
    "kind-cpu-with-gpus",
    "KIND_CPU must not list gpus.",
    "A group runs on the CPU or on the GPUs it lists.",
    "instance_group { kind: KIND_CPU gpus: [ 0 ] }",
    _SOURCE,
)
AUTO_GPUS = advice(
    "kind-auto-with-gpus",
    "A group that lists gpus without KIND_GPU fails where one of them is missing.",
    "Triton turns it into KIND_CPU there, keeps the list, and then refuses it because a CPU group must not list GPUs.",
    "instance_group { gpus: [ 0 ] }",
    "NormalizeInstanceGroup (core)",
    evidence=Evidence.RUN,
)
NO_GPUS = load(
    "kind-gpu-without-gpu",
    "KIND_GPU on a server without a GPU.",
    "The server sees no GPU that it supports: a machine without one, or a container that was given none.",
    "instance_group { kind: KIND_GPU }\n--- options\n--gpus 0",
    _SOURCE,
)
GPU_MISSING = load(
    "gpu-id-unknown",
    "A group lists a GPU that the server does not have.",
    "Ids count from 0 among the GPUs the server sees, after CUDA_VISIBLE_DEVICES and device_ids of the container.",
    "instance_group { kind: KIND_GPU gpus: [ 6 ] }\n--- options\n--gpus 2",
    _SOURCE,
)
PROFILE_PLATFORM = load(
    "profile-outside-tensorrt",
    "`profile` is for TensorRT plans only.",
    "Optimization profiles are part of a plan.",
    'instance_group { kind: KIND_CPU profile: [ "0" ] }',
    _SOURCE,
)
PROFILE_NUMBER = load(
    "profile-not-a-number",
    "A profile is the number of one, as a string.",
    "Profiles are counted from 0.",
    'platform: "tensorrt_plan"\ninstance_group { kind: KIND_GPU profile: [ "large" ] }',
    _SOURCE,
    evidence=Evidence.READ,
)
COUNT_DEFAULT = advice(
    "instance-count-not-positive",
    "A count of 0 or less is replaced by Triton's default.",
    "That default is 1, and 2 for KIND_CPU with the ONNX Runtime backend: such a group cannot be switched off this "
    "way.",
    "instance_group { kind: KIND_CPU count: -1 }",
    "NormalizeInstanceGroup (core)",
    evidence=Evidence.RUN,
)
ALL_PASSIVE = advice(
    "instances-all-passive",
    "Every instance group is passive: the model serves nothing.",
    "Passive instances are made and get no requests. The model is READY, and requests wait for ever.",
    "instance_group { kind: KIND_CPU passive: true }",
    "TritonModelInstance (core)",
    evidence=Evidence.RUN,
    stage=Stage.REQUEST,
)
RESOURCE_BOTH = load(
    "resource-global-and-per-device",
    "A rate limiter resource is global in one place and per device in another.",
    "The name means one pool of resources over all models. Checked only with --rate-limit=execution_count.",
    'instance_group { kind: KIND_CPU rate_limiter { resources { name: "R" global: true count: 1 } } }\n'
    'instance_group { kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }\n--- options\n'
    "--server-args --rate-limit=execution_count",
    "ResourceManager (core)",
)
RESOURCE_SHORT = load(
    "resource-too-few",
    "The server has fewer of a resource than an instance needs.",
    "As soon as one --rate-limit-resource is given, every resource that is not listed counts as 0.",
    'instance_group { kind: KIND_CPU rate_limiter { resources { name: "R" count: 4 } } }\n--- options\n'
    "--server-args --rate-limit=execution_count --rate-limit-resource=R:2",
    "ResourceManager (core)",
)
RESOURCE_UNUSED = advice(
    "rate-limiter-off",
    "The rate limiter's settings have no effect: it is off.",
    "It is switched on by --rate-limit=execution_count.",
    'instance_group { kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } } }\n--- options\n'
    "--server-args --model-repository=/models",
    "RateLimiter (core)",
    evidence=Evidence.RUN,
)
RULES = (
    *(MODEL_GPUS, CPU_GPUS, AUTO_GPUS, NO_GPUS, GPU_MISSING, PROFILE_PLATFORM, PROFILE_NUMBER, COUNT_DEFAULT),
    *(ALL_PASSIVE, RESOURCE_BOTH, RESOURCE_SHORT, RESOURCE_UNUSED),
)


def instance_groups(model: Model) -> Iterator[Finding]:
    """Each group, after Triton has filled in what it leaves open."""
    for group in model.instances:
        yield from _devices(model, group)
        if group.written:
            yield from _profiles(model, group)
    groups = model.written.instance_group
    for index, written in enumerate(groups):
        if written.count < 0:
            filled = model.instances[index].count if model.instances else 1
            yield model.find(
                COUNT_DEFAULT,
                f"count {written.count} is replaced by the default, {filled}",
                "instance_group",
                index,
                "count",
            )
    if groups and all(group.passive for group in groups):
        yield model.find(ALL_PASSIVE, "every instance group is passive: requests wait for ever", "instance_group")


def zero_counts(model: Model) -> Iterator[Finding]:
    """`count: 0`, which a message does not tell from no count."""
    if model.text is None or model.is_ensemble:
        return
    for group in model.instances:
        place = model.text.place(("instance_group", group.index, "count"))
        written = group.written and not model.written.instance_group[group.index].count
        if written and place != model.text.place(("instance_group", group.index)):
            yield model.find(
                COUNT_DEFAULT,
                f"count 0 is replaced by the default, {group.count}",
                "instance_group",
                group.index,
                "count",
            )


def _devices(model: Model, group: Instances) -> Iterator[Finding]:
    where = ("instance_group", group.index)
    start = f"instance group {group.name} of model {model.config.name}"
    declared = model.written.instance_group[group.index].kind if group.written else 0
    if group.kind in ("KIND_MODEL", "KIND_CPU") and group.gpus:
        automatic = declared == 0
        listed = f"gpus: {list(group.gpus)}"
        yield model.find(
            MODEL_GPUS if group.kind == "KIND_MODEL" else CPU_GPUS,
            f"{group.kind} must not list gpus, and has {listed}"
            + (" (Triton makes the group KIND_CPU where a listed GPU is missing)" if automatic else ""),
            *where,
            "gpus",
            says=f"{start} has kind {group.kind} but specifies one or more GPUs",
            hint="remove gpus" if not automatic else "write kind: KIND_GPU, or remove gpus",
            fix=(f"-instance_group[{group.index}].gpus",),
        )
    elif group.kind is None and group.gpus:
        yield model.find(
            AUTO_GPUS,
            f"gpus: {list(group.gpus)} without a kind fails on a machine that lacks one of them",
            *where,
            "gpus",
            hint="write kind: KIND_GPU, or remove gpus",
        )
    elif group.kind == "KIND_GPU" and model.target.gpus == 0 and not group.gpus:
        yield model.find(
            NO_GPUS,
            f"{model.name} uses KIND_GPU but {_server(model)} no GPU",
            *where,
            "kind",
            says=f"{start} has kind KIND_GPU but no GPUs are available",
            hint="give the server a GPU, or leave kind out so that the CPU is used where there is none",
        )
    elif group.kind == "KIND_GPU" and model.target.gpus is not None:
        there = list(range(model.target.gpus))
        for gpu in group.gpus:
            if gpu not in there:
                known = ",".join(map(str, there)) or "none"
                yield model.find(
                    GPU_MISSING,
                    f"gpus: {list(group.gpus)} but {_viewer(model)} sees {len(there)} GPUs: ids {known}",
                    *where,
                    "gpus",
                    says=f"{start} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum "
                    "required "
                    f"CUDA compute compatibility of {_CAPABILITY} are: {', '.join(map(str, there))}",
                    hint="ids count from 0 among the GPUs that the server sees",
                )


def _server(model: Model) -> str:
    return "the service reserves" if model.target.image else "the server has"


def _viewer(model: Model) -> str:
    return "the container" if model.target.image else "the server"


def _profiles(model: Model, group: Instances) -> Iterator[Finding]:
    profiles = model.written.instance_group[group.index].profile
    where = ("instance_group", group.index, "profile")
    start = f"instance group {group.name} of model {model.config.name} and platform {model.config.platform}"
    if profiles and model.config.platform != "tensorrt_plan":
        yield model.find(
            PROFILE_PLATFORM,
            "profile is for TensorRT plans only",
            *where,
            says=f"{start}specifies profile field which is only supported for TensorRT models",
            fix=(f"-instance_group[{group.index}].profile",),
        )
        return
    for index, profile in enumerate(profiles):
        if not profile.isdecimal():
            yield model.find(
                PROFILE_NUMBER,
                f"profile `{profile}` is no number",
                *where,
                index,
                says=f"unable to parse '{profile}': stoi"
                if profile and not profile.lstrip("-").isdecimal()
                else f"{start} specifies invalid profile {profile}. The field should contain the string "
                "representation of "
                "a non-negative integer.",
            )


def rate_limits(models: Mapping[str, Model]) -> Iterator[Finding]:
    """The rate limiter's resources over all models."""
    scopes: dict[str, bool] = {}
    for model in models.values():
        for index, group in enumerate(model.written.instance_group):
            for resource in group.rate_limiter.resources:
                where = ("instance_group", index, "rate_limiter")
                if not model.target.rate_limit:
                    if model.target.rate_limit is not None:
                        yield model.find(RESOURCE_UNUSED, f"resource {resource.name}: the rate limiter is off", *where)
                    continue
                name = resource.name
                if scopes.setdefault(name, getattr(resource, "global")) != getattr(resource, "global"):
                    yield model.find(
                        RESOURCE_BOTH,
                        f"resource {name} is global in one place and per device in another",
                        *where,
                        says=f'Resource "{name}" is present as both global and device-specific resource in the model '
                        "configuration.",
                    )
                there = model.target.resources.get(name, 0)
                if model.target.resources and there < resource.count:
                    yield model.find(
                        RESOURCE_SHORT,
                        f"resource {name}: an instance needs {resource.count}, the server has {there}",
                        *where,
                        says=f'Resource count for "{name}" is limited to {there} which will prevent scheduling of '
                        "one or "
                        f"more model instances, the minimum required count is {resource.count}",
                    )
