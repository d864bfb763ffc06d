"""Model parameters reach ONNX Runtime, and its errors come back in the native backend's words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def native_session(backend_modules: Callable[[str], ModuleType]) -> ModuleType:
    return backend_modules("native_session")


@pytest.fixture
def version_dir(tmp_path: Path, add_and_multiply: Callable[..., Path]) -> Path:
    pair = {"a": ["FP32", "batch", "w"], "b": ["FP32", "batch", "w"]}
    wide = ["FP32", "batch", "w"]
    return add_and_multiply(tmp_path / "model.onnx", pair, {"sum": wide, "prod": wide}).parent


def _config(graph_level: int = 0, accelerators: tuple[str, ...] = (), **parameters: str) -> dict[str, Any]:
    return {
        "name": "m",
        "default_model_filename": "model.onnx",
        "optimization": {
            "graph": {"level": graph_level},
            "execution_accelerators": {"cpu_execution_accelerator": [{"name": name} for name in accelerators]},
        },
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }


def test_parameters_become_session_options(native_session: ModuleType, version_dir: Path) -> None:
    import onnxruntime as ort

    given = {
        "execution_mode": "1",
        "intra_op_thread_count": "3",
        "inter_op_thread_count": "2",
        "enable_mem_arena": "off",
        "enable_mem_pattern": "false",
        "session.use_device_allocator_for_initializers": "1",
    }
    config = _config(graph_level=2, **given)
    options = native_session.Session(config, version_dir)._session.get_session_options()
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"


def test_defaults_are_the_native_ones(native_session: ModuleType, version_dir: Path) -> None:
    import onnxruntime as ort

    options = native_session.Session(_config(intra_op_thread_count="-1"), version_dir)._session.get_session_options()
    assert options.intra_op_num_threads == 0
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (True, True)
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            _config(execution_mode="2"),
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 .",
        ),
        (_config(accelerators=("openvino",)), "unknown Execution Accelerator 'openvino' is requested"),
    ],
)
def test_refused_options(native_session: ModuleType, version_dir: Path, config: dict[str, Any], text: str) -> None:
    with pytest.raises(native_session.Refusal) as refusal:
        native_session.Session(config, version_dir)
    assert str(refusal.value) == text


def test_a_model_file_may_be_a_directory(native_session: ModuleType, version_dir: Path) -> None:
    (version_dir / "model.onnx").rename(version_dir / "moved")
    (version_dir / "model.onnx").mkdir()
    with pytest.raises(
        native_session.Refusal, match=r"unable to find '.*/model.onnx/model.onnx' for model instance 'm'"
    ):
        native_session.Session(_config(), version_dir)
    (version_dir / "moved").rename(version_dir / "model.onnx" / "model.onnx")
    assert native_session.Session(_config(), version_dir).signature.can_batch


def test_a_broken_file_and_a_failing_run_carry_onnxruntimes_code(native_session: ModuleType, version_dir: Path) -> None:
    session = native_session.Session(_config(), version_dir)
    unequal = {"a": np.zeros((1, 3), np.float32), "b": np.zeros((1, 4), np.float32)}
    with pytest.raises(native_session.Refusal, match=r"^onnx runtime error \d: .*(Add|Mul) node"):
        session.run(["sum"], unequal)
    (version_dir / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(
        native_session.Refusal, match=r"^onnx runtime error 7: Load model from .*Protobuf parsing failed"
    ):
        native_session.Session(_config(), version_dir)


def test_a_sequence_output_is_refused(
    native_session: ModuleType, tmp_path: Path, write_onnx: Callable[..., Path]
) -> None:
    from onnx import TensorProto, helper, load, save

    path = write_onnx(tmp_path / "model.onnx", [("SequenceConstruct", ["x"], "s")], {"x": ["FP32", 2]}, {})
    model = load(path)
    model.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2]))
    save(model, path)
    with pytest.raises(native_session.Refusal) as refusal:
        native_session.Session(_config(), tmp_path)
    assert str(refusal.value) == (
        "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 's', expected 'ONNX_TYPE_TENSOR'."
    )
