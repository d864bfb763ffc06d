"""Configuration against model: completion and refusals in the native order and words. Layer: backend data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

DEFAULT_MAX_BATCH_SIZE = 4
"""Triton's `default-max-batch-size`; a Python stub is not told when `--backend-config` sets another one."""

_TYPES = {  # ONNX Runtime's element type: (config's data type, Triton's name for it, ONNX's name)
    "bool": ("TYPE_BOOL", "BOOL", "BOOL"),
    "uint8": ("TYPE_UINT8", "UINT8", "UINT8"),
    "uint16": ("TYPE_UINT16", "UINT16", "UINT16"),
    "uint32": ("TYPE_UINT32", "UINT32", "UINT32"),
    "uint64": ("TYPE_UINT64", "UINT64", "UINT64"),
    "int8": ("TYPE_INT8", "INT8", "INT8"),
    "int16": ("TYPE_INT16", "INT16", "INT16"),
    "int32": ("TYPE_INT32", "INT32", "INT32"),
    "int64": ("TYPE_INT64", "INT64", "INT64"),
    "float16": ("TYPE_FP16", "FP16", "FLOAT16"),
    "float": ("TYPE_FP32", "FP32", "FLOAT"),
    "double": ("TYPE_FP64", "FP64", "DOUBLE"),
    "string": ("TYPE_STRING", "BYTES", "STRING"),
}
_UNKNOWN_TYPE = ("TYPE_INVALID", "<invalid>", "UNDEFINED")
_SUPPORTED = {names[0] for names in _TYPES.values()}
_BOOLEAN_CONTROLS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")
_FALSE_TRUE = {"int32_false_true": "TYPE_INT32", "fp32_false_true": "TYPE_FP32", "bool_false_true": "TYPE_BOOL"}


class Refusal(Exception):
    """The model cannot be loaded or run as configured; the text is the native backend's."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as ONNX Runtime's session reports it; -1 is a dynamic dimension."""

    element: str
    dims: tuple[int, ...]

    @property
    def names(self) -> tuple[str, str, str]:
        return _TYPES.get(self.element, _UNKNOWN_TYPE)


@dataclass(frozen=True)
class Signature:
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    initializers: dict[str, Tensor] = field(default_factory=dict)

    @property
    def can_batch(self) -> bool:
        return all(t.dims and t.dims[0] == -1 for t in (*self.inputs.values(), *self.outputs.values()))


def parse_int(text):
    """C++'s stoi: leading digits count, the rest is ignored."""
    match = re.match(r"\s*[+-]?\d+", text)
    if match is None:
        raise Refusal(f"failed to convert '{text}' to integral number")
    return int(match.group())


def parse_bool(text):
    if text.lower() in ("true", "on", "1"):
        return True
    if text.lower() in ("false", "off", "0"):
        return False
    raise Refusal(f"failed to convert '{text}' to boolean")


def auto_complete(config, read_signature):
    """Fill in what the configuration leaves out, in place; `read_signature` is called only when that is needed."""
    if (config.get("input") or config.get("batch_input")) and config.get("output"):
        return
    signature = read_signature()
    if signature.can_batch:
        if config["max_batch_size"] == 0:
            config["max_batch_size"] = DEFAULT_MAX_BATCH_SIZE
        if config["max_batch_size"] > 1 and not ("sequence_batching" in config or "dynamic_batching" in config):
            config["dynamic_batching"] = {}
    elif config["max_batch_size"] != 0:
        raise Refusal(
            f"autofill failed for model '{config['name']}': model does not support batching while non-zero "
            "max_batch_size is specified"
        )
    if not config.get("input") and not config.get("batch_input"):
        config["input"] = _completed(signature.inputs, config["max_batch_size"] > 0)
    if not config.get("output"):
        config["output"] = _completed(signature.outputs, config["max_batch_size"] > 0)


def _completed(tensors, batching):
    listed = []
    for name, tensor in tensors.items():
        dims = list(tensor.dims[1:] if batching else tensor.dims)
        entry = {"name": name, "data_type": tensor.names[0], "dims": dims or [1]}
        if batching and not dims:
            entry["reshape"] = {"shape": []}
        listed.append(entry)
    return listed


def validate(config, signature):
    """Raise Refusal where the native backend refuses to make an instance."""
    model = config["name"]
    sequence = config.get("sequence_batching", {})
    if sequence.get("state"):
        raise Refusal(
            f"unable to load model '{model}', implicit state is not supported without the native ONNX Runtime backend: "
            "the model would read uninitialized memory; remove `sequence_batching.state` or serve it in the container"
        )
    controls = _check_controls(config, sequence, signature.inputs)
    required = [entry for entry in config["input"] if not entry.get("optional")]
    expected = len(required) + len(config.get("batch_input", [])) + controls
    if expected != len(signature.inputs):
        raise Refusal(
            f"unable to load model '{model}', configuration expects {expected} inputs, "
            f"model provides {len(signature.inputs)}"
        )
    known = signature.inputs | signature.initializers
    for entry in config["input"]:
        _check_input(config, entry, known)
    scattered = {name for output in config.get("batch_output", []) for name in output["target_name"]}
    for entry in config["output"]:
        tensor = _known_tensor(model, "output", entry, signature.outputs)
        if entry["name"] not in scattered:
            _check_shape(config, entry, tensor, exact=True)


def _check_input(config, entry, known):
    model, name = config["name"], entry["name"]
    if entry.get("optional") and config["max_batch_size"] != 0:
        raise Refusal(
            f"unable to load model '{model}', optional input '{name}' is not supported for models that support batching"
        )
    tensor = _known_tensor(model, "input", entry, known)
    if not entry.get("allow_ragged_batch"):
        _check_shape(config, entry, tensor, exact=False)
    elif entry.get("optional"):
        raise Refusal(
            f"unable to load model '{model}', configuration expects model provides input with shape [-1] for ragged "
            f"input '{name}', which is not supported for optional input"
        )
    elif tensor.dims != (-1,):
        raise Refusal(
            f"unable to load model '{model}', configuration expects model provides input with shape [-1]  for ragged "
            f"input '{name}', model provides {_shape(tensor.dims)}"
        )


def _known_tensor(model, kind, entry, known):
    name, data_type = entry["name"], entry["data_type"]
    if name not in known:
        raise Refusal(f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(sorted(known))}")
    if data_type not in _SUPPORTED:
        raise Refusal(f"unsupported datatype {data_type} for {kind} '{name}' for model '{model}'")
    tensor = known[name]
    if tensor.names[0] != data_type:
        raise Refusal(
            f"unable to load model '{model}', configuration expects datatype {data_type} for {kind} '{name}', "
            f"model provides TYPE_{tensor.names[1]}"
        )
    return tensor


def _check_shape(config, entry, tensor, exact):
    """Inputs may be narrower than the model (`exact` false); outputs must repeat what the session reports."""
    dims = config_dims(entry)
    where = f"model '{config['name']}', tensor '{entry['name']}'"
    if not tensor.dims:
        if any(dim != 1 for dim in dims):
            raise Refusal(
                f"unable to load model '{config['name']}', scalar tensor '{entry['name']}', should only provide 1 in "
                "the model configuration when the model doesn't support batching. Model configuration provided: "
                f"{_shape(dims)}."
            )
        return
    batching = config["max_batch_size"] > 0
    if batching and tensor.dims[0] != -1:
        raise Refusal(
            f"{where}: for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {_shape(tensor.dims)}"
        )
    full = [-1, *dims] if batching else dims
    fits = len(full) == len(tensor.dims) and all(
        have == want or (have == -1 and not exact) for have, want in zip(tensor.dims, full, strict=True)
    )
    if fits:
        return
    detail = f"shape {_shape(full)}"
    if batching:
        detail = (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            f"complete shape {_shape(full)}"
        )
    raise Refusal(
        f"{where}: the model expects {len(tensor.dims)} dimensions (shape {_shape(tensor.dims)}) but the model "
        f"configuration specifies {len(full)} dimensions ({detail})"
    )


def config_dims(entry):
    """The dimensions the model sees: `reshape` replaces `dims`."""
    return [int(dim) for dim in (entry["reshape"]["shape"] if "reshape" in entry else entry["dims"])]


def _shape(dims):
    return "[" + ",".join(str(dim) for dim in dims) + "]"


def _check_controls(config, sequence, inputs):
    """Check the sequence controls against the model; the number of them."""
    count = 0
    for kind in (*_BOOLEAN_CONTROLS, "CONTROL_SEQUENCE_CORRID"):
        for control_input in sequence.get("control_input", []):
            for control in control_input["control"]:
                if control["kind"] == kind:
                    count += 1
                    _check_control(config, control_input["name"], _control_type(control), inputs)
    return count


def _control_type(control):
    return next((type_ for key, type_ in _FALSE_TRUE.items() if control.get(key)), control.get("data_type"))


def _check_control(config, name, data_type, inputs):
    if name not in inputs:
        raise Refusal(f"configuration specified sequence control '{name}', but model does not provide that input")
    where = f"unable to load model '{config['name']}', sequence control '{name}'"
    dims = inputs[name].dims[1 if config["max_batch_size"] > 0 else 0 :]
    if dims != (1,):
        raise Refusal(f"{where} in model has dims {_shape(dims)} but dims [1] is expected")
    if inputs[name].names[0] != data_type:
        raise Refusal(
            f"{where}, the model expects data-type {inputs[name].names[2]} but the model configuration specifies "
            f"data-type {data_type}"
        )
