"""The constant tensors of an ONNX graph, and those that half precision cannot hold. Layer: export adapter of onnx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

HALF_MAX: Final = 65504.0


def spell_out(graph: Any) -> None:
    """Write the numbers that Constant operators hold as plain floats as tensors, in subgraphs too: `constants` finds
    those, and so do tools that convert types."""
    from onnx import TensorProto, helper

    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                spell_out(attribute.g)
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                one = attribute.name == "value_float"
                values = [attribute.f] if one else list(attribute.floats)
                tensor = helper.make_tensor(node.output[0], TensorProto.FLOAT, [] if one else [len(values)], values)
                attribute.CopyFrom(helper.make_attribute("value", tensor))


def constants(graph: Any) -> Iterator[tuple[str, Any]]:
    """The name and tensor of each weight, and of each tensor that an operator holds, in subgraphs too."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield next(iter(node.output), node.name), attribute.t
            if attribute.HasField("g"):
                yield from constants(attribute.g)


def beyond_half(path: Path) -> dict[str, float]:
    """The constants that become infinite in half precision, each with its largest finite magnitude.

    Weights beside the file are read one at a time; those that onnx does not open, as behind links, are passed over.
    """
    import numpy as np
    import onnx
    from onnx import numpy_helper
    from onnx.checker import ValidationError

    found = {}
    graph = onnx.load(path, load_external_data=False).graph
    spell_out(graph)
    for name, tensor in constants(graph):
        if tensor.data_type not in (tensor.FLOAT, tensor.DOUBLE, tensor.BFLOAT16):
            continue
        try:
            values = np.abs(numpy_helper.to_array(tensor, str(path.parent)).astype(np.float64))
        except (ValidationError, OSError):
            continue
        most = float(values.max(initial=0.0, where=np.isfinite(values)))
        if most > HALF_MAX:
            found[name] = most
    return found
