"""Builds an engine where it can be built, and leaves its sidecar beside it. Layer: export.engine, top."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, Literal

from export.engine import bindings
from export.engine.request import EngineRequest, check_request, overflow_warning
from export.engine.trtexec import container_command, local_command, written_shapes
from tooling.console import Console
from tooling.errors import ExternalError, MissingError, UsageError
from tooling.repository import alone_in, write_atomic, writing
from tooling.signature.plan_manifest import PlanManifest, PlanRange, PlanTensor
from tooling.signature.spec import Profile, TensorSpec
from tooling.signature.tensorrt_plan import manifest_path, plan_version
from tooling.staging import staging

Builder = Literal["container", "trtexec", "python"]
_LOG_LINES: Final = 12
_CAPABILITY: Final = re.compile(r"\d+\.\d+")
_AMPERE: Final = 8.0


@dataclass(frozen=True, slots=True)
class EngineResult:
    """A plan that stands in the repository, and what its sidecar says."""

    plan: Path
    manifest: PlanManifest
    builder: Builder


def command_of(request: EngineRequest, builder: Builder | None) -> tuple[str, ...]:
    """The command that would build the engine; the container's unless a local trtexec is asked for."""
    check_request(request)
    if builder == "trtexec":
        return local_command(request)
    return container_command(request)


def shell_line(request: EngineRequest, builder: Builder | None = None) -> str:
    """The command as a shell takes it; docker mounts only directories that are there."""
    folders = shlex.join(map(str, _folders(request)))
    return f"mkdir -p {folders} && {shlex.join(command_of(request, builder))}"


def without_plan(request: EngineRequest) -> str:
    """The command that lets ONNX Runtime build such an engine itself, at load, on whatever GPU it finds: one profile
    for all shapes of the request's."""
    signature, onnx, given = request.graph.signature, request.graph.path, []
    assert signature is not None  # `check_source` passed
    dynamic = [tensor.name for tensor in signature.inputs if -1 in tensor.dims]
    if request.profiles and dynamic:
        low, high = request.profiles[0], request.profiles[-1]
        for key, shapes in (("min", low.smallest), ("opt", high.best), ("max", high.largest)):
            given.append(f"trt_profile_{key}_shapes={written_shapes(shapes, dynamic)}")
    given += [] if request.strongly_typed else ["precision_mode=FP16"]
    given += ["trt_engine_cache_enable=1", f"trt_engine_cache_prefix={request.plan.parent.parent.name}"]
    in_model = onnx.parent.name.isdecimal()
    model = [str(onnx.parent.parent)] if in_model else [str(onnx), "--stdout"]
    batches = [profile.batches[1] for profile in request.profiles if signature.can_batch]
    largest = ["--max-batch-size", str(max(batches))] if batches else []
    return shlex.join(
        [
            *("tritune", "gen-config", *model, "--backend", "onnxruntime", *largest),
            *("--accelerator", f"tensorrt:{','.join(given)}"),
        ]
    )


def _folders(request: EngineRequest) -> list[Path]:
    """Directories that the build writes to."""
    cache = request.timing_cache
    return [request.plan.parent, *([cache.absolute().parent] if cache is not None else [])]


def build_engine(request: EngineRequest, builder: Builder | None, source_sha256: str, console: Console) -> EngineResult:
    """Build `request.plan` and `model.plan.json` beside it; both or neither.

    Without a `builder` it is the container where docker is, else trtexec on the PATH, else the Python package. Raises
    UsageError for what the target release cannot do, MissingError without a builder or a GPU, naming the command to run
    elsewhere, and ExternalError when the build fails.
    """
    check_request(request)
    if warning := overflow_warning(request):
        console.warning(warning)
    chosen = _builder(request, builder)
    capability = _compute_capability(request)
    started = time.monotonic()
    if request.timing_cache is not None:
        with writing(request.timing_cache):
            request.timing_cache.absolute().parent.mkdir(parents=True, exist_ok=True)
    with staging(request.plan.parent) as staged:
        inner = replace(request, plan=staged / request.plan.name)
        console.info(f"building with {chosen}: {shlex.join(command_of(inner, chosen))}")
        _BUILD[chosen](inner)
        manifest = _manifest(inner, capability, source_sha256, round(time.monotonic() - started, 1))
        write_atomic(manifest_path(inner.plan), manifest.model_dump_json(indent=2) + "\n")
        _place(inner.plan, request.plan)
    expected = request.release.tensorrt or ""
    if not f"{manifest.tensorrt}.".startswith(f"{expected}."):
        console.warning(
            f"{request.plan} was built by TensorRT {manifest.tensorrt}, and Triton {request.release.tag} has "
            f"{expected}: it may refuse the plan; build in its container"
        )
    return EngineResult(request.plan, manifest, chosen)


def _place(built: Path, plan: Path) -> None:
    """Without a sidecar for a moment: a new plan must never stand beside the old one's, nor beside that of another
    build at the same time."""
    with writing(plan), alone_in(plan.parent):
        manifest_path(plan).unlink(missing_ok=True)
        built.replace(plan)
        manifest_path(built).replace(manifest_path(plan))


def _manifest(request: EngineRequest, capability: str, source_sha256: str, build_s: float) -> PlanManifest:
    """Inputs and outputs keep the types of the ONNX file, whatever the precision inside."""
    signature = request.graph.signature
    assert signature is not None  # `check_source` passed
    return PlanManifest(
        tensorrt=plan_version(request.plan),
        compute_capability=capability,
        inputs=tuple(map(_tensor, signature.inputs)),
        outputs=tuple(map(_tensor, signature.outputs)),
        profiles=tuple(map(_ranges, request.profiles)),
        precision="onnx" if request.strongly_typed else "fp16",
        version_compatible=request.version_compatible,
        weight_streaming=request.weight_streaming,
        hardware_compatibility=request.hardware_compatibility,
        source_sha256=source_sha256,
        built=datetime.now(timezone.utc).replace(microsecond=0),
        build_s=build_s,
    )


def _tensor(spec: TensorSpec) -> PlanTensor:
    return PlanTensor(name=spec.name, data_type=spec.data_type, shape=spec.dims)


def _ranges(profile: Profile) -> dict[str, PlanRange]:
    return {
        name: PlanRange(min=smallest, opt=profile.best[name], max=profile.largest[name])
        for name, smallest in profile.smallest.items()
    }


def _builder(request: EngineRequest, wanted: Builder | None) -> Builder:
    there: dict[Builder, bool] = {
        "container": shutil.which("docker") is not None,
        "trtexec": shutil.which("trtexec") is not None,
        "python": bindings.available(),
    }
    chosen = wanted or next((name for name, found in there.items() if found), None)
    if chosen is None or not there[chosen]:
        raise MissingError(
            "no way to build an engine here" if chosen is None else f"no {chosen} builder here",
            expected="docker, trtexec on the PATH, or the Python package tensorrt",
            hint=_elsewhere(request),
        )
    return chosen


def _compute_capability(request: EngineRequest) -> str:
    """Of the GPU that the engine is built on and bound to, such as `9.0`; asked before the build, which takes long."""
    query = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "-i", str(request.gpu))
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        answer = done.stdout.strip() or done.stderr.strip()
    except (OSError, subprocess.SubprocessError) as error:
        answer = str(error)
    if not _CAPABILITY.fullmatch(answer):
        raise MissingError(
            f"no GPU {request.gpu} to build the engine on",
            got=answer.partition("\n")[0] or "no answer of nvidia-smi",
            expected="an NVIDIA GPU of the kind that will serve it, and nvidia-smi",
            hint=_elsewhere(request),
        )
    if request.hardware_compatibility == "ampere+" and float(answer) < _AMPERE:
        raise UsageError(
            f"GPU {request.gpu} builds no plan for Ampere and newer",
            where="--engine",
            got=f"compatible=ampere+ on compute capability {answer}",
            expected=f"{_AMPERE} or more",
            hint="build it on such a GPU, or leave compatible=ampere+ out",
        )
    return answer


def _elsewhere(request: EngineRequest) -> str:
    return (
        f"run on the machine with the GPU: {shell_line(request)}; or serve the ONNX file and let ONNX Runtime build an "
        f"engine at load: {without_plan(request)}"
    )


def _run(program: str, command: Sequence[str], where: Path) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-_LOG_LINES:])
        raise ExternalError(
            f"{program} built no engine (exit {done.returncode})",
            where=where,
            got=tail or "no output",
            hint=f"run it yourself: {shlex.join(command)}",
        )


def _in_container(request: EngineRequest) -> None:
    _run("docker", container_command(request), request.graph.path)


def _with_trtexec(request: EngineRequest) -> None:
    _run("trtexec", local_command(request), request.graph.path)


_BUILD: Final[Mapping[Builder, Callable[[EngineRequest], None]]] = {
    "container": _in_container,
    "trtexec": _with_trtexec,
    "python": bindings.build,
}
