"""Rules about the layout of a model directory: versions, labels, model files, batching libraries. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tooling.check.files import exists, is_file
from tooling.check.finding import Evidence, Finding, Place
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, note

_STRATEGY: Final = "TRITON_BATCH_STRATEGY_PATH"
# The rules of onnxruntime, python and vllm tell of a missing file themselves.
_FILE_BACKENDS: Final = ("tensorrt", "pytorch", "openvino", "tensorflow")

NO_VERSION = load(
    "no-version",
    "The version policy finds no version to load.",
    "A version is a directory with a number for a name, such as `1`; an ensemble needs one too, an empty one. git "
    "drops "
    "empty directories: commit a placeholder file.",
    "version_policy { specific { versions: [ 3 ] } }",
    "AsyncLoad (core)",
)
VERSION_MISSING = advice(
    "version-missing",
    "A version that the policy lists is not there.",
    "The model loads with the other versions, and the log has a line about the missing one; clients that name it get "
    "`version … is not found`.",
    "version_policy { specific { versions: [ 1, 2 ] } }",
    "VersionsToLoad (core)",
    evidence=Evidence.RUN,
)
LEADING_ZERO = advice(
    "version-leading-zero",
    "A version directory whose name starts with 0 is ignored.",
    "`01` is no version, `1` is.",
    "--- 01/model.onnx\nx: FP32 [batch, 8] -> y: FP32 [batch, 8]",
    "VersionsToLoad (core)",
    evidence=Evidence.RUN,
)
NUMBER_FIRST = advice(
    "version-name-with-letters",
    "A directory name that only starts with a number counts as that version.",
    "`2abc` is taken for version 2, and the model file is then looked for in the directory `2`.",
    "--- 2abc/model.onnx\nx: FP32 [batch, 8] -> y: FP32 [batch, 8]",
    "VersionsToLoad (core)",
    evidence=Evidence.RUN,
)
POLICY_EMPTY = advice(
    "version-policy-empty",
    "`version_policy { }` loads every version.",
    "Without the field the newest version is loaded; with an empty one all are, each with its own instances.",
    "version_policy { }",
    "VersionsToLoad (core)",
    evidence=Evidence.RUN,
)
LABELS_MISSING = load(
    "labels-missing",
    "A label file is not in the model directory.",
    "`label_filename` is read when the model loads, from the model directory, not from the version's.",
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] label_filename: "labels.txt" }',
    "Model::Init (core)",
)
LABELS_OUTSIDE = load(
    "labels-outside",
    "A label file lies outside of the model directory.",
    "Since 26.02 Triton refuses paths that lead out of the model directory; earlier releases read them.",
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] label_filename: "../labels.txt" }\n--- options\n--release '
    "26.02"
    "\n--- ../labels.txt\nyes",
    "Model::Init (core)",
    evidence=Evidence.READ,
    since="26.02",
)
LABELS_TWICE = load(
    "labels-twice",
    "An output is listed twice with labels.",
    "Each output has one label file.",
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] label_filename: "l.txt" }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] label_filename: "l.txt" }\n--- l.txt\nyes',
    "LabelProvider (core)",
    evidence=Evidence.READ,
)
LIBRARY_MISSING = load(
    "batching-library-missing",
    "The custom batching library is not there.",
    f"`{_STRATEGY}` is a path on the server; without it `batchstrategy.so` is looked for beside the model and the "
    "backend.",
    "max_batch_size: 8\ndynamic_batching { }\n"
    f'parameters {{ key: "{_STRATEGY}" value: {{ string_value: "/nowhere/batch.so" }} }}',
    "TritonModel::SetBatchingStrategy (core)",
)
LIBRARY_WITH_SEQUENCES = load(
    "batching-library-with-sequences",
    "A custom batching library cannot be combined with the sequence batcher.",
    "The message of the server says that the default strategy is used instead; the load fails all the same.",
    f'sequence_batching {{ }}\nparameters {{ key: "{_STRATEGY}" value: {{ string_value: "x.so" }} }}',
    "TritonModel::SetBatchingStrategy (core)",
)
SEVERAL_FILES = advice(
    "several-model-files",
    "A version holds files of several formats, and no backend is written.",
    "Triton takes the first it knows, in the order model.plan, model.onnx, model.xml, model.pt, model.py, and looks "
    "only "
    "into the version that comes first by name.",
    "--- 1/model.py\nclass TritonPythonModel: pass",
    "AutoCompleteBackendFields (core)",
)
WRONG_FILE = load(
    "model-file-of-other-backend",
    "The version directory holds the file of another backend.",
    "The platform decides which file is read; a file of another format is not converted.",
    'platform: "tensorrt_plan"',
    "backend's own file name",
    evidence=Evidence.READ,
)
MISSING_FILE = load(
    "model-file-missing",
    "A version has no model file.",
    "The file is default_model_filename in the version directory; each backend has a name that it takes by itself.",
    'platform: "tensorrt_plan"\n--- 1/model.onnx\nabsent',
    "backend's own file name",
    evidence=Evidence.READ,
)
NOT_REGULAR = advice(
    "model-file-not-regular",
    "A model file is a pipe or a device.",
    "Reading it may never end; Triton has no deadline for it.",
    "max_batch_size: 8\n--- 1/model.onnx\npipe",
    "POSIX",
    evidence=Evidence.DOCUMENTED,
)
UNUSED_VERSION = note(
    "unused-version",
    "A version is there that the policy does not load.",
    "By default only the highest version is loaded.",
    "version_policy { specific { versions: [ 1 ] } }\n--- 2/model.onnx\nx: FP32 [batch, 8] -> y: FP32 [batch, 8]",
    "VersionsToLoad (core)",
    evidence=Evidence.RUN,
)
RULES = (
    NO_VERSION,
    VERSION_MISSING,
    LEADING_ZERO,
    NUMBER_FIRST,
    POLICY_EMPTY,
    LABELS_MISSING,
    LABELS_OUTSIDE,
    LABELS_TWICE,
    NOT_REGULAR,
    LIBRARY_MISSING,
    LIBRARY_WITH_SEQUENCES,
    SEVERAL_FILES,
    WRONG_FILE,
    MISSING_FILE,
    UNUSED_VERSION,
)


def versions(model: Model) -> Iterator[Finding]:
    """The first thing of a load: which versions there are."""
    policy, name = model.config.version_policy, model.config.name
    if not model.served:
        yield model.find(
            NO_VERSION,
            _no_version_text(model),
            "version_policy",
            says=f"at least one version must be available under the version policy of model '{name}'",
            hint=_no_version_hint(model),
        )
        return
    if policy.HasField("specific"):
        there = {version.number for version in model.versions}
        for index, number in enumerate(policy.specific.versions):
            if number not in there:
                yield model.find(
                    VERSION_MISSING,
                    f"version {number} is listed in version_policy but {model.name}/{number} does not exist",
                    "version_policy",
                    "specific",
                    "versions",
                    index,
                    hint=f"add {model.name}/{number}, or remove it from the list",
                )
    elif policy.WhichOneof("policy_choice") is None:
        yield model.find(
            POLICY_EMPTY,
            f"version_policy {{ }} loads every version: {', '.join(str(one.number) for one in model.versions[:9])}",
            "version_policy",
            hint="leave it out for the newest version, or write `all { }`",
            fix=("version_policy.all={}",),
        )
    served = {version.number for version in model.served}
    unused = [str(version.number) for version in model.versions if version.number not in served]
    if unused:
        yield model.find(UNUSED_VERSION, f"not loaded by the version policy: {', '.join(unused)}", "version_policy")


def _no_version_text(model: Model) -> str:
    if not model.versions:
        return f"{model.name} has no version directory"
    there = ", ".join(version.directory for version in model.versions)
    return f"the version policy loads none of the versions of {model.name}: {there}"


def _no_version_hint(model: Model) -> str:
    if model.versions:
        return "list a version that exists, or leave version_policy out"
    if model.name.startswith("."):
        return "move it out: Triton takes every directory of a repository for a model, hidden ones too"
    others = [name for name, is_dir in model.entries.items() if is_dir and any(map(str.isdigit, name))]
    return f"create {model.name}/1/" + (f"; `{others[0]}` is no version: its name must be a number" if others else "")


def directories(model: Model) -> Iterator[Finding]:
    """Directories that look like versions and are not."""
    for name, is_directory in model.entries.items():
        place = Place(f"{model.shown}/{name}")
        if is_directory and len(name) > 1 and name.startswith("0") and name.isdecimal():
            yield model.find(
                LEADING_ZERO,
                f"{model.name}/{name} is ignored: its name starts with 0",
                place=place,
                hint=f"rename it to {int(name)}",
            )
    for version in model.versions:
        if not version.plain:
            yield model.find(
                NUMBER_FIRST,
                f"{model.name}/{version.directory} counts as version {version.number}, whose file is looked for in "
                f"{model.name}/{version.number}",
                place=Place(f"{model.shown}/{version.directory}"),
                hint="rename it to the number alone, or to a name that starts with a letter",
            )


def labels(model: Model) -> Iterator[Finding]:
    """Label files, in the order of the outputs."""
    seen: set[str] = set()
    for index, output in enumerate(model.completed.output):
        if not output.label_filename:
            continue
        path = model.directory / output.label_filename
        where = ("output", index, "label_filename")
        if LABELS_OUTSIDE.holds_for(model.target.release.tag) and _leads_out(path, model.directory):
            yield model.find(
                LABELS_OUTSIDE,
                f"{output.label_filename} of output {output.name} is outside of {model.name}/",
                *where,
                says=f"label file path '{path}' for output '{output.name}' in model '{model.config.name}' is outside "
                "model directory",
                hint="put the file into the model directory",
            )
        elif not is_file(path):
            yield model.find(
                LABELS_MISSING,
                f"{output.label_filename} not found in {model.name}/ (labels of output {output.name})",
                *where,
                says=f"failed to open text file for read {path}: No such file or directory",
                hint="add the file next to config.pbtxt: one label a line",
            )
        elif output.name in seen:
            yield model.find(
                LABELS_TWICE,
                f"output {output.name} has two label files",
                *where,
                says=f"multiple label files for '{output.name}'",
            )
        seen.add(output.name)


def _leads_out(path: Path, directory: Path) -> bool:
    return not path.resolve().is_relative_to(directory.resolve())


def batching_library(model: Model) -> Iterator[Finding]:
    """The custom batching library."""
    config = model.completed
    if _STRATEGY not in config.parameters:
        return
    path = config.parameters[_STRATEGY].string_value
    where = ("parameters", _STRATEGY)
    if config.HasField("sequence_batching"):
        yield model.find(
            LIBRARY_WITH_SEQUENCES,
            f"{_STRATEGY} cannot be combined with sequence_batching",
            *where,
            says=f"{_STRATEGY} cannot be specified with sequence batcher, using default batching strategy",
            hint="take the parameter out",
        )
    elif not is_file(Path(path)):
        yield model.find(
            LIBRARY_MISSING,
            f"the batching library {path} is not on this machine",
            *where,
            says=f"Batching library path not found: {path}",
        )


def model_files(model: Model) -> Iterator[Finding]:
    """Files of other formats than the one that is served."""
    config = model.config
    expected = config.default_model_filename
    if not config.backend or not model.served:
        return
    for version in model.served:
        path = model.version_dir(version) / expected
        if expected and exists(path) and not (is_file(path) or path.is_dir()):
            yield model.find(
                NOT_REGULAR, f"{model.name}/{version.number}/{expected} is a pipe or a device", place=Place(str(path))
            )
    folder = model.version_dir(model.served[-1])
    known = [
        file for file in ("model.plan", "model.onnx", "model.xml", "model.pt", "model.py") if exists(folder / file)
    ]
    if config.backend in _FILE_BACKENDS and not config.cc_model_filenames and not exists(folder / expected):
        yield _no_file(model, folder, expected, known)
    elif len(known) > 1 and not model.written.backend and not model.written.platform:
        others = ", ".join(file for file in known if file != expected)
        yield model.find(
            SEVERAL_FILES,
            f"{model.name}/{model.served[-1].number} holds {', '.join(known)}: backend {config.backend} is chosen, "
            f"{others} is ignored",
            hint="write `backend`, or remove the other file",
        )


def _no_file(model: Model, folder: Path, expected: str, known: list[str]) -> Finding:
    where = f"{model.name}/{folder.name}"
    field, says = "platform" if model.written.platform else "backend", f"unable to find '{folder / expected}' for model"
    if not known:
        return model.find(
            MISSING_FILE, f"{where}/{expected} not found", field, says=says, hint="put the model file there"
        )
    return model.find(
        WRONG_FILE,
        f"platform {model.config.platform} expects {expected}: found {', '.join(known)} in {where}",
        field,
        says=says,
        hint=_hint_for(known[0]),
    )


def _hint_for(file: str) -> str:
    by_file = {"model.onnx": "onnxruntime_onnx", "model.plan": "tensorrt_plan", "model.pt": "pytorch_libtorch"}
    return f'platform: "{by_file[file]}"' if file in by_file else f"write the backend of {file}"
