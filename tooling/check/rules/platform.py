"""Rules about who serves a model: name, backend, platform. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tooling.check.files import is_file
from tooling.check.fill import ENSEMBLE, MODEL_FILES, platforms
from tooling.check.finding import Evidence, Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load, poll
from tooling.errors import suggest

_SOURCE: Final = "ValidateModelConfig (core)"
_CHECKED_PAIRS: Final = ("tensorflow", "tensorrt", "onnxruntime", "pytorch")
_BACKENDS: Final = (
    *("onnxruntime", "tensorrt", "python", "pytorch", "openvino"),
    *("dali", "fil", "identity", "repeat", "square"),
)
_NVIDIA: Final = "nvcr.io/nvidia/tritonserver:"
_IMAGES: Final = {"vllm": "vllm-python-py3", "tensorrtllm": "trtllm-python-py3"}

NO_BACKEND = poll(
    "backend-unknown",
    "Nothing tells which backend serves the model.",
    "Without `backend`, `platform` and `default_model_filename` Triton looks for a file it knows in the first version "
    "directory (model.plan, model.onnx, model.xml, model.pt, model.py), and then at what follows a dot in the name "
    "of the "
    'model. An ensemble needs `platform: "ensemble"` too.',
    "max_batch_size: 8\n--- 1/model.onnx\nabsent",
    "AutoCompleteBackendFields (core)",
)
PLATFORM_UNKNOWN = poll(
    "platform-unknown",
    "The platform is none that Triton knows a backend for.",
    "`platform` alone picks a backend only for onnxruntime_onnx, tensorrt_plan, pytorch_libtorch, "
    "tensorflow_savedmodel, tensorflow_graphdef and ensemble; for others `backend` must be written.",
    'platform: "onnx"',
    _SOURCE,
)
ENSEMBLE_BACKEND = poll(
    "ensemble-with-backend",
    "An ensemble has no backend.",
    'The ensemble scheduler is chosen by `platform: "ensemble"` alone; a backend beside it is refused.',
    'platform: "ensemble"\nbackend: "onnxruntime"',
    _SOURCE,
)
PAIR = poll(
    "platform-backend-pair",
    "The platform belongs to another backend.",
    "For the backends onnxruntime, tensorrt, pytorch and tensorflow the platform must be theirs; the backend alone "
    "says "
    "enough.",
    'platform: "tensorrt_plan"\nbackend: "onnxruntime"',
    _SOURCE,
)
NEGATIVE_BATCH = poll(
    "max-batch-size-negative",
    "max_batch_size is negative.",
    "0 switches batching off; there is no value for `any size`.",
    "max_batch_size: -1",
    _SOURCE,
)
NAME_DIFFERS = poll(
    "name-differs",
    "`name` is not the name of the directory.",
    "A model is known by its directory; `name` may be left out, but must not say anything else.",
    'name: "encoder"',
    "InitializeModelInfo (core)",
)
NO_AGENTS = poll(
    "agents-empty",
    "`model_repository_agents` without an agent kills the server.",
    "tritonserver 2.51 ends with a segmentation fault when the list is there and empty; all models are gone.",
    "model_repository_agents { }",
    "tritonserver 2.51",
)
BACKEND_NOT_IN_IMAGE = load(
    "backend-not-in-image",
    "The container image has no library of this backend.",
    "vLLM and TensorRT-LLM live in image variants of their own; other images answer `unable to find backend library`.",
    'backend: "tensorrtllm"\n--- ../compose.yaml\nservices: {triton: {image: "nvcr.io/nvidia/tritonserver:24.10-py3"}}',
    "BackendManager (core); contents of the images",
)
BACKEND_NOT_FOUND = load(
    "backend-not-found",
    "The backend is none that NVIDIA's images carry.",
    "Triton looks for `libtriton_BACKEND.so` in the version directory, the model directory and the server's backend "
    "directory. An image of your own, named in the compose file, may have more.",
    'backend: "onnx"',
    "BackendManager (core)",
)
RUNTIME_MISSING = advice(
    "runtime-library-missing",
    "The library named by `runtime` is not beside the model.",
    "Triton searches the version directory, the model directory and the backend's own directory, which is not known "
    "here.",
    'backend: "custom"\nruntime: "libtriton_mine.so"',
    "BackendManager (core)",
    evidence=Evidence.RUN,
)
RULES = (
    NO_BACKEND,
    PLATFORM_UNKNOWN,
    ENSEMBLE_BACKEND,
    PAIR,
    NEGATIVE_BATCH,
    NAME_DIFFERS,
    NO_AGENTS,
    BACKEND_NOT_IN_IMAGE,
    BACKEND_NOT_FOUND,
    RUNTIME_MISSING,
)


def agents(model: Model) -> Iterator[Finding]:
    """What runs before anything else."""
    if model.written.HasField("model_repository_agents") and not model.written.model_repository_agents.agents:
        yield model.find(
            NO_AGENTS,
            "model_repository_agents { } lists no agent: tritonserver 2.51 dies on it",
            "model_repository_agents",
            hint="take it out",
            fix=("-model_repository_agents",),
        )


def platform(model: Model) -> Iterator[Finding]:
    """Name, backend, platform and the sign of the batch size, in the order of ValidateModelConfig."""
    config, name = model.config, model.config.name
    known = platforms(model.target.release.tag)
    if not model.backend_known:
        yield from _no_backend(model)
    elif not config.backend and config.platform != ENSEMBLE:
        close = suggest(config.platform, (*known, ENSEMBLE, *_BACKENDS))
        as_backend = f'write backend: "{config.platform}"' if config.platform in _BACKENDS else None
        yield model.find(
            PLATFORM_UNKNOWN,
            f'platform "{config.platform}" is none that Triton knows a backend for',
            "platform",
            says=f"unexpected platform type '{config.platform}' for {name}",
            hint=as_backend or close or f"write `backend`, or one of the platforms {', '.join(known)}",
        )
    elif config.backend and config.platform == ENSEMBLE:
        yield model.find(
            ENSEMBLE_BACKEND,
            f'an ensemble has no backend, and "{config.backend}" is written',
            "backend",
            says=f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type",
            hint="take `backend` out",
            fix=("-backend",),
        )
    elif config.backend in _CHECKED_PAIRS and known.get(config.platform) != config.backend:
        yield model.find(
            PAIR,
            f'platform "{config.platform}" does not belong to backend "{config.backend}"',
            "platform",
            says=f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}",
            hint="keep one of the two, the one that fits the model file",
        )
    if config.max_batch_size < 0:
        yield model.find(
            NEGATIVE_BATCH,
            f"max_batch_size {config.max_batch_size} is negative",
            "max_batch_size",
            says=f"'max_batch_size' must be non-negative value for {name}",
            hint="0 is for no batching",
        )


def _no_backend(model: Model) -> Iterator[Finding]:
    config = model.config
    says = (
        f"Invalid model name: Could not determine backend for model '{model.name}' with no backend in model "
        "configuration. Expected model name of the form 'model.<backend_name>'."
    )
    if config.HasField("ensemble_scheduling"):
        yield model.find(
            NO_BACKEND,
            "ensemble_scheduling alone makes no ensemble",
            "ensemble_scheduling",
            says=says,
            hint='use platform: "ensemble"',
            fix=('platform="ensemble"',),
        )
        return
    yield model.find(
        NO_BACKEND,
        f"no backend, no platform, and no file in {model.shown} that tells it",
        says=says,
        hint=f"write `backend`, or put one of {', '.join(MODEL_FILES.values())} into a version directory; what is no "
        "model "
        "does not belong into a repository",
    )


def directory_name(model: Model) -> Iterator[Finding]:
    """The last check of the poll stage."""
    if model.config.name != model.name:
        yield model.find(
            NAME_DIFFERS,
            f'name "{model.config.name}" != directory "{model.name}"',
            "name",
            says=f"unexpected directory name '{model.name}' for model '{model.config.name}', "
            "directory name must equal model name",
            hint="delete `name`, or make them equal",
            fix=("-name",),
        )


def backend(model: Model) -> Iterator[Finding]:
    """Whether the server can have the backend."""
    config = model.config
    if not config.backend or config.platform == ENSEMBLE:
        return
    if config.runtime and config.runtime != "model.py":
        beside = [*(model.version_dir(version) for version in model.served), model.directory]
        if not any(is_file(folder / config.runtime) for folder in beside):
            yield model.find(RUNTIME_MISSING, f"{config.runtime} is not in {model.shown}", "runtime")
    elif config.backend in _IMAGES:
        yield from _image(model, config.backend)
    elif config.backend not in (*_BACKENDS, "tensorflow") and not _own_image(model) and not _has_library(model):
        close = suggest(config.backend, (*_BACKENDS, *_IMAGES))
        yield model.find(
            BACKEND_NOT_FOUND,
            f'backend "{config.backend}" is none that NVIDIA\'s images carry',
            "backend",
            says=f"unable to find backend library for backend '{config.backend}', try specifying runtime on the model "
            "configuration.",
            hint=close or f"put libtriton_{config.backend}.so where the server finds it",
        )


def _image(model: Model, name: str) -> Iterator[Finding]:
    image = model.target.image
    tag = image.rpartition(":")[2] if image else ""
    if image is None or "tritonserver" not in image or _IMAGES[name] in tag:
        return
    release = model.target.release.tag
    yield model.find(
        BACKEND_NOT_IN_IMAGE,
        f"backend {name} is not in {image.rpartition('/')[2]}; use {release}-{_IMAGES[name]}",
        "backend",
        says=f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration.",
        hint=f"image: nvcr.io/nvidia/tritonserver:{release}-{_IMAGES[name]}",
    )


def _own_image(model: Model) -> bool:
    image = model.target.image
    return image is not None and not image.startswith(_NVIDIA)


def _has_library(model: Model) -> bool:
    folders = [*(model.version_dir(version) for version in model.served), model.directory]
    return any(is_file(folder / f"libtriton_{model.config.backend}.so") for folder in folders)
