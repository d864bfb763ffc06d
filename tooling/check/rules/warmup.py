"""Rules about warm-up samples, which run before a model is ready. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

from tooling.check.files import is_file
from tooling.check.finding import Evidence, Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load
from tooling.check.sizes import element_bytes, protocol_name, type_name

_SOURCE: Final = "GenerateWarmupData (core)"
_ID: Final = "[request id: <id_unknown>] "
_TENSORS: Final = (
    'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
)


def _sample(value: str, batch: int = 1, key: str = "x") -> str:
    return f'{_TENSORS}model_warmup {{ name: "w" batch_size: {batch} inputs {{ key: "{key}" value {{ {value} }} }} }}'


FREE_AXIS = load(
    "warmup-free-axis",
    "A warm-up input has an axis of any length.",
    "The sample is real data; every dim must be a number.",
    _sample("data_type: TYPE_FP32 dims: [ -1 ] zero_data: true"),
    _SOURCE,
)
NO_DATA = load(
    "warmup-without-data",
    "A warm-up input does not say what it holds.",
    "One of zero_data, random_data and input_data_file must be set.",
    _sample("data_type: TYPE_FP32 dims: [ 8 ]"),
    _SOURCE,
)
FILE = load(
    "warmup-file-missing",
    "The file of a warm-up input is not in `warmup/`.",
    "input_data_file is read from that directory of the model.",
    _sample('data_type: TYPE_FP32 dims: [ 8 ] input_data_file: "x.bin"'),
    _SOURCE,
)
FILE_SHORT = load(
    "warmup-file-short",
    "The file of a warm-up input is too short.",
    "It holds the raw values of one request: product of dims times the size of the type.",
    _sample('data_type: TYPE_FP32 dims: [ 8 ] input_data_file: "x.bin"') + "\n--- warmup/x.bin\nxx",
    _SOURCE,
)
MISSING = load(
    "warmup-input-missing",
    "A warm-up sample leaves out an input.",
    "It is sent through the same checks as a request.",
    'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'input { name: "z" data_type: TYPE_FP32 dims: [ 8 ] }\noutput { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 8 ] zero_data: '
    "true } } }"
    "\n--- 1/model.onnx\nx: FP32 [batch, 8], z: FP32 [batch, 8] -> y: FP32 [batch, 8]",
    "InferenceRequest::Normalize (core)",
)
TYPE = load(
    "warmup-input-type",
    "A warm-up input has another type than the model's.",
    "Nothing is converted.",
    _sample("data_type: TYPE_INT32 dims: [ 8 ] zero_data: true"),
    "InferenceRequest::Normalize (core)",
)
SHAPE = load(
    "warmup-input-shape",
    "A warm-up input has another shape than the model's.",
    "dims are those of one request, without the batch axis; batch_size gives the batch.",
    _sample("data_type: TYPE_FP32 dims: [ 4 ] zero_data: true"),
    "InferenceRequest::Normalize (core)",
)
BATCH = load(
    "warmup-batch-above-max",
    "A warm-up sample is larger than max_batch_size.",
    "The sample reaches the backend, which refuses it; on 2.51 a warm-up that fails can end the whole server with "
    "signal 11.",
    _sample("data_type: TYPE_FP32 dims: [ 8 ] zero_data: true", 16),
    "TritonModelInstance::WarmUp (core)",
)
RANDOM_IDS = load(
    "warmup-random-ids",
    "random_data feeds a lookup with ids outside of its table.",
    "Random integers are any number of 64 bits. ONNX Runtime answers `indices element out of data bounds`, and on "
    "2.51 a "
    "warm-up that fails can end the whole server with signal 11.",
    'max_batch_size: 8\nmodel_warmup { name: "w" batch_size: 1 inputs { key: "ids" value { data_type: TYPE_INT64 '
    "dims: [ 8 ] "
    "random_data: true } } }\n--- 1/model.onnx\nids: INT64 [batch, n] -> rows: FP32 [batch, n, 4] lookup",
    "TritonModelInstance::WarmUp (core)",
)
SKIPPED = advice(
    "warmup-skipped",
    "A warm-up sample with batch_size 0 is skipped.",
    "batch_size is 0 when it is left out; write 1 also for a model without batching.",
    _sample("data_type: TYPE_FP32 dims: [ 8 ] zero_data: true", 0),
    _SOURCE,
    evidence=Evidence.RUN,
)
UNKNOWN_FATAL = load(
    "warmup-input-not-in-model",
    "A warm-up input is none of the ONNX model's.",
    "The core passes it on, because it may be meant for a control tensor; ONNX Runtime refuses it when the sample "
    "runs, and "
    "on 2.51 a warm-up that fails can end the whole server with signal 11.",
    _sample(
        'data_type: TYPE_FP32 dims: [ 8 ] zero_data: true } } inputs { key: "xx" value { data_type: TYPE_FP32 '
        "dims: [ 8 ] zero_data: true"
    ),
    "TritonModelInstance::WarmUp (core)",
)
UNKNOWN = advice(
    "warmup-input-unknown",
    "A warm-up input is none of the model's.",
    "Triton passes it on, because it may be meant for a control tensor.",
    'backend: "python"\n'
    + _sample(
        'data_type: TYPE_FP32 dims: [ 8 ] zero_data: true } } inputs { key: "xx" value { data_type: TYPE_FP32 '
        "dims: [ 8 ] zero_data: true"
    )
    + "\n--- 1/model.onnx\nabsent\n--- 1/model.py\nclass TritonPythonModel:\n    def execute(self, requests):\n      "
    "  return []",
    "InferenceRequest::Normalize (core)",
    evidence=Evidence.RUN,
)
RULES = (
    *(FREE_AXIS, NO_DATA, FILE, FILE_SHORT, MISSING, TYPE, SHAPE, BATCH, RANDOM_IDS, SKIPPED, UNKNOWN_FATAL, UNKNOWN),
)


def warmup(model: Model) -> Iterator[Finding]:
    """Every sample, in order: first all data is made, then the requests run."""
    samples = [(index, sample) for index, sample in enumerate(model.completed.model_warmup)]
    for index, sample in samples:
        if sample.batch_size == 0:
            yield model.find(
                SKIPPED,
                f"warmup sample {sample.name} has batch_size 0 and is skipped",
                "model_warmup",
                index,
                hint="batch_size: 1",
            )
            continue
        for name, value in sorted(sample.inputs.items()):
            yield from _data(model, ("model_warmup", index, "inputs", name), name, value)
    for index, sample in samples:
        if sample.batch_size:
            yield from _request(model, index, sample)
            yield from _run(model, index, sample)


def _data(model: Model, where: tuple[str | int, ...], name: str, value: Any) -> Iterator[Finding]:
    if -1 in value.dims:
        yield model.find(
            FREE_AXIS,
            f"warmup input {name} has dims {list(value.dims)}: every dim must be a number",
            *where,
            "dims",
            says=f"warmup setting expects all variable-size dimensions are specified for input '{name}'",
        )
        return
    source = value.WhichOneof("input_data_type")
    if source is None:
        yield model.find(
            NO_DATA,
            f"warmup input {name} does not say what it holds",
            *where,
            says=f"{_ID}warmup setting expects input '{name}' to have input_data_type set",
            hint="zero_data: true",
        )
    elif source == "input_data_file":
        file = value.input_data_file
        path, size = model.directory / "warmup" / file, element_bytes(value.data_type)
        if not is_file(path):
            yield model.find(
                FILE,
                f"warmup/{file} not found",
                *where,
                "input_data_file",
                says=f"failed to open text file for read {path}: No such file or directory",
            )
        elif size and path.stat().st_size < prod(value.dims) * size:
            needed, there = prod(value.dims) * size, path.stat().st_size
            yield model.find(
                FILE_SHORT,
                f"warmup/{file}: {there} bytes, need {needed}",
                *where,
                "input_data_file",
                says=f"{_ID}warmup setting expects {needed} bytes, but the data provided from {file}only has {there} "
                "bytes",
                hint=f"write {prod(value.dims)} x {size} bytes",
            )


def _request(model: Model, index: int, sample: Any) -> Iterator[Finding]:
    """The sample as a request."""
    listed = {tensor.name: tensor for tensor in model.completed.input}
    if not listed:
        return
    where = ("model_warmup", index, "inputs")
    required = [name for name, tensor in listed.items() if not tensor.optional]
    missing = [name for name in required if name not in sample.inputs]
    given = [name for name in sample.inputs if name in listed]
    if missing:
        yield model.find(
            MISSING,
            f"warmup sample {sample.name}: missing {', '.join(missing)}",
            "model_warmup",
            index,
            says=_missing_text(model, required, given, missing, len(listed)),
            hint="add it",
        )
    for name, value in sorted(sample.inputs.items()):
        if name not in listed:
            rule = UNKNOWN_FATAL if model.config.backend == "onnxruntime" and name not in _controls(model) else UNKNOWN
            yield model.find(rule, f"warmup sample {sample.name}: the model has no input {name}", *where, name)
            continue
        tensor = listed[name]
        if value.data_type != tensor.data_type:
            yield model.find(
                TYPE,
                f"warmup sample {sample.name}: {name} is {type_name(value.data_type)}, the model's is "
                f"{type_name(tensor.data_type)}",
                *where,
                name,
                "data_type",
                says=f"{_ID}inference input '{name}' data-type is '{protocol_name(value.data_type)}', but model "
                f"'{model.config.name}' expects '{protocol_name(tensor.data_type)}'",
            )
        elif -1 not in value.dims and not fits(tensor.dims, value.dims):
            yield model.find(
                SHAPE,
                f"warmup sample {sample.name}: {name} has dims {list(value.dims)}, the model's are {list(tensor.dims)}",
                *where,
                name,
                "dims",
                says=f"{_ID}unexpected shape for input '{name}' for model '{model.config.name}'. Expected ",
            )


def _controls(model: Model) -> list[str]:
    return [entry.name for entry in model.completed.sequence_batching.control_input]


def _missing_text(model: Model, required: list[str], given: list[str], missing: list[str], top: int) -> str | None:
    if len(required) != top:
        return None
    got = ",".join(f"'{name}'" for name in sorted(given))
    lacks = ",".join(f"'{name}'" for name in sorted(missing))
    return (
        f"{_ID}expected {len(required)} inputs but got {len(given)} inputs for model '{model.config.name}'. Got "
        "input(s) "
        f"[{got}], but missing required input(s) [{lacks}]. Please provide all required input(s)."
    )


def fits(dims: Any, shape: Any) -> bool:
    """Whether a shape without a batch axis is one of those that dims allow."""
    return len(dims) == len(shape) and all(dim in (-1, length) for dim, length in zip(dims, shape, strict=True))


def _run(model: Model, index: int, sample: Any) -> Iterator[Finding]:
    """What fails only when the sample runs."""
    top = model.completed.max_batch_size
    if sample.batch_size > max(top, 1):
        yield model.find(
            BATCH,
            f"warmup batch_size {sample.batch_size} > max_batch_size {top}; a failing warmup can crash the server",
            "model_warmup",
            index,
            "batch_size",
            hint=f"batch_size: {max(top, 1)} or less",
        )
    lookups = model.graph.lookups if model.graph else {}
    for name, value in sorted(sample.inputs.items()):
        if name in lookups and value.random_data and type_name(value.data_type) in ("TYPE_INT64", "TYPE_INT32"):
            yield model.find(
                RANDOM_IDS,
                f"{name} feeds an embedding: random_data gives ids outside the vocabulary of {lookups[name]}; "
                "a failing warmup can crash the server",
                "model_warmup",
                index,
                "inputs",
                name,
                hint="use zero_data or a data file",
            )
