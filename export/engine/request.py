"""What engine is wanted, and whether the target release can have it. Layer: export.engine, over profiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from export.constants import HALF_MAX, beyond_half
from tooling.errors import Problem, UsageError
from tooling.releases import Release, releases
from tooling.signature.onnx_graph import OnnxGraph, read_graph
from tooling.signature.plan_manifest import ENGINE_TYPES, HardwareCompatibility
from tooling.signature.spec import Profile

_SAME_CAPABILITY_SINCE: Final = (10, 9)  # release notes of TensorRT 10.9.0
_STANDARD_DOMAINS: Final = ("", "ai.onnx.ml", "trt.plugins")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One engine: `plan` is built from the file of `graph` for the TensorRT of `release`.

    Every type is the ONNX file's (a strongly typed network), unless `fp16` lets TensorRT 10 choose half precision
    where that is faster. `workspace_bytes` None leaves the builder all of the GPU's memory. `weight_streaming` builds
    the ability in; Triton's backend never turns it on.
    """

    graph: OnnxGraph
    plan: Path
    profiles: tuple[Profile, ...]
    release: Release
    fp16: bool = False
    workspace_bytes: int | None = None
    timing_cache: Path | None = None
    hardware_compatibility: HardwareCompatibility | None = None
    version_compatible: bool = False
    weight_streaming: bool = False
    gpu: int = 0

    @property
    def tensorrt_major(self) -> int:
        return int((self.release.tensorrt or "0").partition(".")[0])

    @property
    def only_gpu(self) -> dict[str, str]:
        """Variables that leave CUDA the GPU `gpu` alone, counted as nvidia-smi and docker do: CUDA itself begins with
        the fastest."""
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(self.gpu)}

    @property
    def strongly_typed(self) -> bool:
        """Whether types come from the ONNX file: by default, and always since TensorRT 11."""
        return not self.fp16 or self.tensorrt_major >= 11


def check_source(onnx: Path) -> OnnxGraph:
    """An ONNX file that TensorRT's parser can take; it has a signature.

    Raises UsageError for a file that is broken, lacks its external data, or holds operators of ONNX Runtime alone.
    """
    graph = read_graph(onnx)
    problems = [*graph.problems, *_missing_data(graph), *_foreign_operators(graph), *_foreign_types(graph)]
    if problems:
        raise UsageError(problems=problems)
    return graph


def check_request(request: EngineRequest) -> None:
    """Raises UsageError with all that TensorRT of the target release cannot do."""
    problems = list(_impossible(request))
    if problems:
        raise UsageError(problems=problems)


def overflow_warning(request: EngineRequest) -> str | None:
    """What may go wrong where TensorRT chooses half precision; None when nothing does, or types are the file's.

    Layer norms overflow too, on values that no file shows: only a comparison with FP32 tells.
    """
    found = {} if request.strongly_typed else beyond_half(request.graph.path)
    if not found:
        return None
    shown = ", ".join(f"{name} ({most:.3g})" for name, most in list(found.items())[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return (
        f"{request.graph.path}: {shown}{more} exceed what half precision holds ({HALF_MAX:g}): outputs may contain NaN "
        "or Inf after the FP16 build. Compare with FP32 within a tolerance; or export the ONNX file with --precision "
        "fp16, which keeps masks and norms finite, and build that file as it is"
    )


def _missing_data(graph: OnnxGraph) -> Iterator[Problem]:
    for data in graph.outside:
        beside = graph.path.parent / data.location
        size = beside.stat().st_size if beside.is_file() else None
        if size is None:
            yield Problem(
                f"external data file {data.location} is missing next to {graph.path.name}",
                where=str(graph.path),
                hint="keep both in one directory, under the names they were written with",
            )
        elif size < data.bytes_needed:
            got, expected = f"{size} bytes", f"{data.bytes_needed} bytes"
            yield Problem(
                "external data is cut short", where=str(beside), got=got, expected=expected, hint="copy it again"
            )


def _foreign_operators(graph: OnnxGraph) -> Iterator[Problem]:
    for domain, operator in sorted(graph.operators):
        if domain not in _STANDARD_DOMAINS:
            yield Problem(
                f"{operator} ({domain}) is not a standard ONNX op",
                where=str(graph.path),
                expected="operators of ai.onnx only, which TensorRT's parser knows",
                hint="export to TensorRT from the un-optimised model, or serve this file with ONNX Runtime",
            )


def _foreign_types(graph: OnnxGraph) -> Iterator[Problem]:
    signature = graph.signature
    for tensor in (*signature.inputs, *signature.outputs) if signature else ():
        if tensor.data_type not in ENGINE_TYPES:
            yield Problem(
                f"an engine cannot take or give tensor {tensor.name}",
                where=str(graph.path),
                got=tensor.data_type,
                expected=", ".join(sorted(ENGINE_TYPES)),
            )


def _impossible(request: EngineRequest) -> Iterator[Problem]:
    release, major = request.release, request.tensorrt_major
    if release.tensorrt is None or major < 10:
        able = [known.tag for known in releases() if known.tensorrt and int(known.tensorrt.partition(".")[0]) >= 10]
        yield Problem(
            f"engines cannot be built for Triton {release.tag}",
            got=f"TensorRT {release.tensorrt or 'of an unknown version'}",
            expected=f"a release with a known TensorRT 10 or newer: {able[0]} to {able[-1]}",
            hint="give another --release",
        )
    elif major >= 11 and request.fp16 and "FLOAT16" not in request.graph.weight_types:
        yield Problem(
            f"TensorRT {major} takes the precision from the ONNX file",
            where=str(request.graph.path),
            got=f"--precision fp16 for weights of {', '.join(sorted(request.graph.weight_types)) or 'no type'}",
            hint="export the ONNX file itself with --precision fp16",
        )
    if request.hardware_compatibility == "same-compute-capability" and _older(release, _SAME_CAPABILITY_SINCE):
        able = [known.tag for known in releases() if known.tensorrt and not _older(known, _SAME_CAPABILITY_SINCE)]
        yield Problem(
            f"TensorRT {release.tensorrt} builds no plan for all GPUs of one compute capability",
            where="--engine",
            got=f"compatible=same-compute-capability for Triton {release.tag}",
            expected=f"{able[0]} or newer: TensorRT has it since {'.'.join(map(str, _SAME_CAPABILITY_SINCE))}",
            hint="give another --release, or compatible=ampere+",
        )
    if request.weight_streaming and not request.strongly_typed:
        yield Problem(
            "weight streaming needs a strongly typed network",
            got="--precision fp16",
            hint="leave --precision out: types then come from the ONNX file",
        )


def _older(release: Release, since: tuple[int, int]) -> bool:
    """Whether the release's TensorRT is older; one of which only the major version is known counts as its newest."""
    known = tuple(map(int, (release.tensorrt or "0").split(".")[:2]))
    return known < since[: len(known)]
