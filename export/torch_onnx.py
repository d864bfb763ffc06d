"""From a source to an ONNX file and a torch reference for it; nothing else uses torch. Layer: export adapter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from export.plan import Dense, ExportPlan, Pool, Step
from export.source import WEIGHTS_FILE, Source, first_line, missing_library
from tooling.errors import ExternalError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Row = Mapping[str, NDArray[np.int64]]
    Reference = Callable[[Row], NDArray[np.float32]]

# The file is as fast on ONNX Runtime 1.19.2 as that of the torch.export based exporter (sdpa attention costs some per
# cent), and is made in a third of the time and with a quarter less memory: the table in docs/export.md.
EXPORTER: Final = "torch.onnx.export(dynamo=False), eager attention"

_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
_LIMIT_BYTES: Final = 2_000_000_000  # protobuf ends at 2 GiB; the graph itself needs some room
# Finite, and small enough to stay what they are when the graph is converted to half precision.
_MASKED: Final = -65504.0
_TINY: Final = 1e-6


@dataclass(frozen=True, slots=True)
class TorchModel:
    """The loaded transformer, the names of the inputs it is given, and the layers of the plan's Dense steps."""

    transformer: Any
    inputs: tuple[str, ...]
    layers: Mapping[Dense, Any]


def load_model(source: Source, plan: ExportPlan) -> TorchModel:
    """Load the weights in single precision; code that comes with a model is never run.

    Raises MissingError without torch and transformers, UsageError when the directory does not hold the whole model.
    """
    try:
        import torch
        from transformers import AutoModel
    except ImportError as error:
        raise missing_library(error) from error
    try:
        transformer, report = AutoModel.from_pretrained(
            source.directory,
            attn_implementation="eager",
            dtype=torch.float32,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises whatever it meets in a directory that it cannot make a model of
        raise UsageError(
            "transformers cannot load the model",
            where=source.directory,
            got=first_line(error),
            hint="use a model whose code is part of transformers, and weights that belong to its config.json",
        ) from error
    _check_complete(source, report["missing_keys"], transformer)
    transformer.eval()
    transformer.config.use_cache = False
    taken = inspect.signature(transformer.forward).parameters
    # One token type carries no information, and the tokenizers of such models do not make the tensor.
    inputs = tuple(n for n in _INPUTS if n in taken and (n != "token_type_ids" or plan.token_types > 1))
    if not {"input_ids", "attention_mask"} <= set(inputs):
        raise UsageError(
            "the model does not take a padded batch",
            where=source.directory,
            got=f"inputs {', '.join(taken)}",
            expected="a model with input_ids and attention_mask",
        )
    layers = {step: _linear(step.folder / WEIGHTS_FILE) for step in plan.steps if isinstance(step, Dense)}
    return TorchModel(transformer, inputs, layers)


def _check_complete(source: Source, missing: Sequence[str], transformer: Any) -> None:
    """Weights that a file lacks would be random numbers; only the unused pooling layer of BERT may be absent."""
    lacking = sorted(name for name in missing if not name.startswith("pooler."))
    if lacking:
        raise UsageError(
            f"{len(lacking)} weights of the model are missing",
            where=source.weights[0],
            got=f"no `{lacking[0]}`",
            expected="every weight of the architecture in config.json",
            hint="download the model again, or save the whole model with `save_pretrained`",
        )
    size = sum(p.numel() * p.element_size() for p in transformer.parameters())
    if size > _LIMIT_BYTES:
        raise UsageError(
            "too large for one ONNX file",
            where=source.directory,
            got=f"{size / 1e9:.1f} GB of weights in single precision",
            expected=f"at most {_LIMIT_BYTES / 1e9:.0f} GB",
            hint="export a smaller model",
        )


def _linear(path: Path) -> Any:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
        weight, bias = weights["linear.weight"].float(), weights.get("linear.bias")
    except (OSError, SafetensorError, KeyError) as error:
        raise UsageError(
            "not the weights of a Dense module", where=path, got=first_line(error), expected="`linear.weight`"
        ) from error
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer.requires_grad_(False)


def write_onnx(model: TorchModel, plan: ExportPlan, path: Path) -> None:
    """Write the model with its steps as one ONNX file with free batch and sequence axes.

    Raises ExternalError with torch's reason when the exporter gives up, OSError when the file cannot be written.
    """
    import torch

    axes = {name: {0: "batch", 1: "sequence"} for name in model.inputs}
    axes[plan.output] = {0: "batch"} if plan.steps else {0: "batch", 1: "sequence"}
    try:
        with torch.no_grad():
            torch.onnx.export(
                _embedder(model, plan.steps),
                _sample(model, plan),
                str(path),
                input_names=list(model.inputs),
                output_names=[plan.output],
                dynamic_axes=axes,
                opset_version=plan.opset,
                dynamo=False,
            )
    except OSError:
        raise
    except Exception as error:  # the exporter fails with many kinds, those of the traced model included
        raise ExternalError(
            "torch cannot export the model", got=first_line(error), hint="see the log with -v"
        ) from error


def _sample(model: TorchModel, plan: ExportPlan) -> tuple[Any, ...]:
    """Two rows, one padded: with a batch of 1 or without padding the trace would take shortcuts."""
    import torch

    length = min(8, plan.max_tokens)
    tensors = {name: torch.zeros((2, length), dtype=torch.int64) for name in model.inputs}
    tensors["input_ids"] += (plan.pad_token + 1) % plan.vocabulary
    tensors["attention_mask"] += 1
    tensors["attention_mask"][1, length // 2 :] = 0
    return tuple(tensors[name] for name in model.inputs)


def _embedder(model: TorchModel, steps: Sequence[Step]) -> Any:
    """The module that is traced: transformer, then the steps on padded rows."""
    from torch import nn

    class Embedder(nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.transformer = model.transformer

        def forward(self, *tensors: Any) -> Any:
            named = dict(zip(model.inputs, tensors, strict=True))
            vectors = self.transformer(**named, return_dict=True).last_hidden_state
            for step in steps:
                if isinstance(step, Pool):
                    vectors = _pool_padded(step.mode, vectors, named["attention_mask"])
                else:
                    vectors = _after_pooling(step, vectors, model.layers)
            return vectors

    return Embedder().eval()


def _pool_padded(mode: str, vectors: Any, mask: Any) -> Any:
    import torch

    if mode == "cls":
        return vectors[:, 0]
    if mode == "lasttoken":
        # The largest unmasked position, by ReduceMax: ONNX Runtime before 1.20 has no ArgMax for int64.
        positions = torch.arange(mask.shape[1])
        last = (mask * positions).amax(dim=1, keepdim=True)
        return (vectors * (positions == last).unsqueeze(-1).to(vectors.dtype)).sum(dim=1)
    kept = mask.unsqueeze(-1).to(vectors.dtype)
    if mode == "max":
        return vectors.masked_fill(kept == 0, _MASKED).amax(dim=1)
    return (vectors * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=_TINY)


def _pool_alone(mode: str, vectors: Any) -> Any:
    """The same pooling for rows without padding, where no mask is needed."""
    if mode == "cls":
        return vectors[:, 0]
    if mode == "lasttoken":
        return vectors[:, -1]
    return vectors.amax(dim=1) if mode == "max" else vectors.mean(dim=1)


def _after_pooling(step: Step, vectors: Any, layers: Mapping[Dense, Any]) -> Any:
    if isinstance(step, Dense):
        projected = layers[step](vectors)
        return projected.tanh() if step.activation == "Tanh" else projected
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=_TINY)


def torch_reference(model: TorchModel, steps: Sequence[Step]) -> Reference:
    """What torch gives for one row run alone: no padding, no mask to get wrong, pooling by its plain definition."""
    import torch

    def reference(row: Row) -> Any:
        with torch.no_grad():
            named = {name: torch.from_numpy(row[name]) for name in model.inputs}
            vectors = model.transformer(**named, return_dict=True).last_hidden_state
            for step in steps:
                if isinstance(step, Pool):
                    vectors = _pool_alone(step.mode, vectors)
                else:
                    vectors = _after_pooling(step, vectors, model.layers)
            return vectors.numpy()

    return reference
