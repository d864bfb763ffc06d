"""Rules about TorchScript models: parameters, names, and the arguments of `forward`, read as text. Layer: check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tooling.check.files import is_file
from tooling.check.finding import Evidence, Finding, Place
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, note, request
from tooling.check.rules.options import Reads, boolean, integer, parameter, unknown, unread
from tooling.config.proto import pb
from tooling.errors import UsageError, suggest
from tooling.signature.torchscript import BY_KEY, TENSORS, TooLarge, read_forward

_SOURCE: Final = "pytorch backend"
_AOTI_SINCE: Final = "26.03"
_NUMBERED: Final = re.compile(r".*__(\d+)")
_THREADS: Final = ("INTER_OP_THREAD_COUNT", "INTRA_OP_THREAD_COUNT")
_SWITCHES: Final = (
    *("DISABLE_OPTIMIZED_EXECUTION", "INFERENCE_MODE", "DISABLE_CUDNN", "ENABLE_WEIGHT_SHARING"),
    *("ENABLE_CACHE_CLEANING", "ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER"),
)
_PARAMETERS: Final[Mapping[str, Reads]] = {
    **dict.fromkeys(_SWITCHES, boolean),
    **dict.fromkeys(_THREADS, integer),
}
_X: Final = 'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
_Y: Final = 'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 8 ] }\n'
_FORWARD: Final = "forward(x: Tensor) -> Tensor"


def _example(config: str, forward: str = _FORWARD) -> str:
    return f'platform: "pytorch_libtorch"\n{config}--- 1/model.onnx\nabsent\n--- 1/model.pt\n{forward}'


BROKEN = load(
    "pytorch-file-broken",
    "The model file is no TorchScript.",
    "The backend loads what `torch.jit.save` writes; a checkpoint of weights or a pickled module is none.",
    _example(_X + _Y, "not an archive"),
    _SOURCE,
    evidence=Evidence.READ,
)
ARGUMENT = load(
    "pytorch-argument-type",
    "`forward` has an argument that is no tensor.",
    "Tensors, lists of strings, or one dictionary of tensors; an Optional[Tensor], a number or a flag is refused.",
    _example(_X + _Y, "forward(x: Tensor, scale: float) -> Tensor"),
    _SOURCE,
    evidence=Evidence.READ,
)
COUNT = load(
    "pytorch-input-count",
    "The config lists another number of inputs than `forward` has arguments.",
    "Every argument is an input; optional ones do not exist.",
    _example(_X + _Y, "forward(x: Tensor, mask: Tensor) -> Tensor"),
    _SOURCE,
    evidence=Evidence.READ,
)
UNLISTED = load(
    "pytorch-tensors-unlisted",
    "A TorchScript model lists all of its inputs and outputs.",
    "The backend completes nothing: the file says neither types nor shapes.",
    _example(_X),
    _SOURCE,
    evidence=Evidence.READ,
)
STRINGS = load(
    "pytorch-string-rank",
    "A string input is one list.",
    "Its dims, with the batch axis, are one axis at most.",
    _example('max_batch_size: 8\ninput { name: "x" data_type: TYPE_STRING dims: [ 1 ] }\n' + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
CONTROL = load(
    "pytorch-control-name",
    "The name of a sequence control does not end in `__` and a number.",
    "Controls are put in by their place: START__1 becomes the second argument.",
    _example(
        "max_batch_size: 8\n" + _X + _Y + 'sequence_batching { control_input { name: "START" control { kind: '
        "CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }\n",
        "forward(x: Tensor, start: Tensor) -> Tensor",
    ),
    _SOURCE,
    evidence=Evidence.READ,
)
STATE = load(
    "pytorch-state-names",
    "With a state, every input and output ends in `__` and a number.",
    "The backend finds the state's tensors by their places.",
    _example(
        "max_batch_size: 8\n" + _X + _Y + 'sequence_batching { state { input_name: "IN__1" output_name: "OUT__1" '
        "data_type: TYPE_FP32 dims: [ 8 ] } }\n",
        "forward(x: Tensor, s: Tensor) -> Tuple[Tensor, Tensor]",
    ),
    _SOURCE,
    evidence=Evidence.READ,
)
VALUE = load(
    "pytorch-parameter-value",
    "A parameter of the PyTorch backend cannot be read.",
    "Switches are true, on, 1, false, off or 0; thread counts are numbers.",
    _example(_X + _Y + parameter("INFERENCE_MODE", "yes")),
    _SOURCE,
    evidence=Evidence.READ,
)
UNKNOWN = advice(
    "pytorch-parameter-unknown",
    "The PyTorch backend does not read this parameter.",
    "It is ignored in silence.",
    _example(_X + _Y + parameter("INTRA_OP_THREADS", "4")),
    _SOURCE,
)
THREADS = advice(
    "pytorch-threads-shared",
    "Models of one server set different thread counts for PyTorch.",
    "The counts are those of the whole process: the first model that sets them wins.",
    _example(_X + _Y + parameter("INTRA_OP_THREAD_COUNT", "4"))
    + '\n--- ../other/config.pbtxt\nplatform: "pytorch_libtorch"\n'
    + _X
    + _Y
    + parameter("INTRA_OP_THREAD_COUNT", "2")
    + f"--- ../other/1/model.pt\n{_FORWARD}",
    _SOURCE,
)
BY_ORDER = advice(
    "pytorch-names-mixed",
    "Some inputs have names of `forward`'s arguments, others have not: all are taken by their order.",
    "Names count only when every input has an argument's; else `NAME__index` counts, else the order in the config.",
    _example(
        _X + 'input { name: "msk" data_type: TYPE_FP32 dims: [ 8 ] }\n' + _Y,
        "forward(x: Tensor, mask: Tensor) -> Tensor",
    ),
    _SOURCE,
)
ORDERED = note(
    "pytorch-inputs-by-order",
    "The inputs are taken by their order in the config.",
    "Their names are neither arguments of `forward` nor `NAME__index`: swapping two lines swaps two arguments.",
    _example(_X.replace('"x"', '"ids"') + _Y),
    _SOURCE,
)
OUTPUT_INDEX = request(
    "pytorch-output-index",
    "The config has more outputs than `forward` returns.",
    "`forward` returns a tensor, or a tuple of tensors; the number behind `__` counts from 0.",
    _example(_X + _Y.replace("__0", "__1")),
    _SOURCE,
    evidence=Evidence.READ,
)
RESULT = request(
    "pytorch-result-type",
    "`forward` returns something that is no tensor.",
    "A tensor, a list of strings, or a tuple of them; a dictionary, a list of tensors or a number is refused.",
    _example(_X + _Y, "forward(x: Tensor) -> Dict[str, Tensor]"),
    _SOURCE,
    evidence=Evidence.READ,
)
AOTI_SEQUENCES = load(
    "pytorch-aoti-sequences",
    "A torch_aoti model takes no sequences.",
    "The loader of PT2 archives refuses sequence_batching.",
    'platform: "torch_aoti"\nmax_batch_size: 1\nsequence_batching { }\n'
    "--- 1/model.onnx\nabsent\n--- 1/model.pt2\nx\n--- options\n--release 26.03",
    _SOURCE,
    evidence=Evidence.READ,
    since=_AOTI_SINCE,
)
AOTI = advice(
    "pytorch-aoti-ignored",
    "A torch_aoti model does not do what is written: it neither batches nor reads parameters.",
    "The loader of PT2 archives is young: batches above 1 are not supported, and no parameter takes effect.",
    'platform: "torch_aoti"\nmax_batch_size: 8\n'
    "--- 1/model.onnx\nabsent\n--- 1/model.pt2\nx\n--- options\n--release 26.03",
    _SOURCE,
    evidence=Evidence.DOCUMENTED,
    since=_AOTI_SINCE,
)
RULES = (
    *(BROKEN, ARGUMENT, COUNT, UNLISTED, STRINGS, CONTROL, STATE, VALUE, UNKNOWN, THREADS, BY_ORDER, ORDERED),
    *(OUTPUT_INDEX, RESULT, AOTI_SEQUENCES, AOTI),
)


def pytorch(model: Model) -> Iterator[Finding]:
    """Parameters, names, and the file of every version; models with a Python runtime are left alone."""
    config = model.config
    if config.backend != "pytorch" or config.runtime == "model.py":
        return
    if config.platform == "torch_aoti":
        yield from _aoti(model)
        return
    for key, text in unread(model, _PARAMETERS):
        kind = "integral number" if key in _THREADS else "boolean"
        yield model.find(
            VALUE,
            f"parameter {key}: `{text}` is no {kind}",
            *("parameters", key),
            says=f"failed to convert '{text}' to {kind}",
        )
    yield from unknown(model, UNKNOWN, _PARAMETERS)
    yield from _names(model)
    for version in model.served:
        path = model.version_dir(version) / config.default_model_filename
        if is_file(path):
            yield from _file(model, path)


def _aoti(model: Model) -> Iterator[Finding]:
    config = model.config
    if config.HasField("sequence_batching"):
        says = "Sequence batching is not supported yet."
        yield model.find(AOTI_SEQUENCES, "sequence_batching with torch_aoti", "sequence_batching", says=says)
    if config.max_batch_size > 1:
        yield model.find(AOTI, f"max_batch_size {config.max_batch_size}: batches are not supported", "max_batch_size")
    for key in sorted(config.parameters):
        yield model.find(AOTI, f"parameter {key} takes no effect", "parameters", key)


def _names(model: Model) -> Iterator[Finding]:
    config = model.config
    for what, tensors in (("input", config.input), ("output", config.output)):
        if not tensors:
            yield model.find(
                UNLISTED,
                f"no {what} is listed",
                what,
                says=f"model configuration must contain at least one {what}, none were specified.",
            )
        for index, tensor in enumerate(tensors):
            shape = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
            if tensor.data_type == pb().TYPE_STRING and len(shape) + (config.max_batch_size > 0) > 1:
                yield model.find(
                    STRINGS,
                    f"{what} {tensor.name}: strings are one list, and dims {list(tensor.dims)} with max_batch_size "
                    f"{config.max_batch_size} are more",
                    *(what, index, "dims"),
                    says=f"Triton only supports 1 dimensional List of String as {what} for '{tensor.name}' for model "
                    f"'{config.name}'",
                )
    for index, control in enumerate(config.sequence_batching.control_input):
        if not _NUMBERED.fullmatch(control.name):
            yield model.find(
                CONTROL,
                f"sequence control {control.name} does not end in __ and a number",
                *("sequence_batching", "control_input", index, "name"),
                says=f"input '{control.name}' does not follow <name>__<index> naming convention.",
            )
    named = [tensor.name for tensor in (*config.input, *config.output)]
    if config.sequence_batching.state and not all(_NUMBERED.fullmatch(name) for name in named):
        yield model.find(
            STATE,
            f"with a state every tensor ends in __ and a number: {', '.join(named)}",
            "sequence_batching",
            says=f"PyTorch model '{config.name}' is using sequence batching with state but not all inputs and outputs "
            "follow the <name>__<index> naming convention. ",
        )


def _file(model: Model, path: Path) -> Iterator[Finding]:
    place = Place(model.shown_path(path))
    try:
        arguments, results = read_forward(path)
    except TooLarge:
        return
    except UsageError as error:
        for problem in error.problems:
            yield model.find(BROKEN, str(replace(problem, where=None)), place=place, hint=problem.hint)
        return
    for name, kind in arguments:
        if kind not in (*TENSORS, BY_KEY):
            yield model.find(
                ARGUMENT,
                f"argument {name} of forward is {kind}",
                place=place,
                says=f"An input of type '{kind}' was detected in the model. Only a single input of type Dict(str, "
                "Tensor) or input(s) of type Tensor are supported.",
                hint="wrap the model so that `forward` takes tensors only",
            )
    by_key = sum(kind == BY_KEY for _, kind in arguments)
    if by_key > 1:
        yield model.find(
            ARGUMENT,
            f"forward takes {by_key} dictionaries",
            place=place,
            says="Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor) is "
            "supported.",
        )
    if not by_key:
        yield from _inputs(model, [name for name, _ in arguments])
    yield from _outputs(model, place, results)


def _inputs(model: Model, arguments: Sequence[str]) -> Iterator[Finding]:
    config = model.config
    batching = config.sequence_batching
    count = len(config.input) + len(config.batch_input) + len(batching.control_input) + len(batching.state)
    if config.input and count != len(arguments):
        yield model.find(
            COUNT,
            f"config has {count} inputs, forward takes {len(arguments)}: {', '.join(arguments)}",
            "input",
            says=f"unable to load model '{config.name}', configuration expects {count} inputs, model provides "
            f"{len(arguments)}",
        )
    names = [tensor.name for tensor in config.input]
    strange = [index for index, name in enumerate(names) if name not in arguments]
    if not strange or all(_NUMBERED.fullmatch(name) for name in names):
        return
    rule = BY_ORDER if len(strange) < len(names) else ORDERED
    yield model.find(
        rule,
        f"input {names[strange[0]]} is no argument of forward ({', '.join(arguments)}): all inputs are taken in order",
        *("input", strange[0], "name"),
        hint=suggest(names[strange[0]], arguments) or "name them like the arguments, or INPUT__0, INPUT__1 …",
    )


def _outputs(model: Model, place: Place, results: Sequence[str]) -> Iterator[Finding]:
    wrong = [kind for kind in results if kind not in TENSORS]
    if wrong:
        yield model.find(
            RESULT,
            f"forward returns {', '.join(wrong)}",
            place=place,
            says="output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not "
            "be a List / Dictionary of Tensors or a Scalar",
            hint="wrap the model so that `forward` returns tensors only (`return_dict=False`)",
        )
        return
    outputs: Sequence[Any] = model.config.output
    numbered = all(_NUMBERED.fullmatch(tensor.name) for tensor in outputs)
    for place_in_config, tensor in enumerate(outputs):
        found = _NUMBERED.fullmatch(tensor.name)
        index = int(found[1]) if numbered and found else place_in_config
        if index >= len(results):
            yield model.find(
                OUTPUT_INDEX,
                f"output {tensor.name} is number {index}, and forward returns {len(results)}",
                *("output", place_in_config, "name"),
                says=f"The output {tensor.name} in the model configuration refers to an output index which doesn't "
                f"exist. This model has {len(results)} outputs",
            )


def threads(models: Mapping[str, Model]) -> Iterator[Finding]:
    """Thread counts of one process that several models set."""
    for key in _THREADS:
        users = [
            (model, model.config.parameters[key].string_value)
            for model in models.values()
            if model.config.backend == "pytorch" and model.readable and key in model.config.parameters
        ]
        for model, text in users[1:]:
            if text != users[0][1]:
                yield model.find(
                    THREADS,
                    f"{key} {text}, and {users[0][0].name} sets {users[0][1]}: the model that loads first wins",
                    *("parameters", key),
                    hint="write the same count everywhere",
                )
