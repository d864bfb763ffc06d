"""What an input means, which tells what values it takes. Layer: signature."""

from __future__ import annotations

from tooling.signature.spec import TensorSpec


def role(spec: TensorSpec) -> str:
    """`ids`, `ones`, `zeros`, `positions` or `values`: by the names of transformers' inputs, else by type and axes."""
    name = spec.name.lower()
    for word, meaning in (("mask", "ones"), ("type", "zeros"), ("segment", "zeros"), ("position", "positions")):
        if word in name:
            return meaning
    if "INT" not in spec.data_type:
        return "values"
    return "ids" if "ids" in name or "token" in name or -1 in spec.dims[1:] else "zeros"
