"""Rules about sequence controls and the ONNX model that takes them. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tooling.check.finding import Finding
from tooling.check.rules.kinds import load
from tooling.check.rules.onnx_pair import SOURCE, Pair, X, Y
from tooling.check.sizes import type_name
from tooling.check.wording import shape_text
from tooling.config.proto import pb
from tooling.signature.spec import TensorSpec

_PASSES: Final = (
    *("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY"),
    "CONTROL_SEQUENCE_CORRID",
)
_FALSE_TRUE: Final = {"int32_false_true": "TYPE_INT32", "fp32_false_true": "TYPE_FP32", "bool_false_true": "TYPE_BOOL"}
_ONNX_NAMES: Final = {"FP16": "FLOAT16", "FP32": "FLOAT", "FP64": "DOUBLE"}

CONTROL_MISSING = load(
    "control-not-in-model",
    "A sequence control is no input of the model.",
    "Every control feeds an input of the model file.",
    f'max_batch_size: 8\ninput {{ {X} }}\n{Y}\nsequence_batching {{ control_input {{ name: "START" control {{ '
    "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }",
    SOURCE,
)
CONTROL_SHAPE = load(
    "control-shape",
    "A sequence control has another shape than [1].",
    "Beside the batch axis there is one axis of length 1.",
    f'max_batch_size: 8\ninput {{ {X} }}\n{Y}\nsequence_batching {{ control_input {{ name: "c" control {{ '
    "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }\n--- 1/model.onnx\n"
    "x: FP32 [batch, 8], c: INT32 [batch, 2] -> y: FP32 [batch, 8]",
    SOURCE,
)
CONTROL_TYPE = load(
    "control-type",
    "A sequence control has another type than the model's input.",
    "The list of values gives the type: int32_false_true is TYPE_INT32.",
    f'max_batch_size: 8\ninput {{ {X} }}\n{Y}\nsequence_batching {{ control_input {{ name: "c" control {{ '
    "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }\n--- 1/model.onnx\n"
    "x: FP32 [batch, 8], c: FP32 [batch, 1] -> y: FP32 [batch, 8]",
    SOURCE,
)
RULES = (CONTROL_MISSING, CONTROL_SHAPE, CONTROL_TYPE)


def controls(pair: Pair, inputs: Mapping[str, TensorSpec]) -> Iterator[Finding]:
    """Each control, kind by kind, as the backend looks for them."""
    kinds = pb().ModelSequenceBatching.Control.Kind
    entries = list(enumerate(pair.config.sequence_batching.control_input))
    for kind in _PASSES:
        for index, entry in entries:
            for control in entry.control:
                if control.kind == kinds.Value(kind):
                    yield from _control(pair, index, entry.name, control, inputs)


def _control(pair: Pair, index: int, name: str, control: Any, inputs: Mapping[str, TensorSpec]) -> Iterator[Finding]:
    where = ("sequence_batching", "control_input", index)
    if name not in inputs:
        yield pair.model.find(
            CONTROL_MISSING,
            f"sequence control {name} is not an input of the model; inputs are {', '.join(inputs)}",
            *where,
            says=f"configuration specified sequence control '{name}', but model does not provide that input",
            hint="remove the control, or export a model that takes it",
        )
        return
    tensor = inputs[name]
    start = f"unable to load model '{pair.name}', sequence control '{name}'"
    dims = tensor.dims[1 if pair.top > 0 else 0 :]
    if dims != (1,):
        yield pair.model.find(
            CONTROL_SHAPE,
            f"sequence control {name} has dims {shape_text(dims)} in the model, and [1] is expected",
            *where,
            says=f"{start} in model has dims {shape_text(dims)} but dims [1] is expected",
        )
    data_type = next((kind for field, kind in _FALSE_TRUE.items() if getattr(control, field)), None)
    data_type = data_type or type_name(control.data_type)
    if tensor.data_type != data_type:
        short = tensor.data_type.removeprefix("TYPE_")
        yield pair.model.find(
            CONTROL_TYPE,
            f"sequence control {name}: model {short}, config {data_type}",
            *where,
            says=f"{start}, the model expects data-type {_ONNX_NAMES.get(short, short)} but the model configuration "
            "specifies "
            f"data-type {data_type}",
        )
