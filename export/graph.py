"""The torch module that becomes the file, and the plain computation it is judged by. Layer: export adapter of torch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from export.plan import Activation, Dense, ExportPlan, Normalize, Pool, Step
from export.torch_model import TorchModel, cache_argument, positions, sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[np.generic]]

# Finite, and small enough to stay what they are when the graph is converted to half precision.
_MASKED: Final = -65504.0
_TINY: Final = 1e-6
EMBEDDINGS: Final = "embeddings"
SCORES: Final = "scores"
_SMALL_MODEL: Final = 50_000_000  # weights
_TEXT_EMBEDS: Final = "text_embeds"


@dataclass(frozen=True, slots=True)
class Graph:
    """A module of tensors only, sample arguments, and names and free axes of what goes in and comes out."""

    module: Any
    arguments: tuple[Any, ...]
    inputs: Mapping[str, Mapping[int, str]]
    outputs: Mapping[str, Mapping[int, str]]


def output_names(model: TorchModel, plan: ExportPlan) -> tuple[str, ...]:
    """The outputs in the order of the file, a decoder's cache aside."""
    if plan.pooled:
        return (EMBEDDINGS,)
    if any(isinstance(step, Activation) for step in plan.steps):
        return (SCORES,)
    return tuple(model.outputs)


def make_graph(model: TorchModel, plan: ExportPlan) -> Graph:
    """The module to export for this plan."""
    names = output_names(model, plan)
    given = sample(model, plan)
    if plan.image:
        return Graph(_plain(model, plan), tuple(given.values()), {n: {0: "batch"} for n in given}, _rows(names))
    tokens = {0: "batch", 1: "sequence"}
    inputs = dict.fromkeys(given, tokens)
    if model.cache:
        return _decoder_graph(model, given)
    outputs = dict.fromkeys(names, tokens) if Reference(model, plan).per_token else _rows(names)
    return Graph(_plain(model, plan), tuple(given.values()), inputs, outputs)


def _rows(names: Sequence[str]) -> dict[str, Mapping[int, str]]:
    return {name: {0: "batch"} for name in names}


def _plain(model: TorchModel, plan: ExportPlan) -> Any:
    """Transformer, then the steps on padded rows."""
    from torch import nn

    class Exported(nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.transformer = model.module

        def forward(self, *tensors: Any) -> Any:
            named = dict(zip(model.inputs, tensors, strict=True))
            answers = tuple(model(named).values())
            for step in plan.steps:
                answers = (_padded_step(step, answers[0], named.get("attention_mask"), model.layers),)
            return answers if len(answers) > 1 else answers[0]

    return Exported().eval()


def _decoder_graph(model: TorchModel, given: dict[str, Any]) -> Graph:
    """Tokens after a cache: `attention_mask` covers both, and positions follow from it."""
    import torch
    from torch import nn
    from transformers.cache_utils import Cache

    assert model.cache is not None
    cache = model.cache
    name = cache_argument(inspect.signature(model.module.forward).parameters) or ""

    class Decoder(nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.transformer = model.module

        def forward(self, ids: Any, mask: Any, *past: Any) -> Any:
            pairs = Cache(layers=[_filled(*pair) for pair in zip(past[::2], past[1::2], strict=True)])
            more = {name: pairs}
            if model.takes_positions:
                more["position_ids"] = positions(mask)[:, past[0].shape[2] :]
            answer = self.transformer(
                input_ids=ids,
                attention_mask=mask,
                use_cache=True,
                return_dict=True,
                **more,
            )
            return (answer.logits, *(tensor for layer in pairs.layers for tensor in (layer.keys, layer.values)))

    ids, mask = given["input_ids"], given["attention_mask"]
    before = 3
    generator = torch.Generator().manual_seed(0)
    past = [
        torch.randn((len(ids), cache.heads, before, cache.size), generator=generator)
        for _ in cache.names("past_key_values")
    ]
    whole = torch.cat([torch.ones((len(ids), before), dtype=torch.int64), mask.flip(1)], dim=1)
    earlier, now = {0: "batch", 2: "past"}, {0: "batch", 2: "total"}
    inputs = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "total"},
        **dict.fromkeys(cache.names("past_key_values"), earlier),
    }
    outputs = {"logits": {0: "batch", 1: "sequence"}, **dict.fromkeys(cache.names("present"), now)}
    return Graph(Decoder().eval(), (ids, whole, *past), inputs, outputs)


def _filled(keys: Any, values: Any) -> Any:
    """A cache layer that holds these from the start; one that grows from nothing would join tensors of unlike rank."""
    from transformers.cache_utils import DynamicLayer

    layer = DynamicLayer()
    layer.keys, layer.values = keys, values
    layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
    return layer


def _padded_step(step: Step, values: Any, mask: Any, layers: Mapping[Dense, Any]) -> Any:
    return _pool_padded(step.mode, values, mask) if isinstance(step, Pool) else _after_pooling(step, values, layers)


def _pool_padded(mode: str, vectors: Any, mask: Any) -> Any:
    """Pooling that never looks at padding, whichever side it is on."""
    import torch

    if mode in ("cls", "lasttoken"):
        # The outermost unmasked position, by a reduction: ONNX Runtime before 1.20 has no ArgMax for int64.
        places = torch.arange(mask.shape[1])
        if mode == "cls":
            chosen = (places + (1 - mask) * mask.shape[1]).amin(dim=1, keepdim=True)
        else:
            chosen = (mask * places).amax(dim=1, keepdim=True)
        return (vectors * (places == chosen).unsqueeze(-1).to(vectors.dtype)).sum(dim=1)
    kept = mask.unsqueeze(-1).to(vectors.dtype)
    if mode == "max":
        return vectors.masked_fill(kept == 0, _MASKED).amax(dim=1)
    return (vectors * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=_TINY)


def _pool_alone(mode: str, vectors: Any) -> Any:
    """The same pooling for the real tokens of one row, where no mask is needed."""
    if mode == "cls":
        return vectors[:, 0]
    if mode == "lasttoken":
        return vectors[:, -1]
    return vectors.amax(dim=1) if mode == "max" else vectors.mean(dim=1)


def _after_pooling(step: Step, values: Any, layers: Mapping[Dense, Any]) -> Any:
    if isinstance(step, Activation):
        return values.sigmoid() if step.name == "Sigmoid" else values
    if isinstance(step, Dense):
        projected = layers[step](values)
        return projected.tanh() if step.activation == "Tanh" else projected
    assert isinstance(step, Normalize)
    return values / values.norm(dim=-1, keepdim=True).clamp(min=_TINY)


class Reference:
    """What torch itself gives for a batch, with the steps on the real tokens of each row by their plain definition.

    For a row alone there is no padding and no mask to get wrong. With `per_token` outputs have an axis of tokens.
    """

    def __init__(self, model: TorchModel, plan: ExportPlan) -> None:
        self._model, self._plan = model, plan
        self._names = output_names(model, plan)
        self._tokens = plan.task.per_token and _TEXT_EMBEDS not in model.outputs
        self.per_token = self._tokens and not plan.pooled

    def __call__(self, batch: Tensors) -> list[dict[str, NDArray[np.float32]]]:
        """For each row its outputs; of those with a token axis only the real tokens."""
        import torch

        with torch.no_grad(), _threads_for(self._model.module):
            named = {name: torch.from_numpy(batch[name]) for name in self._model.inputs}
            answers = tuple(self._model(named).values())
            real = [
                named["attention_mask"][row] == 1 if self._tokens else slice(None) for row in range(len(answers[0]))
            ]
            return [
                self._finish([answer[row : row + 1][:, kept] for answer in answers]) for row, kept in enumerate(real)
            ]

    def _finish(self, values: list[Any]) -> dict[str, Any]:
        for step in self._plan.steps:
            values = [_alone_step(step, values[0], self._model.layers)]
        return {name: value[0].float().numpy() for name, value in zip(self._names, values, strict=True)}


@contextmanager
def _threads_for(module: Any) -> Iterator[None]:
    """One thread for a small model: a row is done before more would pay, and on a busy machine they wait spinning."""
    import torch

    usual = torch.get_num_threads()
    if sum(weight.numel() for weight in module.parameters()) < _SMALL_MODEL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def _alone_step(step: Step, values: Any, layers: Mapping[Dense, Any]) -> Any:
    return _pool_alone(step.mode, values) if isinstance(step, Pool) else _after_pooling(step, values, layers)
