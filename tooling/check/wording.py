"""What several backends of Triton say in the same words. Layer: check."""

from __future__ import annotations

from collections.abc import Sequence


def shape_text(dims: Sequence[int]) -> str:
    """A shape as the server writes it."""
    return f"[{','.join(map(str, dims))}]"


def shapes_differ(model: str, tensor: str, have: Sequence[int], written: Sequence[int], *, batching: bool) -> str:
    """The refusal of a tensor whose whole shape in the config is `written`, and `have` in the model."""
    detail = f"shape {shape_text(written)}"
    if batching:
        detail = (
            "an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making "
            f"complete shape {shape_text(written)}"
        )
    return (
        f"model '{model}', tensor '{tensor}': the model expects {len(have)} dimensions (shape {shape_text(have)}) but "
        f"the model configuration specifies {len(written)} dimensions ({detail})"
    )
