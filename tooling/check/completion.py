"""What the ONNX Runtime backend writes into a config that leaves tensors out. Layer: check.

Facts: the backend's AutoCompleteConfig; `--disable-auto-complete-config` switches it off.
"""

from __future__ import annotations

from typing import Any

from tooling.check.fill import normalise
from tooling.config.proto import ModelConfig, pb
from tooling.signature.spec import ModelSignature, TensorSpec


def leaves_out(config: ModelConfig) -> bool:
    """Whether the backend completes this config at all: it does not when inputs and outputs both stand there."""
    return not ((config.input or config.batch_input) and config.output)


def complete(config: ModelConfig, signature: ModelSignature, default_max_batch_size: int) -> ModelConfig | None:
    """A completed copy of the config; None when the backend refuses to, because the model cannot batch."""
    result = pb().ModelConfig()
    result.CopyFrom(config)
    if not leaves_out(config):
        return result
    if signature.can_batch:
        result.max_batch_size = result.max_batch_size or max(default_max_batch_size, 0)
        if result.max_batch_size > 1 and result.WhichOneof("scheduling_choice") is None:
            result.dynamic_batching.SetInParent()
    elif result.max_batch_size != 0:
        return None
    batching = result.max_batch_size > 0
    if not result.input and not result.batch_input:
        for tensor in signature.required_inputs:
            _fill(result.input.add(), tensor, batching)
    if not result.output:
        for tensor in signature.outputs:
            _fill(result.output.add(), tensor, batching)
    normalise(result)
    return result


def _fill(target: Any, tensor: TensorSpec, batching: bool) -> None:
    dims = tensor.dims[1:] if batching else tensor.dims
    target.name = tensor.name
    target.data_type = pb().DataType.Value(tensor.data_type)
    target.dims[:] = dims or [1]
    if batching and not dims:
        target.reshape.SetInParent()
