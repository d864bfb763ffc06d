"""Rules about what single backends cannot do with inputs and outputs, whatever the model. Layer: check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tooling.check.finding import Evidence, Finding
from tooling.check.model import Model
from tooling.check.rules.kinds import advice, load
from tooling.check.sizes import type_name

_SOURCE: Final = "backend library"
_FILE: Final = "--- 1/model.onnx\nabsent\n"
_WITHOUT_OPTIONAL: Final = ("tensorrt", "pytorch", "openvino")
_WITHOUT_BATCH_IO: Final = ("python", "openvino", "vllm", "tensorrtllm")
_UNSERVED: Final = {
    "tensorrt": ("TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT16", "TYPE_FP64", "TYPE_STRING"),
    "pytorch": ("TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_BF16"),
    "openvino": ("TYPE_FP64", "TYPE_BF16", "TYPE_STRING"),
}

OPTIONAL = load(
    "optional-input-unsupported",
    "The backend takes no optional inputs.",
    "ONNX Runtime without batching, Python and TensorRT-LLM do.",
    'backend: "openvino"\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] optional: true }\n' + _FILE,
    _SOURCE,
    evidence=Evidence.READ,
)
TYPE = load(
    "type-not-served-by-backend",
    "The backend serves no tensors of this type.",
    "TensorRT knows no wide unsigned integers, FP64 and strings, TorchScript neither wide unsigned integers nor BF16, "
    "OpenVINO neither FP64, BF16 nor strings.",
    'backend: "openvino"\ninput { name: "x" data_type: TYPE_STRING dims: [ 8 ] }\n' + _FILE,
    "tensorrt, pytorch and openvino backends",
    evidence=Evidence.READ,
)
BATCH_IO = advice(
    "batch-io-ignored",
    "The backend makes nothing of batch_input and batch_output.",
    "ONNX Runtime, TensorRT and TorchScript feed and split them; elsewhere the model never sees them.",
    'backend: "python"\ninput { name: "x" data_type: TYPE_FP32 dims: [ 8 ] }\nbatch_input { kind: BATCH_ELEMENT_COUNT '
    'target_name: "n" data_type: TYPE_INT32 source_input: "x" }\n'
    "--- 1/model.onnx\nabsent\n--- 1/model.py\nclass TritonPythonModel: pass",
    "python and openvino backends",
)
RAGGED = advice(
    "ragged-unsupported",
    "OpenVINO does not take ragged batches.",
    "The scheduler merges requests of different lengths, and the backend answers `expected … bytes of data in input "
    "buffer`.",
    'backend: "openvino"\nmax_batch_size: 8\ninput { name: "x" data_type: TYPE_FP32 dims: [ -1 ] '
    "allow_ragged_batch: true }\n" + _FILE,
    "openvino backend",
)
RULES = (OPTIONAL, TYPE, BATCH_IO, RAGGED)


def unsupported(model: Model) -> Iterator[Finding]:
    """What the config asks of a backend that cannot do it."""
    config, backend = model.config, model.config.backend
    for index, tensor in enumerate(config.input):
        if tensor.optional and backend in _WITHOUT_OPTIONAL:
            yield model.find(
                OPTIONAL,
                f"input {tensor.name} is optional: the {backend} backend takes no optional inputs",
                *("input", index, "optional"),
                says=f"'optional' is set to true for input '{tensor.name}' while the backend model doesn't support "
                "optional input",
                hint="take `optional` out",
            )
        if tensor.allow_ragged_batch and backend == "openvino":
            yield model.find(
                RAGGED,
                f"input {tensor.name} is ragged: the openvino backend cannot take such batches",
                *("input", index, "allow_ragged_batch"),
                hint="take allow_ragged_batch out",
            )
    for what, tensors in (("input", config.input), ("output", config.output)):
        for index, tensor in enumerate(tensors):
            name = type_name(tensor.data_type)
            if name in _UNSERVED.get(backend, ()):
                yield model.find(
                    TYPE,
                    f"{what} {tensor.name}: the {backend} backend does not serve {name}",
                    *(what, index, "data_type"),
                    says=f"unsupported datatype {name} for {what} '{tensor.name}' for model '{config.name}'",
                    hint="cast it inside the model",
                )
    for field in ("batch_input", "batch_output"):
        if getattr(config, field) and backend in _WITHOUT_BATCH_IO:
            yield model.find(BATCH_IO, f"{field}: the {backend} backend makes nothing of it", field)
