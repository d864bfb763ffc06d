"""Rules about an ONNX file as ONNX Runtime loads it: whole, of a version it knows, with its data. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tooling.check.files import is_file
from tooling.check.finding import Evidence, Finding, Place
from tooling.check.model import Model, OnnxFile, onnx_path
from tooling.check.rules.kinds import advice, load
from tooling.signature.onnx_graph import OnnxGraph

_SOURCE: Final = "ONNX Runtime, loading a model"
_EXAMPLE: Final = "x: FP32 [batch, 8] -> y: FP32 [batch, 8]"
_OWN_DOMAINS: Final = (
    *("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc"),
    *("com.microsoft.experimental", "com.ms.internal.nhwc", "org.pytorch.aten"),
)

MISSING = load(
    "onnx-file-missing",
    "A version has no ONNX file of the expected name.",
    "The name is model.onnx, or what default_model_filename says; with external data it may be a directory of that "
    "name "
    "with model.onnx inside.",
    'backend: "onnxruntime"\ndefault_model_filename: "bert.onnx"',
    "onnxruntime backend",
)
BROKEN = load(
    "onnx-file-broken",
    "The ONNX file cannot be used.",
    "It is cut off, no ONNX at all, a Git LFS pointer, or has tensors that the backend does not serve.",
    "max_batch_size: 8\n--- 1/model.onnx\nnot an ONNX file",
    _SOURCE,
)
IR_VERSION = load(
    "onnx-ir-version",
    "The IR version is newer than the release's ONNX Runtime knows.",
    "The IR version belongs to the program that wrote the file, not to the opset: onnx.helper stamps its own newest. "
    "Set "
    "`ir_version` before saving.",
    f"max_batch_size: 8\n--- 1/model.onnx\n{_EXAMPLE} ir 11",
    _SOURCE,
)
OPSET = load(
    "onnx-opset",
    "The opset is newer than the release's ONNX Runtime supports.",
    "A release runs all opsets up to the newest of its day and refuses others, even where every operator is known.",
    f"max_batch_size: 8\n--- 1/model.onnx\n{_EXAMPLE} opset 23",
    _SOURCE,
)
OUTSIDE_MISSING = load(
    "onnx-data-missing",
    "A file with the model's weights is missing.",
    "Large models keep their weights in a file beside model.onnx, under the name that model.onnx says.",
    f"max_batch_size: 8\n--- 1/model.onnx\n{_EXAMPLE} external missing",
    _SOURCE,
)
OUTSIDE_SHORT = load(
    "onnx-data-short",
    "A file with the model's weights is too short.",
    "It was cut off while it was copied.",
    f"max_batch_size: 8\n--- 1/model.onnx\n{_EXAMPLE} external short",
    _SOURCE,
)
OUTSIDE_ESCAPES = advice(
    "onnx-data-outside",
    "The weights lie outside of the model's directory.",
    "A model directory that is copied alone then lacks its weights; newer releases of ONNX Runtime refuse such a path.",
    f"max_batch_size: 8\n--- 1/model.onnx\n{_EXAMPLE} external ../weights.bin\n--- weights.bin\n{'0' * 32}",
    _SOURCE,
)
CONTRADICTION = load(
    "onnx-type-contradiction",
    "An operator's output is declared with another type than it has.",
    "A conversion to half precision often leaves a Cast behind. The plain ONNX checker accepts the file; ONNX "
    "Runtime does "
    "not.",
    "max_batch_size: 8\n--- 1/model.onnx\nx: FP16 [batch, 8] -> y: FP16 [batch, 8] bad cast",
    _SOURCE,
)
CUSTOM_OPERATOR = load(
    "onnx-custom-operator",
    "The file uses operators that ONNX Runtime does not have.",
    "Operators of other domains come from a library, `model_operations { op_library_filename: … }`, or are functions "
    "of "
    "the file itself.",
    f"max_batch_size: 8\n--- 1/model.onnx\n{_EXAMPLE} custom",
    _SOURCE,
)
NOT_STANDARD = load(
    "onnx-operator-not-standard",
    "TensorRT does not know the operators of other domains.",
    "ONNX Runtime's optimizer writes fused operators of com.microsoft into a file; TensorRT's parser knows those of "
    "ai.onnx "
    "only. Build engines from the file as it was exported.",
    f"--- 1/model.onnx\nabsent\n--- model.onnx\n{_EXAMPLE} contrib\n--- checked\nmodel.onnx\n--- options\n--for "
    "tensorrt",
    "NVIDIA/TensorRT#1515",
    evidence=Evidence.REPORTED,
)
RULES = (
    *(MISSING, BROKEN, IR_VERSION, OPSET, OUTSIDE_MISSING, OUTSIDE_SHORT, OUTSIDE_ESCAPES, CONTRADICTION),
    *(CUSTOM_OPERATOR, NOT_STANDARD),
)


def onnx_files(model: Model) -> Iterator[Finding]:
    """The file of every version that is served."""
    if model.config.backend != "onnxruntime":
        return
    for version in model.served:
        path = onnx_path(model, version)
        if not is_file(path):
            yield _missing(model, path)
    for file in model.onnx_files:
        yield from onnx_file(model, file)


def _missing(model: Model, path: Path) -> Finding:
    folder = path.parent
    inside = folder.is_dir() and path.name == "model.onnx" and folder.name == model.config.default_model_filename
    version = folder.parent if inside else folder
    others = sorted(entry.name for entry in version.glob("*.onnx") if entry != path) if version.is_dir() else []
    shown = f"{model.name}/{path.relative_to(model.directory)}" if path.is_relative_to(model.directory) else str(path)
    return model.find(
        MISSING,
        f"{shown} not found" + (f"; found {', '.join(others)}" if others else ""),
        "default_model_filename",
        says=f"unable to find '{path}' for model instance '{model.instances[0].name}_0'"
        if inside and model.instances
        else f"failed to stat file {path}",
        hint=f'rename it, or write default_model_filename: "{others[0]}"' if others else "put the model file there",
    )


def onnx_file(model: Model, file: OnnxFile) -> Iterator[Finding]:
    """One file: whether it is whole, and whether the release's ONNX Runtime takes it."""
    graph, place = file.graph, Place(model.shown_path(file.path))
    problems = file.problems if graph is None else graph.problems
    for problem in problems:
        facts = [f"got {problem.got}"] if problem.got else []
        facts += [f"expected {problem.expected}"] if problem.expected else []
        text = f"{problem.what} ({'; '.join(facts)})" if facts else problem.what
        yield model.find(BROKEN, text, place=place, hint=problem.hint)
    if graph is None:
        return
    if model.target.engine:
        for domain, name in sorted(pair for pair in graph.operators if pair[0]):
            yield model.find(
                NOT_STANDARD,
                f"{name} ({domain}) is not a standard ONNX op",
                place=place,
                hint="export to TensorRT from the un-optimised model",
            )
        return
    yield from _limits(model, graph, place)
    yield from _outside(model, graph, place)
    for wrong in graph.contradictions:
        yield model.find(
            CONTRADICTION,
            f"{wrong.operator} -> {wrong.output}: type {wrong.is_type} does not match {wrong.declared}; the model "
            "file is "
            "invalid",
            place=place,
            says=f"Type Error: Type (tensor({wrong.declared})) of output arg ({wrong.output}) of node ({wrong.node}) "
            "does not match "
            f"expected type (tensor({wrong.is_type})).",
            hint="convert again with this operator excluded, or mend its target type",
        )
    libraries = model.config.model_operations.op_library_filename
    foreign = sorted((domain, name) for domain, name in graph.operators if domain not in _OWN_DOMAINS)
    if foreign and not libraries:
        yield model.find(
            CUSTOM_OPERATOR,
            f"no library for {', '.join(f'{name} ({domain})' for domain, name in foreign[:5])}",
            place=place,
            says=f"{foreign[0][0]}:{foreign[0][1]}(-1) is not a registered function/op" if len(foreign) == 1 else None,
            hint='model_operations { op_library_filename: "/path/to/library.so" }',
        )


def _limits(model: Model, graph: OnnxGraph, place: Place) -> Iterator[Finding]:
    release = model.target.release
    runtime = f"image {release.tag} (ONNX Runtime {release.onnxruntime})"
    if release.max_ir is not None and graph.ir_version > release.max_ir:
        yield model.find(
            IR_VERSION,
            f"ONNX IR version {graph.ir_version}; {runtime} supports up to {release.max_ir}",
            place=place,
            says=f"Unsupported model IR version: {graph.ir_version}, max supported IR version: {release.max_ir}",
            hint=f"set ir_version {release.max_ir} and save again, or use a newer image",
        )
    opset = graph.opsets.get("", 0)
    if release.max_opset is not None and opset > release.max_opset:
        yield model.find(
            OPSET,
            f"opset {opset}; {runtime} supports up to {release.max_opset}",
            place=place,
            says=f"Current official support for domain ai.onnx is till opset {release.max_opset}.",
            hint=f"export with opset {release.max_opset} or lower, or use a newer image",
        )


def _outside(model: Model, graph: OnnxGraph, place: Place) -> Iterator[Finding]:
    folder = graph.path.parent
    for data in graph.outside:
        path = folder / data.location
        name = graph.path.name
        if is_file(path) and (Path(data.location).is_absolute() or ".." in Path(data.location).parts):
            yield model.find(
                OUTSIDE_ESCAPES,
                f"{name} refers to {data.location}, outside of its directory",
                place=place,
                hint="save the model again with its data beside it",
            )
        if not is_file(path):
            others = sorted(entry.name for entry in folder.iterdir() if ".data" in entry.name or entry.suffix == ".bin")
            yield model.find(
                OUTSIDE_MISSING,
                f"{name} refers to {data.location} which is missing from {model.name}/{folder.name}/",
                place=place,
                says=f"[{path}]",
                hint=f"found {', '.join(others)}: give it the name that {name} says"
                if others
                else f"copy it next to {name}",
            )
        elif path.stat().st_size < data.bytes_needed:
            yield model.find(
                OUTSIDE_SHORT,
                f"{data.location} has {path.stat().st_size} bytes, {name} needs {data.bytes_needed}",
                place=place,
                hint="copy it again",
            )
