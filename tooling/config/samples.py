"""Code that goes with a config: a Python model to fill in, and a client that sends right requests. Layer: config."""

from __future__ import annotations

import json
from typing import Any, Final

from tooling.config.proto import ModelConfig, pb
from tooling.config.templates import environment
from tooling.errors import UsageError
from tooling.signature.declared import Declared
from tooling.signature.spec import TensorSpec

_NUMPY: Final = {
    "TYPE_BOOL": "bool_",
    **{f"TYPE_{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
    "TYPE_BF16": "float32",
}
_LENGTH: Final = 8  # of an axis of any length, in a sample request
# vLLM's backend completes its inputs itself; this is the one it needs.
_PROMPT: Final = {
    "name": '"text_input"',
    "string": True,
    "optional": False,
    "value": '("BYTES", np.array(TEXTS[:1], dtype=np.object_))',
}


def python_model(name: str, declared: Declared, max_batch_size: int, *, decoupled: bool) -> str:
    """The text of a `model.py` that loads as it is and answers zeros, once or as often as it likes if `decoupled`.

    Raises UsageError without tensors, and for BF16, which numpy has no type for.
    """
    for what, tensors in (("--input", declared.inputs), ("--output-tensor", declared.outputs)):
        if not tensors:
            raise UsageError("a template needs tensors", where=what, expected="NAME:TYPE:DIMS, such as x:FP32:-1,3")
        for tensor in tensors:
            if tensor.data_type == "TYPE_BF16":
                raise UsageError(
                    "numpy has no bfloat16, so a Python model cannot be started from the template",
                    where=what,
                    got=f"`{tensor.name}`",
                    hint="take FP32 and convert inside",
                )
    return (
        environment()
        .get_template("model.py.j2")
        .render(
            name=name,
            inputs=[_python_tensor(tensor, max_batch_size > 0) for tensor in declared.inputs],
            outputs=[_python_tensor(tensor, max_batch_size > 0) for tensor in declared.outputs],
            max_batch_size=max_batch_size,
            decoupled=decoupled,
        )
    )


def _python_tensor(tensor: TensorSpec, batching: bool) -> str:
    dims = list(tensor.dims[1:] if batching else tensor.dims) or [1]
    return f'{{"name": {json.dumps(tensor.name)}, "data_type": "{tensor.data_type}", "dims": {dims}}}'


def client_sample(config: ModelConfig) -> str:
    """The text of a client for the model: its inputs and no others, strings as objects, streamed where decoupled."""
    inputs = [_sample(tensor, config.max_batch_size) for tensor in config.input] or [_PROMPT]
    return (
        environment()
        .get_template("client.py.j2")
        .render(
            name=config.name,
            decoupled=config.model_transaction_policy.decoupled,
            inputs=inputs,
            strings=any(tensor["string"] for tensor in inputs),
        )
    )


def _sample(tensor: Any, max_batch_size: int) -> dict[str, Any]:
    """One input of the sample request: its protocol type and an array of two rows, or one where that is the most."""
    data_type = pb().DataType.Name(tensor.data_type)
    dims = [_LENGTH if dim == -1 else dim for dim in tensor.dims]
    rows = min(max_batch_size, 2)
    if rows == 0 and len(dims) > 1 and tensor.dims[0] == -1:
        dims[0] = 1
    shape = [rows, *dims] if rows else dims
    if data_type != "TYPE_STRING":
        protocol, array = data_type.removeprefix("TYPE_"), f"np.zeros({shape}, dtype=np.{_NUMPY[data_type]})"
    elif shape[0] <= 2 and all(length == 1 for length in shape[1:]):
        cells = "[" * (len(shape) - 1) + "text" + "]" * (len(shape) - 1)
        protocol, array = "BYTES", f"np.array([{cells} for text in TEXTS[:{shape[0]}]], dtype=np.object_)"
    else:
        protocol, array = "BYTES", f"np.full({shape}, TEXTS[0], dtype=np.object_)"
    return {
        "name": json.dumps(tensor.name),
        "string": data_type == "TYPE_STRING",
        "optional": tensor.optional,
        "value": f'("{protocol}", {array})',
    }
