"""The signature that a config states, for models whose file does not say one. Layer: config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tooling.config.proto import ModelConfig, backend_of, pb
from tooling.signature.spec import ModelSignature, TensorSpec


def tensor_spec(tensor: Any, *, batching: bool) -> TensorSpec:
    """A tensor of a config with the full shape that the model itself sees: after reshaping, batch axis first."""
    shape = tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    optional = bool(getattr(tensor, "optional", False))
    name = pb().DataType.Name(tensor.data_type)
    full = (-1, *shape) if batching else shape
    return TensorSpec(tensor.name, name, full, optional, tensor.is_shape_tensor, bool(tensor.is_non_linear_format_io))


def signature_of(config: ModelConfig, where: Path) -> ModelSignature:
    """Inputs and outputs as the config lists them; `where` is what messages name."""
    batching = config.max_batch_size > 0
    return ModelSignature(
        where,
        backend_of(config),
        tuple(tensor_spec(tensor, batching=batching) for tensor in config.input),
        tuple(tensor_spec(tensor, batching=batching) for tensor in config.output),
        max_batch_size=config.max_batch_size,
        decoupled=config.model_transaction_policy.decoupled,
    )
