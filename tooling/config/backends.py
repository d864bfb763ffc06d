"""What each Triton backend needs in a config beside the tensors, and what it refuses. Layer: config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from tooling.config.proto import ModelConfig, backend_of, pb
from tooling.errors import Problem, suggest
from tooling.signature.spec import ModelSignature, Profile, TensorSpec
from tooling.signature.tensorrt_plan import largest_batch

_PLATFORMS: Final = {"tensorrt": "tensorrt_plan", "pytorch": "pytorch_libtorch"}
_OPTIONAL_WITH_BATCHING: Final = ("python",)
_OPTIONAL: Final = ("onnxruntime", "python")
_TENSORS_KNOWN: Final = ("onnxruntime", "tensorrt", "openvino")  # the others find theirs in other ways
_RAGGED: Final = ("onnxruntime", "tensorrt", "pytorch", "python")
_UNSERVED_TYPES: Final = {
    "pytorch": ("TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_BF16"),
    "openvino": ("TYPE_FP64", "TYPE_BF16", "TYPE_STRING"),
    "tensorrt": ("TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT16", "TYPE_FP64", "TYPE_STRING"),
    "onnxruntime": (),
    "python": (),
}
_KINDS: Final = {"tensorrt": ("AUTO", "GPU"), "openvino": ("CPU",), "vllm": ("MODEL", "GPU")}
_USUAL_KIND: Final = {"openvino": "CPU", "vllm": "MODEL"}
_PADDING: Final = "ENABLE_BATCH_PADDING"


def begin(signature: ModelSignature, name: str, file: str) -> ModelConfig:
    """The config before its tensors: who serves the model, and from which file where that is not the usual one."""
    config = pb().ModelConfig(
        name=name,
        backend=signature.backend,
        platform=_PLATFORMS.get(signature.backend, ""),
        default_model_filename=file,
    )
    if signature.decoupled:
        config.model_transaction_policy.decoupled = True
    return config


def listed_inputs(signature: ModelSignature, *, batching: bool) -> tuple[TensorSpec, ...]:
    """The inputs a config lists: ONNX Runtime refuses optional ones in a model that batches."""
    if batching and signature.backend not in _OPTIONAL_WITH_BATCHING:
        return signature.required_inputs
    return signature.inputs


def finish(config: ModelConfig, signature: ModelSignature) -> None:
    """Fill in what the backend needs and nobody has said.

    The kind of the instances where it runs on one kind only, every profile of a plan (else Triton uses the first), and
    OpenVINO's padding: it compiles the model for one batch size, and refuses smaller batches otherwise. A ragged input
    of one axis has any length, not the one value a request would have of a batch axis.
    """
    for tensor in config.input:
        if tensor.allow_ragged_batch and list(tensor.dims) == [1] and tensor.HasField("reshape"):
            tensor.dims[:] = [-1]
            tensor.ClearField("reshape")
    usual = _USUAL_KIND.get(signature.backend)
    profiles = [str(index) for index in range(len(signature.profiles))]
    if not config.instance_group and (usual or len(profiles) > 1):
        config.instance_group.add()
    for group in config.instance_group:
        if usual and group.kind == pb().ModelInstanceGroup.KIND_AUTO:
            group.kind = pb().ModelInstanceGroup.Kind.Value(f"KIND_{usual}")
    if len(profiles) > 1 and not any(group.profile for group in config.instance_group):
        for group in config.instance_group:
            group.profile[:] = profiles
    if signature.backend == "openvino" and config.max_batch_size > 1 and _PADDING not in config.parameters:
        config.parameters[_PADDING].string_value = "YES"


def is_bound(config: ModelConfig) -> bool:
    """Whether instances are tied to a kind of hardware, or to certain GPUs, that another machine may not have."""
    free = backend_of(config) not in _KINDS
    devices = (pb().ModelInstanceGroup.KIND_CPU, pb().ModelInstanceGroup.KIND_GPU)
    return any(group.gpus or (free and group.kind in devices) for group in config.instance_group)


def problems(config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """Every rule of the model's backend that the config breaks; an empty list of tensors is left to Triton to fill."""
    backend = signature.backend
    yield from _type_problems(config, backend)
    yield from _kind_problems(config, backend)
    if backend not in _OPTIONAL or (backend == "onnxruntime" and config.max_batch_size > 0):
        for tensor in config.input:
            if tensor.optional:
                yield Problem(
                    f"input `{tensor.name}` cannot be optional",
                    got=f"backend {backend}, max_batch_size {config.max_batch_size}",
                    expected="a backend that takes optional inputs: python, or onnxruntime without batching",
                )
    yield from _ragged_problems(config, signature)
    if backend in _TENSORS_KNOWN:
        yield from _coverage_problems(config, signature)
        yield from _agreement_problems(config, signature)
    special = {"tensorrt": _tensorrt, "pytorch": _pytorch, "vllm": _vllm}.get(backend)
    if special:
        yield from special(config, signature)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _ragged_problems(config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """A ragged input arrives as one row of all requests' values, where the backend supports it."""
    shapes = {tensor.name: tensor.dims for tensor in signature.inputs}
    for tensor in config.input:
        if not tensor.allow_ragged_batch:
            continue
        what, shape = f"input `{tensor.name}`", shapes.get(tensor.name, (-1,))
        if signature.backend not in _RAGGED:
            yield Problem(f"{what} cannot be ragged", got=f"backend {signature.backend}", expected=_listed(_RAGGED))
        elif signature.backend != "python" and shape != (-1,):
            yield Problem(
                f"{what} is ragged, and the model takes more than one axis", got=str(list(shape)), expected="[-1]"
            )


def _coverage_problems(config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """Every tensor of the config is one of the model's, every required one is fed, and controls are single values."""
    batching = config.sequence_batching
    fed = {tensor.name: "input" for tensor in config.input}
    fed |= {entry.name: "sequence control" for entry in batching.control_input if entry.name}
    fed |= {state.input_name: "state" for state in batching.state}
    fed |= {target: "batch_input" for batch in config.batch_input for target in batch.target_name}
    given = {tensor.name: "output" for tensor in config.output} | {s.output_name: "state" for s in batching.state}
    where = str(signature.path)
    for what, names, tensors in (("input", fed, signature.inputs), ("output", given, signature.outputs)):
        known = [tensor.name for tensor in tensors]
        for name, source in names.items():
            if name not in known:
                text = f"{source} `{name}` is no {what} of the model"
                yield Problem(text, where, expected=_listed(known), hint=suggest(name, known))
    single = (-1, 1) if config.max_batch_size > 0 else (1,)
    for tensor in signature.inputs if signature.backend == "onnxruntime" else ():
        if fed.get(tensor.name) == "sequence control" and tensor.dims != single:
            what = f"sequence control `{tensor.name}` must be one value for each request"
            yield Problem(what, where, str(list(tensor.dims)), str(list(single)))
    for tensor in signature.required_inputs if config.input else ():
        if tensor.name not in fed:
            yield Problem(f"nothing feeds input `{tensor.name}` of the model", where, expected="an entry in `input`")


def _agreement_problems(config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """Types are the model's, and so are the shapes: an input may be narrower, ONNX Runtime's outputs are exact."""
    scattered = {name for batch in config.batch_output for name in batch.target_name}
    for what, tensors, specs in (
        ("input", config.input, signature.inputs),
        ("output", config.output, signature.outputs),
    ):
        known = {spec.name: spec for spec in specs}
        for tensor in tensors:
            spec = known.get(tensor.name)
            if spec is None:
                continue
            got = pb().DataType.Name(tensor.data_type)
            if got != spec.data_type:
                yield Problem(
                    f"{what} `{tensor.name}` has another type than the model", got=got, expected=spec.data_type
                )
            ragged = what == "input" and tensor.allow_ragged_batch
            fixed = config.max_batch_size > 0 and not spec.can_batch  # has a rule of its own
            if ragged or fixed or tensor.name in scattered or spec.shape_tensor or not spec.dims:
                continue
            shape = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
            whole = [-1, *shape] if config.max_batch_size > 0 else shape
            exact = signature.backend == "onnxruntime"
            narrower = what == "input" or not exact
            fits = len(whole) == len(spec.dims) and all(
                mine == model or (narrower and model == -1) or (not exact and mine == -1)
                for mine, model in zip(whole, spec.dims, strict=True)
            )
            if not fits:
                yield Problem(
                    f"{what} `{tensor.name}` has another shape than the model",
                    got=f"{whole}{' with the batch axis' * (config.max_batch_size > 0)}",
                    expected=str(list(spec.dims)),
                )


def _type_problems(config: ModelConfig, backend: str) -> Iterator[Problem]:
    names = pb().DataType.Name
    for what, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            if names(tensor.data_type) in _UNSERVED_TYPES.get(backend, ()):
                yield Problem(
                    f"{what} `{tensor.name}` has a type that Triton's {backend} backend does not serve",
                    got=names(tensor.data_type),
                    expected=f"any type but {_listed(_UNSERVED_TYPES[backend])}",
                    hint="cast it inside the model",
                )


def _kind_problems(config: ModelConfig, backend: str) -> Iterator[Problem]:
    kinds = _KINDS.get(backend)
    for group in config.instance_group:
        kind = pb().ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
        if kinds and kind not in kinds:
            yield Problem(
                f"the {backend} backend does not run on instances of this kind",
                got=f"KIND_{kind}",
                expected=" or ".join(f"KIND_{known}" for known in kinds),
                hint="choose the device with the parameter TARGET_DEVICE"
                if backend == "openvino"
                else "leave --kind out",
            )


def _tensorrt(config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """Profiles exist, and one of them takes every batch from 1 to max_batch_size."""
    if not signature.profiles:
        return
    last = len(signature.profiles) - 1
    chosen: set[int] = set()
    for group in config.instance_group:
        for text in group.profile or ["0"]:
            if text.isdecimal() and int(text) <= last:
                chosen.add(int(text))
            elif text.isdecimal():  # anything else is refused for every backend
                yield Problem("the plan has no such profile", got=f"profile {text}", expected=f"0 to {last}")
    chosen = chosen or {0}
    limit = largest_batch(tuple(signature.profiles[index] for index in sorted(chosen)))
    if config.max_batch_size > limit > 0:
        yield Problem(
            "max_batch_size is larger than the plan's profiles allow",
            got=str(config.max_batch_size),
            expected=f"at most {limit}",
            hint="build the plan with a larger maximum shape, or lower max_batch_size",
        )
    if config.max_batch_size > 0 and limit == 0:
        least = min(profile.batches[0] for profile in signature.profiles)
        yield Problem(
            f"the plan needs at least {least} rows, and Triton may send 1",
            got=f"max_batch_size {config.max_batch_size}",
            expected="a profile whose smallest batch is 1",
            hint="build the plan with batch 1 as the minimum, or use max_batch_size 0",
        )
    for tensor in config.input:
        yield from _outside_profiles(config, tensor, [signature.profiles[index] for index in sorted(chosen)])


def _outside_profiles(config: ModelConfig, tensor: Any, profiles: Sequence[Profile]) -> Iterator[Problem]:
    """Fixed dims must lie inside every profile that is used."""
    first = 1 if config.max_batch_size > 0 else 0
    for number, profile in enumerate(profiles):
        low, high = profile.smallest.get(tensor.name), profile.largest.get(tensor.name)
        if low is None or high is None:
            continue
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        for axis, length in enumerate(dims, start=first):
            if length != -1 and axis < len(low) and not low[axis] <= length <= high[axis]:
                yield Problem(
                    f"input `{tensor.name}` is outside profile {number} on axis {axis}",
                    got=str(length),
                    expected=f"{low[axis]} to {high[axis]}, or -1",
                )


def _pytorch(config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """libtorch finds inputs by argument when all names are arguments, else by `NAME__index`, else by their order."""
    if not config.input or not config.output:
        yield Problem("a TorchScript config lists every tensor", got="an empty list of inputs or outputs")
    known = [tensor.name for tensor in config.input if tensor.name in signature.arguments]
    for tensor in config.input if known else ():
        if tensor.name not in known:
            yield Problem(
                f"input `{tensor.name}` is no argument of `forward`, and the others are",
                expected=f"{_listed(signature.arguments)}; or INPUT__0, INPUT__1 … for all of them",
                hint=suggest(tensor.name, signature.arguments),
            )
    for what, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            shape = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
            if tensor.data_type == pb().TYPE_STRING and len(shape) + (config.max_batch_size > 0) > 1:
                yield Problem(
                    f"{what} `{tensor.name}` must be one list of strings",
                    got=f"dims {list(tensor.dims)}, max_batch_size {config.max_batch_size}",
                    expected="one axis, the batch axis included",
                )


def _vllm(config: ModelConfig, signature: ModelSignature) -> Iterator[Problem]:
    """The backend batches by itself and completes tensors and the decoupled policy."""
    if config.max_batch_size > 0:
        yield Problem("vLLM batches by itself", got=f"max_batch_size {config.max_batch_size}", expected="0")
    if config.HasField("model_transaction_policy") and not config.model_transaction_policy.decoupled:
        yield Problem("vLLM answers in several responses", got="decoupled false", expected="decoupled true")
    if config.input or config.output:
        yield Problem("vLLM completes inputs and outputs by itself", got="a list of tensors", expected="none")
    if config.WhichOneof("scheduling_choice"):
        yield Problem("vLLM schedules by itself", got=config.WhichOneof("scheduling_choice"), expected="no scheduler")
