"""The ONNX Runtime session of a configuration: options, file, signature, errors. Layer: backend data."""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime as ort
from native_config import Refusal, Signature, Tensor, parse_bool, parse_int

_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
_ORT_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)
_TENSOR_TYPE = re.compile(r"tensor\((\w+)\)")
_DEVICE_ALLOCATOR = "session.use_device_allocator_for_initializers"
_ARENA_SHRINKAGE = "memory.enable_memory_arena_shrinkage"


class Session:
    """A session made the way the native backend makes it, from the version directory of a model."""

    def __init__(self, config, version_dir):
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        options = _options(config, parameters)
        path = _model_file(config, Path(version_dir))
        self._run_options = ort.RunOptions()
        if _ARENA_SHRINKAGE in parameters:
            self._run_options.add_run_config_entry(_ARENA_SHRINKAGE, parameters[_ARENA_SHRINKAGE])
        try:
            for library in config.get("model_operations", {}).get("op_library_filename", []):
                options.register_custom_ops_library(library)
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has no common base class for its errors
            raise Refusal(_ort_text(error)) from None
        self.signature = Signature(
            inputs=_tensors(self._session.get_inputs()),
            outputs=_tensors(self._session.get_outputs()),
            initializers=_tensors(self._session.get_overridable_initializers()),
        )

    def run(self, names, feed):
        try:
            return self._session.run(names, feed, self._run_options)
        except Exception as error:
            raise Refusal(_ort_text(error)) from None


def _options(config, parameters):
    options = ort.SessionOptions()
    level = int(config.get("optimization", {}).get("graph", {}).get("level", 0))
    options.graph_optimization_level = _LEVELS.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    mode = parse_int(parameters.get("execution_mode", "0"))
    if mode not in (0, 1):
        raise Refusal(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} ."
        )
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = max(0, parse_int(parameters.get("intra_op_thread_count", "0")))
    options.inter_op_num_threads = max(0, parse_int(parameters.get("inter_op_thread_count", "0")))
    if _DEVICE_ALLOCATOR in parameters:
        options.add_session_config_entry(_DEVICE_ALLOCATOR, parameters[_DEVICE_ALLOCATOR])
    options.enable_cpu_mem_arena = parse_bool(parameters.get("enable_mem_arena", "1"))
    options.enable_mem_pattern = parse_bool(parameters.get("enable_mem_pattern", "1"))
    return options


def _model_file(config, version_dir):
    """The ONNX file: the configured name, or `model.onnx` inside a directory of that name."""
    path = version_dir / (config.get("default_model_filename") or "model.onnx")
    if not path.exists():
        raise Refusal(f"failed to stat file {path}")
    if path.is_dir():
        path /= "model.onnx"
    if not path.exists():
        raise Refusal(f"unable to find '{path}' for model instance '{config['name']}'")
    accelerators = config.get("optimization", {}).get("execution_accelerators", {}).get("cpu_execution_accelerator", [])
    for accelerator in accelerators:  # this build of ONNX Runtime has none
        raise Refusal(f"unknown Execution Accelerator '{accelerator['name']}' is requested")
    return path


def _tensors(nodes):
    tensors = {}
    for node in nodes:
        element = _TENSOR_TYPE.fullmatch(node.type)
        if element is None:
            kind = node.type.partition("(")[0]
            kinds = {"seq": "ONNX_TYPE_SEQUENCE", "map": "ONNX_TYPE_MAP", "sparse_tensor": "ONNX_TYPE_SPARSETENSOR"}
            raise Refusal(
                f"Unsupported ONNX Type '{kinds.get(kind, 'ONNX_TYPE_UNKNOWN')}' for I/O '{node.name}', "
                "expected 'ONNX_TYPE_TENSOR'."
            )
        dims = tuple(dim if isinstance(dim, int) else -1 for dim in node.shape)
        tensors[node.name] = Tensor(element.group(1), dims)
    return tensors


def _ort_text(error):
    """ONNX Runtime's message in the native backend's wording: its code and text without the Python binding's prefix."""
    match = _ORT_ERROR.fullmatch(str(error))
    return f"onnx runtime error {match.group(1)}: {match.group(2)}" if match else f"onnx runtime error 1: {error}"
