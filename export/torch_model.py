"""Loads a source into torch and looks what it takes and gives. Layer: export adapter of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from export.plan import Dense, ExportPlan
from export.source import WEIGHTS_FILE, Source, first_line, missing_library
from export.tasks import FEATURES, GENERATE, half_of
from tooling.errors import UsageError

_TEXT_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")
_IMAGE_INPUT: Final = "pixel_values"
# Projections of the halves of a model of text and images, by the method of the whole and by the class of one half.
_PROJECTED: Final = {False: ("get_text_features", "text_embeds"), True: ("get_image_features", "image_embeds")}
# Halves of models, which transformers' AutoModel would take for the whole.
_OWN_CLASSES: Final = ("ModelWithProjection", "EncoderModel")
_CACHE_NAMES: Final = ("cache", "past_key_values")  # transformers 5.2x renamed the argument


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The cache of a decoder: how many layers, and the heads and the size of a head in each."""

    layers: int
    heads: int
    size: int

    def names(self, prefix: str) -> tuple[str, ...]:
        """Names of the tensors, key and value of each layer in turn."""
        return tuple(f"{prefix}.{layer}.{part}" for layer in range(self.layers) for part in ("key", "value"))


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A loaded model: names of its inputs, the method that is called, and the fields of its answer by output name.

    `layers` are those of the plan's Dense steps, `cache` is that of a decoder.
    """

    module: Any
    method: str
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    layers: Mapping[Dense, Any]
    cache: KeyValues | None = None
    takes_positions: bool = False

    @property
    def config(self) -> Any:
        """The config of what is exported: of a model of text and images that of the half."""
        tower = "vision_config" if _IMAGE_INPUT in self.inputs else "text_config"
        return getattr(self.module.config, tower, None) or self.module.config

    def __call__(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs for torch tensors by input name; a decoder gives its logits for all tokens at once."""
        given = dict(tensors)
        if self.takes_positions:
            given["position_ids"] = positions(given["attention_mask"])
        answer = getattr(self.module, self.method)(**given, return_dict=True)
        return {name: answer if field == "" else getattr(answer, field) for name, field in self.outputs.items()}


def positions(mask: Any) -> Any:
    """Where each token stands among the real ones of its row, whichever side the padding is on."""
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


def load_model(source: Source, plan: ExportPlan, *, trust_remote_code: bool = False) -> TorchModel:
    """Load the weights in single precision; code that comes with a model is run only when it is trusted.

    Raises MissingError without torch and transformers, UsageError when the directory does not hold the whole model or
    the model does not take what the task gives it.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise missing_library(error) from error
    try:
        module, report = getattr(transformers, _loader(transformers, source, plan)).from_pretrained(
            source.directory,
            attn_implementation="eager",
            dtype=torch.float32,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises whatever it meets in a directory that it cannot make a model of
        raise _unloadable(source, error, trust_remote_code) from error
    module.eval().requires_grad_(False)
    module.config.use_cache = False
    if hasattr(module.config, "reference_compile"):
        module.config.reference_compile = False
    model = _inspect(module, source, plan)
    spare = () if "pooler_output" in model.outputs.values() else ("pooler.",)
    _check_complete(source, report["missing_keys"], spare)
    return model


def _loader(transformers: Any, source: Source, plan: ExportPlan) -> str:
    """The class that holds all weights the task needs, and no others."""
    names = [str(name) for name in source.config.get("architectures") or ()]
    if plan.task.loader == "AutoModel":
        if names and names[0].endswith(_OWN_CLASSES) and hasattr(transformers, names[0]):
            return names[0]
        if source.config.get("is_encoder_decoder"):
            return "AutoModelForTextEncoding"
    return plan.task.loader


def _unloadable(source: Source, error: Exception, trusted: bool) -> UsageError:
    own_code = "auto_map" in source.config and not trusted
    return UsageError(
        "transformers cannot load the model",
        where=source.directory,
        got=first_line(error),
        hint="it comes with code of its own: read it, and if you trust it run it with --trust-remote-code"
        if own_code
        else "use a model whose code is part of transformers, and weights that belong to its config.json",
    )


def _check_complete(source: Source, missing: Iterable[str], spare: Sequence[str]) -> None:
    """Weights that a file lacks would be random numbers; only those of a layer that is not used may be absent."""
    lacking = sorted(name for name in missing if not any(part in f".{name}" for part in (f".{s}" for s in spare)))
    if lacking:
        raise UsageError(
            f"{len(lacking)} weights of the model are missing",
            where=source.weights[0],
            got=f"no `{lacking[0]}`",
            expected="every weight of the architecture in config.json that the task needs",
            hint="download the model again, save the whole model with `save_pretrained`, or choose another --task",
        )


def _inspect(module: Any, source: Source, plan: ExportPlan) -> TorchModel:
    """What the loaded model takes and gives for the task, found by asking it."""
    method, outputs = "forward", {name: name for name in plan.task.outputs}
    halves, projected = _PROJECTED[plan.task.image]
    if plan.task.loader == "AutoModel":
        if half_of(source.config, plan.task) is not source.config and hasattr(module, halves):
            method, outputs = halves, {projected: "pooler_output"}
        elif hasattr(module, "visual_projection" if plan.task.image else "text_projection"):
            outputs = {projected: projected}
    taken = inspect.signature(getattr(module, method)).parameters
    inputs = _inputs(taken, plan, source)
    layers = {step: _linear(step.folder / WEIGHTS_FILE) for step in plan.steps if isinstance(step, Dense)}
    model = TorchModel(module, method, inputs, outputs, layers)
    return _decoder(model, taken, source) if plan.task is GENERATE else _without_absent(model, plan, source)


def _inputs(taken: Mapping[str, Any], plan: ExportPlan, source: Source) -> tuple[str, ...]:
    """The inputs that carry information: one token type does not, and tokenizers of such models do not make it."""
    wanted = (_IMAGE_INPUT,) if plan.task.image else _TEXT_INPUTS
    inputs = tuple(name for name in wanted if name in taken and (name != "token_type_ids" or plan.token_types > 1))
    if not set(wanted[:2]) <= set(inputs):
        raise UsageError(
            "the model does not take a batch of images"
            if plan.task.image
            else "the model does not take a padded batch",
            where=source.directory,
            got=f"inputs {', '.join(taken)}",
            expected=f"a model with {' and '.join(wanted[:2])}",
        )
    return inputs


def sample(model: TorchModel, plan: ExportPlan) -> dict[str, Any]:
    """Two rows, one padded: with a batch of 1 or without padding a trace would take shortcuts."""
    import torch

    if plan.image:
        return {_IMAGE_INPUT: torch.linspace(-1, 1, 2 * _count(plan.image)).reshape(2, *plan.image)}
    length = min(8, plan.max_tokens)
    tensors = {name: torch.zeros((2, length), dtype=torch.int64) for name in model.inputs}
    tensors["input_ids"] += (plan.pad_token + 1) % plan.vocabulary
    tensors["attention_mask"] += 1
    tensors["attention_mask"][1, length // 2 :] = 0
    return tensors


def _count(shape: Sequence[int]) -> int:
    channels, height, width = shape
    return channels * height * width


def _without_absent(model: TorchModel, plan: ExportPlan, source: Source) -> TorchModel:
    """The model with the outputs that it really gives."""
    import torch

    try:
        with torch.no_grad():
            answer = getattr(model.module, model.method)(**sample(model, plan), return_dict=True)
    except Exception as error:  # lengths that it cannot have, inputs that it misses: whatever its code does then
        raise UsageError(
            "the model does not answer a small batch in torch",
            where=source.directory,
            got=first_line(error),
            expected=f"an answer for {', '.join(model.inputs)} of two rows",
        ) from error
    if isinstance(answer, torch.Tensor):  # what get_text_features gave before transformers 5
        return replace(model, outputs=dict.fromkeys(model.outputs, ""))
    fields = {name: field for name, field in model.outputs.items() if getattr(answer, field, None) is not None}
    if plan.task is FEATURES and not fields:
        raise UsageError("the model gives no token vectors", where=source.directory, got=f"outputs {', '.join(answer)}")
    return replace(model, outputs=fields)


def _decoder(model: TorchModel, taken: Mapping[str, Any], source: Source) -> TorchModel:
    """The model with the form of its cache, which must be plain keys and values, alike in every layer."""
    import torch
    from transformers import DynamicCache

    name = cache_argument(taken)
    ids = torch.ones((1, 2), dtype=torch.int64)
    cache = DynamicCache()
    if name is not None:
        with torch.no_grad(), suppress(Exception):  # whatever a model does to a cache of a kind that it does not know
            model.module(input_ids=ids, attention_mask=ids, use_cache=True, return_dict=True, **{name: cache})
    layers = [(layer.keys, layer.values) for layer in cache.layers if getattr(layer, "keys", None) is not None]
    shapes = {tuple(tensor.shape) for pair in layers for tensor in pair}
    if len(shapes) != 1 or len(layers) != model.module.config.get_text_config().num_hidden_layers:
        raise UsageError(
            "the model keeps no plain cache of keys and values",
            where=source.directory,
            got=f"model_type {source.config.get('model_type')}",
            expected="a decoder with keys and values of one shape in every layer",
            hint=f"--task {FEATURES.name} exports its vectors",
        )
    ((_, heads, _, size),) = shapes
    past = KeyValues(len(layers), heads, size)
    return replace(model, cache=past, takes_positions="position_ids" in taken)


def cache_argument(taken: Mapping[str, Any]) -> str | None:
    """The name under which a decoder takes its cache."""
    return next((name for name in _CACHE_NAMES if name in taken), None)


def _linear(path: Any) -> Any:
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
