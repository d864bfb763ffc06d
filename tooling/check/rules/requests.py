"""Rules about a request: what the core says to it, and what the model would. Layer: check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, Final

from tooling.check.finding import Evidence, Finding, Place, Stage
from tooling.check.model import Model
from tooling.check.request import Request, Tensor
from tooling.check.rules.kinds import advice, note, request
from tooling.check.rules.warmup import fits
from tooling.check.sizes import element_bytes, protocol_name
from tooling.check.wording import shape_text
from tooling.errors import suggest

_SOURCE: Final = "InferenceRequest::Normalize (core)"
_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_BOUNDS: Final = re.compile(r"idx=(-?\d+) must be within the inclusive range \[(-?\d+),(\d+)\]")
_MODEL: Final = (
    'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'input { name: "z" data_type: TYPE_INT64 dims: [ -1 ] }\noutput { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    "--- 1/model.onnx\nx: FP32 [batch, 8], z: INT64 [batch, n] -> y: FP32 [batch, 8]\n--- request\n"
)
_SEQUENCE: Final = (
    'max_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
    'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\nsequence_batching { }\n--- request\n'
)
_X: Final = '{"name": "x", "datatype": "FP32", "shape": [1, 8]}'
_Z: Final = '{"name": "z", "datatype": "INT64", "shape": [1, 5]}'


def _example(*inputs: str, more: str = "") -> str:
    return f'{_MODEL}{{"inputs": [{", ".join(inputs)}]{more}}}'


OUTPUT_UNKNOWN = request(
    "request-output-unknown",
    "The request asks for an output that the model has not.",
    "Names are case-sensitive.",
    _example(_X, _Z, more=', "outputs": [{"name": "Y"}]'),
    _SOURCE,
)
COUNT = request(
    "request-input-count",
    "The request has another number of inputs than the model.",
    "Every input that is not optional must be there.",
    _example(_X),
    _SOURCE,
)
INPUT_UNKNOWN = request(
    "request-input-unknown",
    "The request has an input that the model has not.",
    "Names are case-sensitive.",
    _example(_X, _Z.replace('"z"', '"Z"')),
    _SOURCE,
)
NO_SHAPE = request(
    "request-without-batch-axis",
    "An input of a batching model has no axis at all.",
    "The first axis is the batch.",
    _example(_X, _Z.replace("[1, 5]", "[]")),
    _SOURCE,
    evidence=Evidence.READ,
)
BATCHES = request(
    "request-batches-differ",
    "The inputs of a request have different batch sizes.",
    "All inputs of a batching model share the first axis.",
    _example(_X.replace("[1, 8]", "[2, 8]"), _Z),
    _SOURCE,
)
BATCH = request(
    "request-batch-above-max",
    "The batch of a request is larger than max_batch_size.",
    "Triton never splits a request.",
    _example(_X.replace("[1, 8]", "[9, 8]"), _Z.replace("[1, 5]", "[9, 5]")),
    _SOURCE,
)
TYPE = request(
    "request-input-type",
    "An input has another type than the model's.",
    "Nothing is converted.",
    _example(_X, _Z.replace("INT64", "INT32")),
    _SOURCE,
)
SHAPE = request(
    "request-input-shape",
    "An input has another shape than the model's.",
    "A batching model takes the batch axis first, then its dims: `dims: [ 1 ]` is [batch, 1].",
    _example(_X.replace("[1, 8]", "[1, 9]"), _Z),
    _SOURCE,
)
SIZE = request(
    "request-data-size",
    "An input has another number of values than its shape.",
    "The shape says how many there are.",
    _example(_X, _Z.replace("}", ', "data": [1, 2, 3]}')),
    _SOURCE,
    evidence=Evidence.READ,
)
BOUNDS = request(
    "request-id-outside-table",
    "An id is no row of the table it looks up.",
    "ONNX Runtime answers `indices element out of data bounds`: a tokenizer of another model, or swapped inputs.",
    'max_batch_size: 8\ninput { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }\n'
    'output { name: "rows" data_type: TYPE_FP32 dims: [ -1, 4 ] }\n'
    "--- 1/model.onnx\nids: INT64 [batch, n] -> rows: FP32 [batch, n, 4] lookup\n--- request\n"
    '{"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [5, 100]}]}',
    "ONNX Runtime's Gather",
)
SEQUENCE_BATCH = request(
    "request-sequence-batch",
    "A request of a sequence has batch 1.",
    "The sequence batcher makes the batches.",
    _SEQUENCE + '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 8]}], "parameters": {"sequence_id": 7}}',
    "SequenceBatchScheduler (core)",
)
SEQUENCE_ID = request(
    "request-without-sequence-id",
    "A request to a sequence model has no correlation id.",
    "`sequence_id` is a number other than 0, or a text. Only iterative sequences do without.",
    _SEQUENCE + '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8]}]}',
    "SequenceBatchScheduler (core)",
)
SEQUENCE_START = advice(
    "request-sequence-not-started",
    "The first request of a sequence in the file does not start it.",
    "Unless the server knows the sequence already, it answers `must specify the START flag on the first request`.",
    _SEQUENCE + '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 8]}], "parameters": {"sequence_id": 7}}',
    "SequenceBatchScheduler (core)",
    stage=Stage.REQUEST,
)
SWAPPED = note(
    "request-inputs-swapped",
    "An id outside of a table of two rows: inputs were swapped.",
    "The segment table of BERT has two rows. Token ids end up in it when inputs are given by position, in another "
    "order than "
    "the file's.",
    f'{_MODEL}{{"error": "indices element out of data bounds, idx=101 must be within the inclusive range [-2,1]"}}',
    "ONNX Runtime's Gather",
    evidence=Evidence.REPORTED,
    stage=BATCH.stage,
)
RULES = (
    *(OUTPUT_UNKNOWN, COUNT, INPUT_UNKNOWN, NO_SHAPE, BATCHES, BATCH, TYPE, SHAPE, SIZE, BOUNDS, SEQUENCE_BATCH),
    *(SEQUENCE_ID, SEQUENCE_START, SWAPPED),
)


def judge(model: Model, sent: Request, place: Place) -> Iterator[Finding]:
    """Everything that is wrong with a request, in the order in which the server would find it."""
    if sent.answer is not None:
        yield from _answer(model, sent.answer, place)
        return
    name, start = model.config.name, f"[request id: {sent.request_id or '<id_unknown>'}] "
    outputs = [tensor.name for tensor in model.completed.output]
    for output in sent.outputs:
        if output not in outputs:
            yield model.find(
                OUTPUT_UNKNOWN,
                f"{sent.label}: no output called {output}; outputs are {', '.join(outputs)}",
                place=place,
                says=f"unexpected inference output '{output}' for model '{name}'",
                hint=suggest(output, outputs),
            )
    known = {tensor.name: tensor for tensor in model.completed.input}
    yield from _count(model, sent, known, place, start)
    yield from _batch(model, sent, known, place, start)
    for tensor in sent.inputs.values():
        if tensor.name in known:
            yield from _tensor(model, sent, tensor, known[tensor.name], place, start)
    yield from _sequence(model, sent, place)
    yield from _values(model, sent, place)


def _count(model: Model, sent: Request, known: Mapping[str, Any], place: Place, start: str) -> Iterator[Finding]:
    required = [tensor.name for tensor in known.values() if not tensor.optional]
    missing = [name for name in required if name not in sent.inputs]
    if len(required) <= len(sent.inputs) <= len(known):
        if missing and sent.inputs.keys() <= known.keys():
            yield model.find(COUNT, f"{sent.label}: missing {', '.join(missing)}", place=place)
        return
    name, count = model.config.name, len(sent.inputs)
    text = f"missing {', '.join(missing)}" if missing else f"{count} inputs, the model has {len(known)}"
    expected = (
        f"expected {len(known)} inputs but"
        if len(known) == len(required)
        else f"expected number of inputs between {len(required)} and {len(known)} but"
    )
    yield model.find(
        COUNT,
        f"{sent.label}: {text}",
        place=place,
        says=f"{start}{expected} got {count} inputs for model '{name}'. Got input(s) {_quoted(sent.inputs)}, but "
        "missing "
        f"required input(s) {_quoted(missing) if missing else ']'}. Please provide all required input(s).",
        hint=f"the model's inputs are {', '.join(known)}",
    )


def _quoted(names: Any) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _batch(model: Model, sent: Request, known: Mapping[str, Any], place: Place, start: str) -> Iterator[Finding]:
    """Unknown inputs, and the batch size that all inputs share."""
    name, top = model.config.name, model.completed.max_batch_size
    for tensor in sent.inputs.values():
        if tensor.name not in known:
            yield model.find(
                INPUT_UNKNOWN,
                f"{sent.label}: no input called {tensor.name}; inputs are {', '.join(known)}",
                place=place,
                says=f"unexpected inference input '{tensor.name}' for model '{name}'",
                hint=suggest(tensor.name, known)
                or suggest(tensor.name.lower(), known)
                or f"drop {tensor.name} before sending",
            )
        elif top > 0 and not tensor.shape:
            yield model.find(
                NO_SHAPE,
                f"{sent.label}: {tensor.name} has no axis, and needs the batch axis",
                place=place,
                says=f"{start}input '{tensor.name}' has no shape but model requires batch dimension for '{name}'",
            )
    if top <= 0:
        return
    sizes = {tensor.name: tensor.shape[0] for tensor in sent.inputs.values() if tensor.shape and tensor.name in known}
    if len(set(sizes.values())) > 1:
        yield model.find(
            BATCHES,
            f"{sent.label}: batch sizes differ: {', '.join(f'{key} {size}' for key, size in sizes.items())}",
            place=place,
            says=f"batch size does not match other inputs for '{name}'",  # of which one, only its hash table knows
            hint="repeat the smaller input, or use max_batch_size: 0 with whole shapes",
        )
    elif sizes and max(sizes.values()) > top:
        yield model.find(
            BATCH,
            f"{sent.label}: batch {max(sizes.values())} > max_batch_size {top}",
            place=place,
            says=f"{start}inference request batch-size must be <= {top} for '{name}'",
            hint="send it in parts",
        )


def _tensor(model: Model, sent: Request, tensor: Tensor, listed: Any, place: Place, start: str) -> Iterator[Finding]:
    name, batching = model.config.name, model.completed.max_batch_size > 0
    wanted = protocol_name(listed.data_type)
    if tensor.data_type not in (None, wanted):
        yield model.find(
            TYPE,
            f"{sent.label}: {tensor.name}: request {tensor.data_type}, model {wanted}",
            place=place,
            says=f"{start}inference input '{tensor.name}' data-type is '{tensor.data_type}', but model '{name}' "
            "expects "
            f"'{wanted}'",
            hint="cast it in the client",
        )
    shape = tensor.shape[1:] if batching else tensor.shape
    if (tensor.shape or not batching) and not fits(listed.dims, shape):
        full = [*([-1] if batching else []), *listed.dims]
        right = _right_shape(tensor.shape, listed, batching)
        yield model.find(
            SHAPE,
            f"{sent.label}: {tensor.name}: shape {list(tensor.shape)}, the model takes {full}",
            place=place,
            says=f"{start}unexpected shape for input '{tensor.name}' for model '{name}'. Expected {shape_text(full)}, "
            f"got {shape_text(tensor.shape)}. {_NOTE if batching else ''}",
            hint=f"{tensor.name}: send shape {right}" if right else None,
        )
    elif tensor.values is not None and len(tensor.values) != prod(tensor.shape):
        size = element_bytes(listed.data_type)
        yield model.find(
            SIZE,
            f"{sent.label}: {tensor.name} has {len(tensor.values)} values, its shape {list(tensor.shape)} "
            f"{prod(tensor.shape)}",
            place=place,
            says=f"{start}input byte size mismatch for input '{tensor.name}' for model '{name}'. Expected "
            f"{prod(tensor.shape) * size}, got {len(tensor.values) * size}"
            if size
            else None,
        )


def _right_shape(shape: Sequence[int], listed: Any, batching: bool) -> list[int] | None:
    """The shape that was meant where only an axis was forgotten."""
    dims = list(listed.dims)
    if not batching or -1 in dims:
        return None
    if len(shape) == 1 and prod(dims) == 1:
        return [*shape, *dims]
    return [1, *dims] if list(shape) == dims else None


def _sequence(model: Model, sent: Request, place: Place) -> Iterator[Finding]:
    config = model.completed
    if not config.HasField("sequence_batching"):
        return
    name = model.config.name
    batches = {tensor.shape[0] for tensor in sent.inputs.values() if tensor.shape}
    if config.max_batch_size > 0 and batches and max(batches) > 1:
        yield model.find(
            SEQUENCE_BATCH,
            f"{sent.label}: batch {max(batches)}, and a request of a sequence has batch 1",
            place=place,
            says=f"inference request to model '{name}' must specify batch-size 1 due to requirements of "
            "sequence "
            "batcher",
        )
    if not sent.parameters.get("sequence_id") and not config.sequence_batching.iterative_sequence:
        yield model.find(
            SEQUENCE_ID,
            f"{sent.label}: no sequence_id",
            place=place,
            says=f"inference request to model '{name}' must specify a non-zero or non-empty correlation ID",
            hint='"parameters": {"sequence_id": 1, "sequence_start": true}',
        )


def sequences(model: Model, listed: Sequence[Request], place: Place) -> Iterator[Finding]:
    """Sequences that no request of a file starts."""
    batching = model.completed.sequence_batching
    if not model.completed.HasField("sequence_batching") or batching.iterative_sequence:
        return
    firsts: dict[str, Request] = {}
    for sent in listed:
        number = sent.parameters.get("sequence_id")
        if number:
            firsts.setdefault(str(number), sent)
    for number, sent in firsts.items():
        if not sent.parameters.get("sequence_start"):
            yield model.find(
                SEQUENCE_START,
                f"{sent.label}: sequence {number} begins without sequence_start",
                place=place,
                says=f"inference request for sequence {number} to model '{model.config.name}' must specify the START "
                "flag on the first request of the sequence",
                hint='"sequence_start": true',
            )


def _values(model: Model, sent: Request, place: Place) -> Iterator[Finding]:
    """Ids that the model's tables have no row for."""
    for name, rows in sorted((model.graph.lookups if model.graph else {}).items()):
        values = sent.inputs[name].values if name in sent.inputs else None
        numbers = [value for value in values or () if isinstance(value, int)]
        wrong = [value for value in numbers if not -rows <= value < rows]
        if wrong:
            yield model.find(
                BOUNDS,
                f"{sent.label}: {name} holds {wrong[0]}, and its table has {rows} rows",
                place=place,
                says=f"indices element out of data bounds, idx={wrong[0]} must be within the inclusive range "
                f"[{-rows},{rows - 1}]",
                hint=_two_rows(rows) or "use the model's own tokenizer",
            )


def _two_rows(rows: int) -> str | None:
    return "a range of 2 values means the segment table: inputs are swapped" if rows == 2 else None


def _answer(model: Model, answer: str, place: Place) -> Iterator[Finding]:
    """What a server's answer means."""
    match = _BOUNDS.search(answer)
    if match and int(match[3]) == 1:
        yield model.find(
            SWAPPED,
            f"idx={match[1]} is outside of [{match[2]},{match[3]}]: {_two_rows(2)}",
            place=place,
            hint="give inputs by name",
        )
