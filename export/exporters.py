"""torch's two ONNX exporters, made to give files alike: names, order, axes, inputs. Layer: export adapter of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from export.graph import Graph
from export.plan import ExportPlan
from export.source import first_line
from tooling.errors import ExternalError, UsageError

DYNAMO: Final = "dynamo"
TORCHSCRIPT: Final = "torchscript"
# In the order of trying, with the opsets that each writes. Where both verify their files are equally fast, and the
# first takes a tenth of the time: the figures are in docs/export.md.
_OPSETS: Final = {TORCHSCRIPT: range(14, 21), DYNAMO: range(18, 24)}
# The IR version that came with an opset: a file asks for no newer reader than it needs.
_IR_SINCE: Final = ((23, 11), (21, 10), (19, 9), (15, 8), (0, 7))


@dataclass(frozen=True, slots=True)
class Written:
    """A model as onnx_ir holds it, and the inputs of the graph that turned out to influence no output."""

    model: Any
    dropped: tuple[str, ...]


def candidates(plan: ExportPlan, asked: str | None) -> tuple[str, ...]:
    """The exporters to try in turn: those that write the opset, or the one that is asked for.

    Raises UsageError when that one does not write it.
    """
    if asked is None:
        return tuple(name for name, opsets in _OPSETS.items() if plan.opset in opsets)
    if plan.opset not in _OPSETS[asked]:
        opsets = _OPSETS[asked]
        raise UsageError(
            f"the exporter `{asked}` does not write this opset",
            got=plan.opset,
            expected=f"{opsets[0]} to {opsets[-1]}",
            hint="leave --exporter out",
        )
    return (asked,)


def run_exporter(name: str, graph: Graph, plan: ExportPlan, scratch: Path) -> Written:
    """Convert the graph; weights stay where they are until the model is saved, or in `scratch`.

    Raises ExternalError with torch's reason when the exporter gives up, OSError when the disk does.
    """
    import torch

    try:
        with torch.no_grad():
            model = _EXPORTERS[name](graph, plan, scratch)
    except OSError:
        raise
    except Exception as error:  # exporters fail with many kinds, those of the traced model included
        raise ExternalError(
            f"torch's exporter `{name}` cannot export the model",
            got=first_line(error),
            hint="see the log with -v",
        ) from error
    return Written(model, _tidy(model, graph, plan))


def _dynamo(graph: Graph, plan: ExportPlan, scratch: Path) -> Any:
    import torch

    axes = tuple(dict.fromkeys(free, torch.export.Dim.AUTO) for free in graph.inputs.values())
    named, more = axes[: _fixed_arguments(graph)], axes[_fixed_arguments(graph) :]
    shapes = (*named, more) if more else named
    program = torch.export.export(graph.module, graph.arguments, dynamic_shapes=shapes, strict=False)
    converted = torch.onnx.export(
        program,
        (),
        input_names=list(graph.inputs),
        output_names=list(graph.outputs),
        opset_version=plan.opset,
        dynamo=True,
        verbose=False,
    )
    assert converted is not None
    return converted.model


def _fixed_arguments(graph: Graph) -> int:
    """How many arguments `forward` names; the others arrive as one tuple, and so do their axes."""
    return int(graph.module.forward.__func__.__code__.co_argcount) - 1


def _torchscript(graph: Graph, plan: ExportPlan, scratch: Path) -> Any:
    import onnx_ir
    import torch

    path = scratch / "traced.onnx"
    torch.onnx.export(
        graph.module,
        graph.arguments,
        str(path),
        input_names=list(graph.inputs),
        output_names=list(graph.outputs),
        dynamic_axes={**graph.inputs, **graph.outputs},
        opset_version=plan.opset,
        dynamo=False,
    )
    return onnx_ir.load(path)


_EXPORTERS: Final[Mapping[str, Callable[[Graph, ExportPlan, Path], Any]]] = {
    DYNAMO: _dynamo,
    TORCHSCRIPT: _torchscript,
}


def _tidy(model: Any, graph: Graph, plan: ExportPlan) -> tuple[str, ...]:
    """Name the free axes, leave out unused inputs, source paths and notes; the names of the inputs left out."""
    found = {value.name: value for value in model.graph.inputs}
    known: dict[str, str] = {}
    for name, free in graph.inputs.items():
        if name in found:
            known |= {str(_symbol(found[name].shape[axis])): symbol for axis, symbol in free.items()}
    for value in (*found.values(), *model.graph.outputs):
        _name_axes(value, {**graph.inputs, **graph.outputs}[value.name])
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            _rename_axes(value, known)
            value.metadata_props.clear()
    for holder in (model, model.graph, *found.values(), *model.graph.outputs, *model.graph.initializers.values()):
        holder.metadata_props.clear()
        holder.doc_string = None
    model.ir_version = min(plan.max_ir, ir_of(plan.opset))
    unused = [name for name, value in found.items() if not value.uses() and not value.is_graph_output()]
    for name in unused:
        model.graph.inputs.remove(found[name])
    return tuple(name for name in graph.inputs if name not in found or name in unused)


def ir_of(opset: int) -> int:
    """The IR version that came with an opset."""
    return next(ir for since, ir in _IR_SINCE if opset >= since)


def _name_axes(value: Any, free: Mapping[int, str]) -> None:
    import onnx_ir

    if value.shape is not None:
        value.shape = onnx_ir.Shape([free.get(axis, dim) for axis, dim in enumerate(value.shape)])


def _symbol(dim: Any) -> Any:
    return getattr(dim, "value", dim)


def _rename_axes(value: Any, known: Mapping[str, str]) -> None:
    import onnx_ir

    if value.shape is not None and not value.is_graph_output():
        dims = (dim if isinstance(dim, int) else known.get(str(_symbol(dim))) for dim in value.shape)
        value.shape = onnx_ir.Shape(list(dims))
