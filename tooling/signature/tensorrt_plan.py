"""The signature of a TensorRT plan: its header says the version, its sidecar the rest. Layer: signature."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tooling.errors import UsageError
from tooling.signature.declared import Declared, need_declared
from tooling.signature.spec import ModelSignature, Profile

_TAG: Final = b"ftrt"
_VERSION_AT: Final = 24  # four bytes, as `trtexec --getPlanVersionOnly` reads them (serialization version 0)
_HEADER_SIZE: Final = 28


def read_plan(path: Path, declared: Declared) -> ModelSignature:
    """Tensors and profiles from `model.plan.json` beside the plan, else the declared tensors.

    Raises UsageError for a file that is no plan, a sidecar that does not belong to it, or no word on the tensors.
    """
    version = plan_version(path)
    sidecar = manifest_path(path)
    if not sidecar.exists():
        need_declared(
            path, declared, f"a plan (TensorRT {version}) does not say what it takes, and has no {sidecar.name}"
        )
        return ModelSignature(path, "tensorrt", declared.inputs, declared.outputs, built_with=version)
    if declared:
        raise UsageError(
            "the sidecar says what the plan takes", where=sidecar, hint="leave --input and --output-tensor out"
        )
    from tooling.signature.plan_manifest import read_manifest

    manifest = read_manifest(sidecar)
    if not (version + ".").startswith(manifest.tensorrt + "."):
        raise UsageError(
            "the sidecar belongs to another plan",
            where=sidecar,
            got=f"TensorRT {manifest.tensorrt}",
            expected=f"TensorRT {version}, which built {path.name}",
            hint="build plan and sidecar together",
        )
    profiles = manifest.spec_profiles()
    return ModelSignature(
        path,
        "tensorrt",
        tuple(tensor.spec() for tensor in manifest.inputs),
        tuple(tensor.spec() for tensor in manifest.outputs),
        max_batch_size=largest_batch(profiles) if profiles else None,
        profiles=profiles,
        built_with=version,
        version_compatible=manifest.version_compatible,
    )


def manifest_path(plan: Path) -> Path:
    """Where the sidecar of a plan stands: `model.plan.json` beside `model.plan`."""
    return plan.with_name(f"{plan.name}.json")


def largest_batch(profiles: tuple[Profile, ...]) -> int:
    """The largest batch that Triton may send at every length that profiles for a single request take; 0 where there
    are none.

    Triton sends batches of every size from 1, so a profile that starts at 8 fails on the first small one.
    """
    lone = [profile for profile in profiles if profile.batches[0] == 1]
    for most in sorted({profile.batches[1] for profile in lone}, reverse=True):
        takers = [profile for profile in lone if profile.batches[1] >= most]
        if all(any(taker.spans(profile) for taker in takers) for profile in lone):
            return most
    return 0


def plan_runs(built: str, served: str, *, compatible: bool) -> bool:
    """Whether TensorRT `served` runs a plan of `built`; a version-compatible one also where it is the newer."""
    pairs = zip(map(int, built.split(".")), map(int, served.split(".")), strict=False)
    older = next((ours < theirs for ours, theirs in pairs if ours != theirs), None)
    return older is None or (older and compatible)


def plan_version(path: Path) -> str:
    """The TensorRT version that built a plan, such as `10.5.0.18`. Raises UsageError for a file that is no plan."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_SIZE)
    except OSError as error:
        raise UsageError("cannot be read", where=path, got=error.strerror, expected="a TensorRT plan") from error
    if header[:4] == _TAG and len(header) < _HEADER_SIZE:
        hint = "copy the plan again: it was cut off"
        got, expected = f"{len(header)} bytes", f"at least {_HEADER_SIZE}"
        raise UsageError("not a whole TensorRT plan", where=path, got=got, expected=expected, hint=hint)
    if header[:4] != _TAG:
        hint = "build the plan again, and copy it in binary mode"
        if header.startswith(b"version https://git-"):
            hint = "fetch the plan: `git lfs pull`"
        raise UsageError(
            "not a TensorRT plan",
            where=path,
            got=f"bytes {header[:4]!r}" if header else "an empty file",
            expected=f"a file that starts with {_TAG!r}",
            hint=hint,
        )
    if int.from_bytes(header[4:8], "little") != 0:
        raise UsageError(
            "the plan has a header of an unknown form",
            where=path,
            got=f"form {header[4]}",
            expected="form 0",
            hint="ask `trtexec --getPlanVersionOnly` which TensorRT built it, and build it again with one of 10 or 11",
        )
    return ".".join(str(byte) for byte in header[_VERSION_AT:_HEADER_SIZE])
