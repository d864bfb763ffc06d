"""Rules about a config and the ONNX model it is for, as the ONNX Runtime backend compares them. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tooling.check.completion import complete, leaves_out
from tooling.check.finding import Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import load
from tooling.check.rules.onnx_controls import controls
from tooling.check.rules.onnx_pair import SOURCE, Pair, X, example
from tooling.check.rules.onnx_shapes import RAGGED, dims_of
from tooling.check.sizes import type_name
from tooling.check.wording import shape_text
from tooling.errors import suggest
from tooling.signature.spec import TensorSpec

CANNOT_BATCH = load(
    "model-cannot-batch",
    "max_batch_size is set, and the model cannot batch.",
    "Triton stacks requests along the first axis: every input and output must have a symbolic one. A config without "
    "inputs "
    "or outputs is completed from the model, and that is refused when the model cannot batch.",
    "max_batch_size: 8\n--- 1/model.onnx\nx: FP32 [1, 8] -> y: FP32 [1, 8]",
    "AutoCompleteConfig of the onnxruntime backend",
)
INPUT_COUNT = load(
    "input-count",
    "The config lists another number of inputs than the model has.",
    "Inputs, batch inputs, sequence controls and states together must be the model's inputs. Inputs with a default "
    "value in "
    "the file may be left out.",
    example(X, "x: FP32 [batch, 8], z: FP32 [batch, 8] -> y: FP32 [batch, 8]"),
    SOURCE,
)
OPTIONAL_BATCHING = load(
    "optional-input-with-batching",
    "An optional input in a model that batches.",
    "The ONNX Runtime backend takes optional inputs only with max_batch_size 0, and only for inputs that have a "
    "default value "
    "in the file.",
    example(f'{X} }}\ninput {{ name: "z" data_type: TYPE_FP32 dims: [ 8 ] optional: true'),
    SOURCE,
)
INPUT_UNKNOWN = load(
    "input-not-in-model",
    "An input of the config is none of the model's.",
    "Names are case-sensitive.",
    example('name: "X" data_type: TYPE_FP32 dims: [ 8 ]'),
    SOURCE,
)
OUTPUT_UNKNOWN = load(
    "output-not-in-model",
    "An output of the config is none of the model's.",
    "Outputs may be left out, but not made up.",
    example(X, output='output { name: "z" data_type: TYPE_FP32 dims: [ 8 ] }'),
    SOURCE,
)
TYPE_UNSERVED = load(
    "type-not-served",
    "The backend does not serve this type.",
    "The ONNX Runtime backend of this release has no tensors of this type. BF16 came with 26.03.",
    example('name: "x" data_type: TYPE_BF16 dims: [ 8 ]'),
    SOURCE,
    until="26.02",
)
TYPE = load(
    "tensor-type",
    "A tensor has another type in the config than in the model.",
    "Nothing is converted. A conversion to half precision that does not keep the types of inputs and outputs changes "
    "them.",
    example('name: "x" data_type: TYPE_INT32 dims: [ 8 ]'),
    SOURCE,
)
RULES = (CANNOT_BATCH, INPUT_COUNT, OPTIONAL_BATCHING, INPUT_UNKNOWN, OUTPUT_UNKNOWN, TYPE_UNSERVED, TYPE)


def completion(model: Model) -> Iterator[Finding]:
    """Whether the backend can complete the config."""
    signature = model.signature
    if signature is None or model.target.strict or not leaves_out(model.config):
        return
    if complete(model.config, signature, model.target.default_max_batch_size) is None:
        fixed = ", ".join(f"{tensor.name} {shape_text(tensor.dims)}" for tensor in signature.unbatchable)
        yield model.find(
            CANNOT_BATCH,
            f"model does not support batching, and max_batch_size: {model.config.max_batch_size} is specified; no "
            "free first "
            f"axis in {fixed}",
            "max_batch_size",
            says=f"autofill failed for model '{model.config.name}': model does not support batching while non-zero "
            "max_batch_size is specified",
            hint="max_batch_size: 0, or export with a dynamic batch axis",
        )


def onnx_model(model: Model) -> Iterator[Finding]:
    """Config against model, in the backend's order; each of several versions is compared, each finding told once."""
    told: set[tuple[str, str]] = set()
    for file in model.onnx_files:
        incomplete = not model.target.strict and leaves_out(model.completed)
        if file.graph is None or file.graph.signature is None or incomplete:
            continue
        for finding in _compare(Pair(model, file.graph, file.graph.signature)):
            key = (finding.rule.id, finding.message)
            if key not in told:
                told.add(key)
                yield finding


def _compare(pair: Pair) -> Iterator[Finding]:
    required = {tensor.name: tensor for tensor in pair.signature.required_inputs}
    known = {tensor.name: tensor for tensor in pair.signature.inputs}
    outputs = {tensor.name: tensor for tensor in pair.signature.outputs}
    yield from controls(pair, required)
    yield from _count(pair, required, known)
    for index, tensor in enumerate(pair.config.input):
        yield from _input(pair, index, tensor, known)
    scattered = {name for entry in pair.config.batch_output for name in entry.target_name}
    for index, tensor in enumerate(pair.config.output):
        if tensor.name not in outputs:
            yield _unknown(pair, OUTPUT_UNKNOWN, "output", index, tensor.name, outputs)
            continue
        yield from _type(pair, "output", index, tensor, outputs[tensor.name])
        if tensor.name not in scattered:
            yield from dims_of(pair, "output", index, tensor, outputs[tensor.name])


def _count(pair: Pair, required: Mapping[str, TensorSpec], known: Mapping[str, TensorSpec]) -> Iterator[Finding]:
    config = pair.config
    sequence = config.sequence_batching
    listed = [tensor.name for tensor in config.input if not tensor.optional]
    controls = [entry.name for entry in sequence.control_input for _ in entry.control]
    states = [state.input_name for state in sequence.state]
    made = [name for entry in config.batch_input for name in entry.target_name]
    expected = len(listed) + len(config.batch_input) + len(controls) + len(states)
    if expected == len(required):
        return
    given = {*listed, *controls, *states, *made}
    extra = [name for name in dict.fromkeys(listed) if name not in known]
    missing = [name for name in required if name not in given]
    texts = [f"{name} is in the config but not in the model" for name in extra]
    texts += [f"{name} is in the model but not in the config" for name in missing]
    index = next((index for index, tensor in enumerate(config.input) if tensor.name in extra), None)
    yield pair.model.find(
        INPUT_COUNT,
        f"the config gives {expected} inputs, the model has {len(required)}" + "".join(f"; {text}" for text in texts),
        "input",
        *([] if index is None else [index]),
        says=f"unable to load model '{pair.name}', configuration expects {expected} inputs, model provides "
        f"{len(required)}",
        hint=f"the model's inputs are {', '.join(required)}",
        fix=(f"-input[{index}]",)
        if len(extra) == 1 and not missing and index is not None and pair.model.written.input
        else (),
    )


def _unknown(pair: Pair, rule: Any, what: str, index: int, name: str, known: Mapping[str, TensorSpec]) -> Finding:
    return pair.model.find(
        rule,
        f"{what} {name} does not exist; {what}s are {', '.join(known)}",
        what,
        index,
        "name",
        says=f"unexpected inference {what} '{name}', allowed {what}s are: {', '.join(sorted(known))}",
        hint=suggest(name, known) or suggest(name.lower(), known),
    )


def _input(pair: Pair, index: int, tensor: Any, known: Mapping[str, TensorSpec]) -> Iterator[Finding]:
    name = tensor.name
    if tensor.optional and pair.top != 0:
        yield pair.model.find(
            OPTIONAL_BATCHING,
            f"input {name} is optional, and max_batch_size is {pair.top}",
            "input",
            index,
            "optional",
            says=f"unable to load model '{pair.name}', optional input '{name}' is not supported for models that "
            "support "
            "batching",
            hint="leave the input out of the config: the model has a value for it",
        )
    if name not in known:
        yield _unknown(pair, INPUT_UNKNOWN, "input", index, name, known)
        return
    spec = known[name]
    yield from _type(pair, "input", index, tensor, spec)
    if not tensor.allow_ragged_batch:
        yield from dims_of(pair, "input", index, tensor, spec)
    elif tensor.optional or spec.dims != (-1,):
        tail = (
            f" for ragged input '{name}', which is not supported for optional input"
            if tensor.optional
            else f"  for ragged input '{name}', model provides {shape_text(spec.dims)}"
        )
        yield pair.model.find(
            RAGGED,
            f"input {name} is rank {len(spec.dims)} in the model ({shape_text(spec.dims)}); a ragged input must be "
            "rank 1, [-1]",
            "input",
            index,
            "allow_ragged_batch",
            says=f"unable to load model '{pair.name}', configuration expects model provides input with shape "
            f"[-1]{tail}",
            hint="remove allow_ragged_batch",
            fix=(f"-input[{index}].allow_ragged_batch",),
        )


def _type(pair: Pair, what: str, index: int, tensor: Any, spec: TensorSpec) -> Iterator[Finding]:
    written = type_name(tensor.data_type)
    short = spec.data_type.removeprefix("TYPE_")
    where, fix = (what, index, "data_type"), (f"{what}[{index}].data_type={spec.data_type}",)
    if written == "TYPE_BF16" and TYPE_UNSERVED.holds_for(pair.model.target.release.tag):
        own = written == spec.data_type
        yield pair.model.find(
            TYPE_UNSERVED,
            f"{what} {tensor.name}: the backend does not serve {written}; the model has {short}",
            *where,
            says=f"unsupported datatype {written} for {what} '{tensor.name}' for model '{pair.name}'",
            hint="cast it inside the graph, for example to FLOAT16, or take release 26.03 or newer"
            if own
            else spec.data_type,
            fix=() if own else fix,
        )
        return
    if written in (spec.data_type, "TYPE_INVALID"):
        return
    native = "BYTES" if short == "STRING" else short
    yield pair.model.find(
        TYPE,
        f"{what} {tensor.name}: model {short}, config {written}",
        *where,
        says=f"unable to load model '{pair.name}', configuration expects datatype {written} for {what} "
        f"'{tensor.name}', model "
        f"provides TYPE_{native}",
        hint=f"data_type: {spec.data_type}",
        fix=fix,
    )
