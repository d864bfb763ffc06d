"""Rules about names, types and shapes of a TensorRT plan's tensors. Layer: check."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tooling.check.finding import Evidence, Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import load
from tooling.check.sizes import type_name
from tooling.check.wording import shape_text, shapes_differ
from tooling.errors import suggest
from tooling.signature.spec import ModelSignature, TensorSpec

_SOURCE: Final = "tensorrt backend"
_CONFIG: Final = 'platform: "tensorrt_plan"\ninstance_group { kind: KIND_GPU }\n'
_X: Final = 'input { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\n'
_Y: Final = 'output { name: "y" data_type: TYPE_FP32 dims: [ 8 ] }\n'


def _example(config: str) -> str:
    sidecar = (
        '{"tensorrt": "10.5.0", "compute_capability": "8.9", '
        '"inputs": [{"name": "x", "data_type": "FP32", "shape": [-1, 8]}], '
        '"outputs": [{"name": "y", "data_type": "FP32", "shape": [-1, 8]}]}'
    )
    files = f"--- 1/model.onnx\nabsent\n--- 1/model.plan\nplan 10.5.0\n--- 1/model.plan.json\n{sidecar}"
    return f"{_CONFIG}{config}{files}"


UNKNOWN = load(
    "plan-tensor-unknown",
    "A tensor of the config is none of the plan's.",
    "Names are case-sensitive.",
    _example(_X + _Y + _Y.replace('"y"', '"Y"')),
    _SOURCE,
    evidence=Evidence.READ,
)
UNLISTED = load(
    "plan-tensor-unlisted",
    "A tensor of the plan is not in the config.",
    "Unlike with ONNX Runtime every input and every output must be listed, or none where auto-complete is on.",
    _example(_X + _Y).replace('"outputs": [', '"outputs": [{"name": "z", "data_type": "FP32", "shape": [-1, 4]}, '),
    _SOURCE,
    evidence=Evidence.READ,
)
TWICE = load(
    "plan-tensor-twice",
    "A tensor of a plan is listed twice.",
    "The core takes the first entry; the TensorRT backend refuses the second.",
    _example("max_batch_size: 8\ndynamic_batching { }\n" + _X + _X + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
TYPE = load(
    "plan-tensor-type",
    "A tensor has another type in the config than in the plan.",
    "Building with FP16 kernels does not change the types of inputs and outputs.",
    _example(_X + _Y.replace("FP32", "FP16")),
    _SOURCE,
    evidence=Evidence.READ,
)
SHAPE = load(
    "plan-tensor-shape",
    "A tensor has another shape in the config than in the plan.",
    "-1 fits anything on either side.",
    _example(_X.replace("[ 8 ]", "[ 9 ]") + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
RAGGED = load(
    "plan-ragged-rank",
    "A ragged input must have one axis in the plan.",
    "The requests' elements are put one behind the other; the server's message prints two shapes that may look alike.",
    _example(_X.replace("[ 8 ]", "[ 8 ] allow_ragged_batch: true") + _Y),
    _SOURCE,
    evidence=Evidence.READ,
)
RULES = (UNKNOWN, UNLISTED, TWICE, TYPE, SHAPE, RAGGED)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A config and the plan it is for."""

    model: Model
    signature: ModelSignature

    @property
    def batching(self) -> bool:
        return bool(self.model.config.max_batch_size > 0)

    @property
    def instance(self) -> str:
        return _instance(self.model)


def twice(model: Model) -> Iterator[Finding]:
    """Names that stand twice, whatever the plan."""
    for what, listed in (("input", model.config.input), ("output", model.config.output)):
        names = [tensor.name for tensor in listed]
        for index, name in enumerate(names):
            if name and name in names[:index]:
                yield model.find(
                    TWICE,
                    f"{what} {name} is listed twice",
                    *(what, index),
                    says=f"{what} '{name}'  has already appeared as an input or output for {_instance(model)}",
                    hint="keep one",
                )


def _instance(model: Model) -> str:
    """How the server names the first instance."""
    return f"{model.instances[0].name}_0" if model.instances else model.name


def tensors(model: Model, signature: ModelSignature) -> Iterator[Finding]:
    """Names, types and shapes of the config against a plan's."""
    plan, config = _Plan(model, signature), model.config
    fed = {entry.name for entry in config.sequence_batching.control_input}
    fed |= {name for entry in config.batch_input for name in entry.target_name}
    fed |= {name for state in config.sequence_batching.state for name in (state.input_name, state.output_name)}
    theirs = {"input": plan.signature.outputs, "output": plan.signature.inputs}
    for what, listed, known in (
        ("input", config.input, {tensor.name: tensor for tensor in plan.signature.inputs}),
        ("output", config.output, {tensor.name: tensor for tensor in plan.signature.outputs}),
    ):
        for index, tensor in enumerate(listed):
            if tensor.name in known:
                yield from _tensor(plan, what, index, tensor, known[tensor.name])
                continue
            other = any(spec.name == tensor.name for spec in theirs[what])
            yield model.find(
                UNKNOWN,
                f"{what} {tensor.name} is {f'no {what} of' if other else 'not in'} the engine; {what}s are "
                f"{', '.join(known)}",
                what,
                index,
                "name",
                says=_unknown(plan, what, tensor.name, known, other=other),
                hint=suggest(tensor.name, known),
            )
        names = {tensor.name for tensor in listed}
        for name in known:
            if (listed or model.target.strict) and name not in names | fed:
                yield model.find(
                    UNLISTED,
                    f"{what} {name} of the engine is not in the config",
                    what,
                    says=f"expected configuration for {what} '{name}' for {plan.instance}",
                )


def _unknown(plan: _Plan, what: str, name: str, known: Collection[str], *, other: bool) -> str:
    """What the server says to a name that is not among `known`; `other`: it is one of the other direction."""
    config = plan.model.config
    if not plan.model.target.strict:
        return f"unexpected inference {what} '{name}', allowed {what}s are: {', '.join(sorted(known))}"
    if what == "input" and len(config.input) > len(known):
        return (
            f"unable to load model '{config.name}', configuration expects {len(config.input)} inputs, model provides "
            f"at most {len(known)}"
        )
    if other:  # of an output the server says `an input` too
        return f"{what} '{name}' is expected to be an input in model for {plan.instance}"
    return f"unexpected inference {what} '{name}', allowed {what}s are: {', '.join(sorted(known))}"


def _tensor(plan: _Plan, what: str, index: int, tensor: Any, spec: TensorSpec) -> Iterator[Finding]:
    model, written = plan.model, type_name(tensor.data_type)
    if written not in (spec.data_type, "TYPE_INVALID"):
        yield model.find(
            TYPE,
            f"{what} {tensor.name}: engine {spec.data_type.removeprefix('TYPE_')}, config {written}",
            what,
            index,
            "data_type",
            says=f"unexpected datatype {spec.data_type} for inference {what} '{tensor.name}', expecting {written} for "
            f"{plan.instance}",
            hint=spec.data_type,
            fix=(f"{what}[{index}].data_type={spec.data_type}",),
        )
    dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    if what == "input" and tensor.allow_ragged_batch:
        if len(spec.dims) != 1:
            yield model.find(
                RAGGED,
                f"input {tensor.name}: input is rank {len(spec.dims)} in the engine; ragged input must be rank 1",
                what,
                index,
                "allow_ragged_batch",
                says=f"model '{model.config.name}', tensor '{tensor.name}': for the model to support ragged input, the "
                f"engine shape is: {shape_text(spec.dims)} while the model config shape is: {shape_text(dims)}",
                hint="remove allow_ragged_batch",
                fix=(f"-input[{index}].allow_ragged_batch",),
            )
        return
    if spec.shape_tensor:
        yield from _values(plan, what, index, spec, dims)
        return
    # With auto-complete and max_batch_size 0 the backend takes the batch from the engine, and dims leave it out.
    completing = not model.target.strict and len(dims) + 1 == len(spec.dims)
    full = [-1, *dims] if plan.batching or completing else dims
    fits = len(full) == len(spec.dims) and all(a == b or -1 in (a, b) for a, b in zip(full, spec.dims, strict=True))
    if dims and not fits:
        yield model.find(
            SHAPE,
            f"{what} {tensor.name}: engine {shape_text(spec.dims)}, config {shape_text(full)}",
            what,
            index,
            "dims",
            says=shapes_differ(model.config.name, tensor.name, spec.dims, full, batching=plan.batching)
            if spec.dims or not plan.batching
            else f"model '{model.config.name}', tensor '{tensor.name}': for the model to support batching the shape "
            "should have at least 1 dimension; but shape expected by the model is []",
        )


def _values(plan: _Plan, what: str, index: int, spec: TensorSpec, dims: list[int]) -> Iterator[Finding]:
    """A shape tensor, whose length counts the batch too where the model batches."""
    if len(spec.dims) != 1 or not dims:  # another rule tells of more axes
        return
    length = dims[0] + plan.batching if dims[0] != -1 else -1
    if len(dims) > 1 or (length != spec.dims[0] and -1 not in (length, spec.dims[0])):
        yield plan.model.find(
            SHAPE,
            f"shape {what} {spec.name} holds {spec.dims[0]} numbers in the engine, config {shape_text(dims)}"
            + (" and one for the batch" if plan.batching else ""),
            *(what, index, "dims"),
            says=f"unable to load model '{plan.model.config.name}', binding '{spec.name}' shape expected by framework",
            hint=f"dims: [ {spec.dims[0] - plan.batching} ]",
        )
