"""Output shapes as a session of ONNX Runtime reports them, opened without the weights. Layer: signature."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_SMALL: Final = 4096  # bytes; as in the skeleton of a file: shapes are computed from smaller tensors
_FATAL: Final = 4  # the log level at which a session that cannot be made says nothing: its exception is enough
_DATA: Final = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def session_outputs(path: Path, model: Any) -> Mapping[str, tuple[int, ...]]:
    """The shape of each output (-1: any length) as ONNX Runtime sees it; empty where it is not installed, or refuses.

    `model` is the file without the data of its large weights. They become inputs here: nothing is loaded and nothing
    run. It is optimised as on the server, whose optimiser turns a Reshape to computed lengths into one to fixed
    lengths, and operators of its own are known. An empty shape is left out: it stands for a scalar and for an unknown.
    """
    try:
        import onnxruntime
    except ImportError:
        return {}
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = 1
    options.log_severity_level = _FATAL
    light = _without_weights(path, model).SerializeToString()
    try:
        # The fallback would print on stdout, and try the same again.
        session = onnxruntime.InferenceSession(light, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception:  # an operator it does not know, a graph it refuses: its exceptions have no common class
        return {}
    shapes = {output.name: output.shape for output in session.get_outputs()}
    return {name: tuple(d if isinstance(d, int) else -1 for d in shape) for name, shape in shapes.items() if shape}


def _without_weights(path: Path, model: Any) -> Any:
    """A copy in which every tensor without its data is an input; small ones kept in other files are read."""
    from onnx import helper

    light = type(model)()
    light.CopyFrom(model)
    graph = light.graph
    present = {value.name for value in graph.input}
    kept = []
    for tensor in graph.initializer:
        if _has_data(tensor, path.parent):
            kept.append(tensor)
        elif tensor.name not in present:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    whole = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(whole)
    return light


def _has_data(tensor: Any, folder: Path) -> bool:
    """Whether a tensor holds its values, after those of a small one are fetched from the file that holds them."""
    if tensor.data_location == tensor.EXTERNAL:
        from onnx.external_data_helper import load_external_data_for_tensor

        length = next((entry.value for entry in tensor.external_data if entry.key == "length"), "")
        if not length.isdecimal() or int(length) > _SMALL:
            return False
        try:
            load_external_data_for_tensor(tensor, str(folder))
        except Exception:  # missing, too short, or outside of the folder: whoever reads weights will say so
            return False
    return 0 in tensor.dims or any(len(getattr(tensor, field)) for field in _DATA)
