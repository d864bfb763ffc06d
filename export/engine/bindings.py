"""Builds an engine with the `tensorrt` Python package, of version 10 or 11. Layer: export.engine, adapter."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from export.engine.request import EngineRequest
from tooling.errors import ExternalError, UsageError

if TYPE_CHECKING:
    import tensorrt as trt

_LEVELS: Final = {"ampere+": "AMPERE_PLUS", "same-compute-capability": "SAME_COMPUTE_CAPABILITY"}


def available() -> bool:
    """Whether the package is installed; it is not imported, which would start CUDA. Stubs alone have no origin."""
    found = importlib.util.find_spec("tensorrt")
    return found is not None and found.origin is not None


def build(request: EngineRequest) -> None:
    """Write `request.plan` and update its timing cache.

    Raises UsageError when the package is of another major version than the target release has, or the timing cache of
    another version or GPU, and ExternalError when the parser or the builder fails. Members of enums are looked up by
    name: their numbers differ between 10 and 11, and 11 dropped the precision flags.
    """
    os.environ.update(request.only_gpu)  # before CUDA starts
    import tensorrt as trt

    if trt.__version__.partition(".")[0] != str(request.tensorrt_major):
        raise UsageError(
            "the tensorrt package builds engines that the target release cannot run",
            got=f"TensorRT {trt.__version__}",
            expected=f"{request.release.tensorrt}, of Triton {request.release.tag}",
            hint="build in the container of the release: --builder container",
        )
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(_network_flags(trt, request))
    _parse(trt, network, logger, request.graph.path)
    config = builder.create_builder_config()
    _configure(trt, config, request)
    for profile in request.profiles:
        shapes = builder.create_optimization_profile()
        for name, smallest in profile.smallest.items():
            triple = (smallest, profile.best[name], profile.largest[name])
            shapes.set_shape(name, *(trt.Dims(list(shape)) for shape in triple))
        config.add_optimization_profile(shapes)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ExternalError(
            "TensorRT built no engine", where=request.graph.path, hint="its reason stands above, in TensorRT's own log"
        )
    request.plan.write_bytes(plan)
    if request.timing_cache is not None:
        request.timing_cache.write_bytes(config.get_timing_cache().serialize())


def _network_flags(trt: Any, request: EngineRequest) -> int:
    """The bit of strong typing where it is wanted and still a bit: 11 is always strongly typed."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 1 << int(flag) if request.strongly_typed and request.tensorrt_major == 10 and flag is not None else 0


def _parse(trt: Any, network: trt.INetworkDefinition, logger: trt.Logger, onnx: Path) -> None:
    """By path, not by bytes: external data is found beside the file."""
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx)):
        reasons = "; ".join(parser.get_error(number).desc() for number in range(parser.num_errors))
        raise ExternalError("TensorRT cannot read the model", where=onnx, got=reasons or "no reason given")


def _configure(trt: Any, config: trt.IBuilderConfig, request: EngineRequest) -> None:
    if request.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace_bytes)
    flags = {
        "FP16": not request.strongly_typed,
        "VERSION_COMPATIBLE": request.version_compatible,
        "WEIGHT_STREAMING": request.weight_streaming,
    }
    for name, wanted in flags.items():
        if wanted:
            config.set_flag(getattr(trt.BuilderFlag, name))
    if request.hardware_compatibility is not None:
        level = _LEVELS[request.hardware_compatibility]
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)
    if request.timing_cache is not None:
        known = request.timing_cache.read_bytes() if request.timing_cache.is_file() else b""
        cache = config.create_timing_cache(known)
        if not cache or not config.set_timing_cache(cache, ignore_mismatch=False):
            hint = "give another file, or delete it: it is written anew"
            raise UsageError("a timing cache of another TensorRT or GPU", where=request.timing_cache, hint=hint)
