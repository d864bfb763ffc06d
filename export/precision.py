"""Half precision, 8-bit weights, fused operators of an exported model. Layer: export adapter of onnxruntime's tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from export.constants import HALF_MAX, constants, spell_out
from export.model_file import model_bytes
from export.options import INLINE_BYTES, ExportOptions
from export.source import first_line, missing_library
from tooling.errors import ExternalError

# Sums, squares and roots overflow or vanish in half precision: they, and so every norm made of them, stay as they are.
_SINGLE: Final = (
    "Pow",
    "ReduceMean",
    "ReduceSum",
    "ReduceL2",
    "ReduceSumSquare",
    "Sqrt",
    "Reciprocal",
    "CumSum",
    "Clip",
)
# Far enough for a softmax to give 0, near enough that two of them, or one and a score, stay finite in half precision.
_MASK: Final = -10_000.0
# What onnxruntime's optimiser calls the families it has patterns for; encoders not named here are like BERT.
_FAMILIES: Final[Mapping[str, str]] = {
    "bart": "bart", "clip": "clip", "gpt2": "gpt2", "gpt_neox": "gpt_neox", "phi": "phi", "qwen3": "qwen3", "t5": "t5",
    "mt5": "t5", "swin": "swin", "vit": "vit", "deit": "vit",
}  # fmt: skip
_FUSED_DOMAIN: Final = "com.microsoft"


def convert(path: Path, scratch: Path, options: ExportOptions, config: Any) -> tuple[Path, dict[str, int]]:
    """Optimise, then convert, as the options say; the last file, and how many operators of each kind were fused.

    `config` is that of transformers: the optimiser asks it for the family, and the size of the attention.

    Raises MissingError without onnxruntime, ExternalError when one of its tools fails.
    """
    fused: dict[str, int] = {}
    try:
        if options.optimize:
            path, fused = _optimize(path, scratch / "optimised.onnx", config)
        if options.precision == "fp16":
            path = _to_half(path, scratch / "half.onnx", convert_io=options.convert_io)
        elif options.precision == "int8":
            path = _to_int8(path, scratch / "int8.onnx")
    except ImportError as error:
        raise missing_library(error, "cpu") from error
    except OSError:
        raise
    except Exception as error:  # the tools assume much about a graph, and fail with whatever they meet
        raise ExternalError(
            "onnxruntime cannot convert the model",
            got=first_line(error),
            hint="leave --optimize out, or use --precision fp32",
        ) from error
    return path, fused


def _optimize(path: Path, target: Path, config: Any) -> tuple[Path, dict[str, int]]:
    """Fuse what onnxruntime's transformer optimiser has patterns for."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    family = str(config.model_type).removesuffix("_text_model").removesuffix("_vision_model")
    kind = _FAMILIES.get(family, "bert")
    fusions = FusionOptions(kind)
    fusions.use_raw_attention_mask()  # otherwise a count of tokens, which padding on the left is not
    heads, width = (getattr(config, name, 0) for name in ("num_attention_heads", "hidden_size"))
    plain = isinstance(heads, int) and isinstance(width, int)  # not so where stages differ
    optimised = optimizer.optimize_model(
        str(path),
        model_type=kind,
        num_heads=heads if plain else 0,
        hidden_size=width if plain else 0,
        optimization_options=fusions,
        opt_level=0,
    )
    counted = Counter(node.op_type for node in optimised.model.graph.node if node.domain == _FUSED_DOMAIN)
    if counted and all(entry.domain != _FUSED_DOMAIN for entry in optimised.model.opset_import):
        optimised.model.opset_import.add(domain=_FUSED_DOMAIN, version=1)
    _save(optimised.model, target)
    return target, dict(sorted(counted.items()))


def _to_half(path: Path, target: Path, *, convert_io: bool) -> Path:
    """Half precision; inputs and outputs only with `convert_io`. Sums, norms and indices stay single."""
    import onnx
    from onnxruntime.transformers import float16

    model = onnx.load(path)
    spell_out(model.graph)
    _tame_masks(model)
    blocked = [*float16.DEFAULT_OP_BLOCK_LIST, *_SINGLE]
    half = float16.convert_float_to_float16(
        model,
        keep_io_types=not convert_io,
        op_block_list=blocked,
        disable_shape_infer=model_bytes(path) > INLINE_BYTES,  # it would need the model as one message
    )
    _save(half, target)
    return target


def _to_int8(path: Path, target: Path) -> Path:
    """8-bit weights of matrix products; activations are quantised as they come.

    One scale for each output channel, and 7 bits, because sums of 8-bit products saturate on CPUs without VNNI.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        path,
        target,
        op_types_to_quantize=["MatMul", "Attention"],
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
        use_external_data_format=model_bytes(path) > INLINE_BYTES,
        extra_options={"MatMulConstBOnly": True},
    )
    return target


def _save(model: Any, target: Path) -> None:
    import onnx_ir

    large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > INLINE_BYTES
    onnx_ir.save(onnx_ir.from_proto(model), target, external_data=f"{target.name}.data" if large else None)


def _tame_masks(model: Any) -> None:
    """Replace constants beyond half precision, which masks are made of, by one that survives being added to."""
    import numpy as np
    from onnx import numpy_helper

    for _, tensor in constants(model.graph):
        if tensor.data_type != tensor.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        beyond = np.abs(values) > HALF_MAX
        if beyond.any():
            tamed = np.where(beyond, np.sign(values) * -_MASK, values).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(tamed, tensor.name))
