"""Rules about OpenVINO models: instances, parameters, and the IR, of which no weights are read. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tooling.check.files import is_file
from tooling.check.finding import Evidence, Finding, Place, Stage
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load
from tooling.check.rules.options import Reads, anything, one_of, parameter, unknown, unread
from tooling.check.wording import shape_text, shapes_differ
from tooling.errors import UsageError, suggest
from tooling.signature.openvino_ir import read_openvino
from tooling.signature.spec import ModelSignature, TensorSpec

_SOURCE: Final = "openvino backend"
_LARGEST: Final = 2**23
"""Bytes of an IR that is looked at: its weights lie in another file."""
_SWITCHES: Final = ("SKIP_OV_DYNAMIC_BATCHSIZE", "ENABLE_BATCH_PADDING", "RESHAPE_IO_LAYERS")
_HINTS: Final = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")
_IR: Final = (
    '<net name="m" version="11"><layers>'
    '<layer id="0" name="x" type="Parameter" version="opset1"><data shape="?,8" element_type="f32"/><output>'
    '<port id="0" precision="FP32" names="x"><dim>-1</dim><dim>8</dim></port></output></layer>'
    '<layer id="1" name="relu" type="ReLU" version="opset1"><input><port id="0" precision="FP32"><dim>-1</dim>'
    '<dim>8</dim></port></input><output><port id="1" precision="FP32" names="y"><dim>-1</dim><dim>8</dim></port>'
    '</output></layer><layer id="2" name="y" type="Result" version="opset1"><input><port id="0" precision="FP32">'
    "<dim>-1</dim><dim>8</dim></port></input></layer></layers>"
    '<edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>'
    '<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges></net>'
)
_CPU: Final = "instance_group { kind: KIND_CPU }\n"
_X: Final = 'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
_Y: Final = 'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'


def _number(text: str) -> bool:
    return text.strip().isdecimal()


def _streams(text: str) -> bool:
    return text.upper() in ("AUTO", "NUMA") or _number(text)


_PARAMETERS: Final[Mapping[str, tuple[Reads, str]]] = {
    "PERFORMANCE_HINT": (one_of(*_HINTS), f"to be {'/'.join(_HINTS)}"),
    "INFERENCE_NUM_THREADS": (_number, "to be a non-negative number"),
    "COMPILATION_NUM_THREADS": (_number, "to be a non-negative number"),
    "NUM_STREAMS": (_streams, "to be either AUTO/NUMA/<int_value>"),
    "HINT_BF16": (one_of("YES"), "to be YES"),
    "CPU_EXTENSION_PATH": (anything, ""),
    "TARGET_DEVICE": (anything, ""),
    **dict.fromkeys(_SWITCHES, (anything, "")),
}


def _example(config: str, ir: str = _IR) -> str:
    return f'backend: "openvino"\n{config}--- 1/model.onnx\nabsent\n--- 1/model.xml\n{ir}'


def _parameter(key: str, value: str) -> str:
    return _example(_CPU + parameter(key, value))


KIND = load(
    "openvino-kind",
    "The OpenVINO backend runs on KIND_CPU only.",
    "Intel's GPUs and NPUs are chosen with the parameter TARGET_DEVICE, not with the kind.",
    _example("instance_group { kind: KIND_GPU }\n") + "\n--- options\n--gpus 1",
    _SOURCE,
    evidence=Evidence.READ,
)
KIND_AUTO = advice(
    "openvino-kind-auto",
    "On a server with an NVIDIA GPU, instances without a kind go to the GPU, where OpenVINO refuses them.",
    "KIND_AUTO becomes KIND_GPU as soon as the server sees a GPU.",
    _example(""),
    _SOURCE,
)
VALUE = load(
    "openvino-parameter-value",
    "A parameter of OpenVINO has a value that is none of its values.",
    "Words are taken in any case.",
    _parameter("PERFORMANCE_HINT", "FAST"),
    _SOURCE,
    evidence=Evidence.READ,
)
SWITCH = advice(
    "openvino-switch-text",
    "OpenVINO's switches know the word YES; everything else means no.",
    "`true` and `1` switch nothing on.",
    _parameter("ENABLE_BATCH_PADDING", "true"),
    _SOURCE,
)
UNKNOWN = advice(
    "openvino-parameter-unknown",
    "The OpenVINO backend does not read this parameter.",
    "It is ignored in silence.",
    _parameter("NUM_THREADS", "4"),
    _SOURCE,
)
BROKEN = load(
    "openvino-file-broken",
    "The model file is no OpenVINO IR that Triton can serve.",
    "It must be the XML of an IR, with a name on every input and output; the weights lie beside it.",
    _example(_CPU, "not an IR"),
    _SOURCE,
    evidence=Evidence.READ,
)
COUNT = load(
    "openvino-input-count",
    "The config lists another number of inputs than the model has.",
    "Every input of the model must be there.",
    _example(_CPU + _X + _X.replace('"x"', '"z"') + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
TENSOR = load(
    "openvino-tensor-unknown",
    "A tensor of the config is none of the model's.",
    "Names are case-sensitive.",
    _example(_CPU + _X.replace('"x"', '"X"') + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
SHAPE = load(
    "openvino-tensor-shape",
    "A tensor has another shape in the config than in the model.",
    "Without batching every dim must be the model's; with it the first axis is left out. RESHAPE_IO_LAYERS makes the "
    "model follow the config.",
    _example("max_batch_size: 8\n" + _CPU + _X.replace("[ 8 ]", "[ 9 ]") + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
PADDING = advice(
    "openvino-batch-not-padded",
    "The model is compiled for batches of max_batch_size, and refuses smaller ones.",
    "`expected requests with batch size '8', got '1'`. ENABLE_BATCH_PADDING fills batches up, at the cost of computing "
    "whole ones always.",
    _example("max_batch_size: 8\n" + _CPU + _X + _Y),
    _SOURCE,
    stage=Stage.REQUEST,
)
RULES = (KIND, KIND_AUTO, VALUE, SWITCH, UNKNOWN, BROKEN, COUNT, TENSOR, SHAPE, PADDING)


def openvino(model: Model) -> Iterator[Finding]:
    """Instances, parameters, and the IR of every version."""
    if model.config.backend != "openvino":
        return
    yield from _kinds(model)
    yield from _parameters(model)
    for version in model.served:
        path = model.version_dir(version) / model.config.default_model_filename
        if path.suffix == ".xml" and is_file(path) and path.stat().st_size <= _LARGEST:
            yield from _ir(model, path)


def _kinds(model: Model) -> Iterator[Finding]:
    for group in model.instances:
        if group.kind in ("KIND_GPU", "KIND_MODEL"):
            yield model.find(
                KIND,
                f"OpenVINO on {group.kind}",
                *("instance_group", group.index, "kind"),
                says=f"unable to load model '{model.config.name}', Triton OpenVINO backend supports only Kind CPU and "
                "AUTO",
                hint="KIND_CPU",
            )
        elif group.kind is None:
            yield model.find(
                KIND_AUTO,
                "no kind: on a server with a GPU this does not load",
                *("instance_group", group.index),
                hint="instance_group { kind: KIND_CPU }",
            )


def _parameters(model: Model) -> Iterator[Finding]:
    for key, text in unread(model, {key: reads for key, (reads, _) in _PARAMETERS.items()}):
        wanted = _PARAMETERS[key][1]
        yield model.find(
            VALUE,
            f"parameter {key}: `{text}`, expected {wanted}",
            *("parameters", key),
            says=f"expected the parameter '{key}' {wanted}, got {text}",
        )
    for key in _SWITCHES:
        text = model.config.parameters[key].string_value if key in model.config.parameters else ""
        if text.lower() in ("true", "1", "on", "y"):
            yield model.find(
                SWITCH,
                f"{key} `{text}` means no",
                *("parameters", key),
                hint="YES",
                fix=(f"parameters[{key}].string_value=YES",),
            )
    yield from unknown(model, UNKNOWN, _PARAMETERS)


def _ir(model: Model, path: Path) -> Iterator[Finding]:
    place = Place(model.shown_path(path))
    try:
        signature = read_openvino(path)
    except UsageError as error:
        for problem in error.problems:
            yield model.find(BROKEN, str(replace(problem, where=None)), place=place, hint=problem.hint)
        return
    config = model.config
    fed = [*config.input, *config.sequence_batching.control_input]
    if config.input and len(fed) != len(signature.inputs):
        yield model.find(
            COUNT,
            f"config has {len(fed)} inputs, model has {len(signature.inputs)}: {_names(signature.inputs)}",
            "input",
            says=f"unable to load model '{config.name}', configuration expects {len(fed)} inputs, model provides "
            f"{len(signature.inputs)}",
        )
    yield from _tensors(model, signature)
    if config.max_batch_size > 1 and not any(_on(model, key) for key in _SWITCHES[:2]):
        yield model.find(
            PADDING,
            f"batches smaller than max_batch_size {config.max_batch_size} are refused",
            "max_batch_size",
            hint='parameters { key: "ENABLE_BATCH_PADDING" value { string_value: "YES" } }, or max_batch_size: 0 with '
            "whole shapes",
        )


def _tensors(model: Model, signature: ModelSignature) -> Iterator[Finding]:
    for what, listed, specs in (
        ("input", model.config.input, signature.inputs),
        ("output", model.config.output, signature.outputs),
    ):
        known = {spec.name: spec for spec in specs}
        for index, tensor in enumerate(listed):
            if tensor.name in known:
                yield from _shape(model, what, index, tensor, known[tensor.name])
                continue
            yield model.find(
                TENSOR,
                f"{what} {tensor.name} is not in the model; {what}s are {_names(specs)}",
                *(what, index, "name"),
                says=f"unexpected inference {what} '{tensor.name}', allowed {what}s are: {', '.join(sorted(known))}",
                hint=suggest(tensor.name, known),
            )


def _shape(model: Model, what: str, index: int, tensor: Any, spec: TensorSpec) -> Iterator[Finding]:
    """-1 in the config fits any length where batching leaves inputs open; the model's own -1 fits everything."""
    batching = model.config.max_batch_size > 0
    dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    full = [-1, *dims] if batching else dims
    first = 1 if batching else 0
    free = batching and what == "input"
    fits = len(full) == len(spec.dims) and all(
        have == -1 or have == want or (free and want == -1)
        for have, want in list(zip(spec.dims, full, strict=True))[first:]
    )
    if not dims or fits or _on(model, "RESHAPE_IO_LAYERS"):
        return
    yield model.find(
        SHAPE,
        f"{what} {tensor.name}: model {shape_text(spec.dims)}, config {shape_text(full)}",
        *(what, index, "dims"),
        says=shapes_differ(model.config.name, tensor.name, spec.dims, full, batching=batching),
        hint=f"dims: {list(spec.dims[first:])}",
    )


def _on(model: Model, key: str) -> bool:
    return key in model.config.parameters and model.config.parameters[key].string_value.upper() == "YES"


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(spec.name for spec in specs) or "none"
