"""trtexec's command lines: for a local binary and inside the container of the target release. Layer: export.engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from export.engine.request import EngineRequest
from tooling.signature.spec import Profile

_IMAGE: Final = "nvcr.io/nvidia/tensorrt:{tag}-py3"  # has the TensorRT of the Triton image with the same tag
_LEVELS: Final = {"ampere+": "ampere+", "same-compute-capability": "sameComputeCapability"}


def trtexec_arguments(request: EngineRequest) -> tuple[str, ...]:
    """What follows `trtexec` on the command line, with the paths of this machine."""
    return tuple(_arguments(request, request.graph.path, request.plan, request.timing_cache))


def local_command(request: EngineRequest) -> tuple[str, ...]:
    """The whole command for the trtexec on the PATH, on the GPU that is asked for."""
    pinned = (f"{name}={value}" for name, value in request.only_gpu.items())
    return ("env", *pinned, "trtexec", *trtexec_arguments(request))


def container_command(request: EngineRequest) -> tuple[str, ...]:
    """The whole `docker run` that builds the engine with the TensorRT of the target release.

    The ONNX file's directory is mounted read-only, with the external data in it; the container has no network and
    writes as the calling user.
    """
    onnx, plan, cache = request.graph.path.resolve(), request.plan.absolute(), request.timing_cache
    mounts = [_mount(onnx.parent, "/onnx", "readonly"), _mount(plan.parent, "/plan")]
    if cache is not None:
        mounts.append(_mount(cache.absolute().parent, "/cache"))
    inside = _arguments(
        request,
        PurePosixPath("/onnx") / onnx.name,
        PurePosixPath("/plan") / plan.name,
        None if cache is None else PurePosixPath("/cache") / cache.name,
    )
    return (
        *("docker", "run", "--rm", "--gpus", f"device={request.gpu}", "--network", "none"),
        *("--user", f"{os.getuid()}:{os.getgid()}"),
        *(word for mount in mounts for word in ("--mount", mount)),
        *(_IMAGE.format(tag=request.release.tag), "trtexec", *inside),
    )


def _mount(source: Path, target: str, *more: str) -> str:
    """A mount as docker reads it: comma-separated values, quoted where the path has a comma or a quote itself."""
    word = f"source={source}"
    if "," in word or '"' in word:
        word = '"' + word.replace('"', '""') + '"'
    return ",".join(("type=bind", word, f"target={target}", *more))


def _arguments(
    request: EngineRequest, onnx: Path | PurePosixPath, plan: Path | PurePosixPath, cache: Path | PurePosixPath | None
) -> Iterator[str]:
    """The flags that TensorRT 10 and 11 both have, and those that only 10 has where it needs them."""
    signature = request.graph.signature
    dynamic = [tensor.name for tensor in signature.inputs if -1 in tensor.dims] if signature else []
    yield f"--onnx={onnx}"
    yield f"--saveEngine={plan}"
    yield from _precision(request)
    for number, profile in enumerate(request.profiles):
        if len(request.profiles) > 1:
            yield f"--profile={number}"
        yield from _shapes(profile, dynamic)
    if request.workspace_bytes is not None:
        yield f"--memPoolSize=workspace:{max(1, request.workspace_bytes >> 20)}"  # MiB
    if cache is not None:
        yield f"--timingCacheFile={cache}"
    if request.version_compatible:
        yield "--versionCompatible"
    if request.hardware_compatibility is not None:
        yield f"--hardwareCompatibilityLevel={_LEVELS[request.hardware_compatibility]}"
    if request.weight_streaming:
        yield "--allowWeightStreaming"
    yield "--skipInference"


def _precision(request: EngineRequest) -> Iterator[str]:
    """TensorRT 11 has one way, types from the ONNX file, and no flag for it."""
    if request.tensorrt_major < 11:
        yield "--stronglyTyped" if request.strongly_typed else "--fp16"


def _shapes(profile: Profile, dynamic: Sequence[str]) -> Iterator[str]:
    """trtexec refuses shapes of inputs that have no free axis."""
    for flag, shapes in (("min", profile.smallest), ("opt", profile.best), ("max", profile.largest)):
        yield f"--{flag}Shapes={written_shapes(shapes, dynamic)}"


def written_shapes(shapes: Mapping[str, tuple[int, ...]], names: Sequence[str]) -> str:
    """`input_ids:1x128,attention_mask:1x128`, for inputs of these names."""
    return ",".join(f"{name}:{'x'.join(map(str, shapes[name]))}" for name in names)
