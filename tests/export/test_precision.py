"""Half precision, 8-bit weights, fused operators: the real MiniLM within the stated limits, nothing else changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import export.build
from export.options import ExportOptions
from export.precision import convert
from export.run import ExportResult, export_model
from tooling.console import Console
from tooling.errors import Refused

SILENT = Console(quiet=True)


def operators(path: Path) -> Counter[str]:
    import onnx

    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


def types(result: ExportResult) -> list[tuple[str, str]]:
    return [(t.name, t.data_type) for t in (*result.manifest.inputs, *result.manifest.outputs)]


@pytest.fixture(scope="module")
def single(bert_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportResult:
    place = tmp_path_factory.mktemp("single")
    return export_model(bert_dir, place, "m", ExportOptions(exporter="torchscript"), console=SILENT)


@pytest.mark.parametrize(("convert_io", "output"), [(False, "TYPE_FP32"), (True, "TYPE_FP16")])
def test_half_precision_keeps_or_converts_what_goes_in_and_out(
    convert_io: bool, output: str, bert_dir: Path, single: ExportResult, tmp_path: Path
) -> None:
    options = ExportOptions(exporter="torchscript", precision="fp16", convert_io=convert_io)
    result = export_model(bert_dir, tmp_path, "m", options, console=SILENT)
    assert types(result) == [
        *((name, "TYPE_INT64") for name in ("input_ids", "attention_mask", "token_type_ids")),
        ("last_hidden_state", output),
    ]
    assert result.manifest.model_bytes < 0.8 * single.manifest.model_bytes
    assert (result.manifest.opset, result.manifest.ir_version) == (18, 8)
    assert single.manifest.verification.max_abs_error < result.manifest.verification.max_abs_error
    assert (result.manifest.verification.cosine or 0) > 0.9999


def test_eight_bits_change_no_input_and_no_output(bert_dir: Path, single: ExportResult, tmp_path: Path) -> None:
    options = ExportOptions(exporter="torchscript", precision="int8")
    result = export_model(bert_dir, tmp_path, "m", options, console=SILENT)
    assert types(result) == types(single)
    assert operators(result.model_file)["MatMulInteger"] >= 12
    assert (result.manifest.opset, result.manifest.ir_version) == (18, 8)


def test_fused_operators_are_counted_and_verified(bert_dir: Path, tmp_path: Path) -> None:
    import onnxruntime

    options = ExportOptions(exporter="torchscript", optimize=True)
    result = export_model(bert_dir, tmp_path, "m", options, console=SILENT)
    newer = tuple(map(int, onnxruntime.__version__.split(".")[:2])) > (1, 23)  # the last for Python 3.10
    assert result.manifest.fused.get("Attention", 0) == (2 if newer else 0)
    assert result.manifest.fused["SkipLayerNormalization"] == 4
    assert {name: count for name, count in operators(result.model_file).items() if name in result.manifest.fused} == (
        result.manifest.fused
    )
    assert result.manifest.verification.relative_error <= 1e-4


def test_mistakes_of_the_export_are_not_taken_for_rounding(
    bert_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are off by a thousandth are less than what eight bits lose."""
    real = export.build.save_model

    def scaled(model: Any, *rest: Any) -> Path:
        import onnx_ir

        for value in model.graph.initializers.values():
            if value.const_value.dtype == onnx_ir.DataType.FLOAT:
                value.const_value = onnx_ir.tensor(value.const_value.numpy() * np.float32(1.001))
        return real(model, *rest)

    monkeypatch.setattr(export.build, "save_model", scaled)
    with pytest.raises(Refused, match="as near as fp32 must be"):
        export_model(bert_dir, tmp_path, "m", ExportOptions(exporter="torchscript", precision="int8"), console=SILENT)


def mask_model(path: Path, value: float) -> Path:
    """y = softmax(x + m) with m = `value` where mask is 0; x of -40 pushes a mask at the edge over it."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [
        helper.make_node("Cast", ["mask"], ["keep"], to=TensorProto.BOOL),
        helper.make_node("Where", ["keep", "zero", "far"], ["m"]),
        helper.make_node("Add", ["x", "m"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["y"]),
    ]
    constants = {"zero": np.zeros(1, np.float32), "far": np.array([value], np.float32)}
    tensors = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4]),
        helper.make_tensor_value_info("mask", TensorProto.INT64, ["b", 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 4]),
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", tensors[:2], tensors[2:], weights)
    save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.parametrize("value", [float(np.finfo(np.float32).min), -65504.0, -1e9])
def test_row_that_is_masked_whole_stays_a_number_in_half_precision(value: float, tmp_path: Path) -> None:
    import onnxruntime

    source = mask_model(tmp_path / "m.onnx", value)
    half, _ = convert(source, tmp_path, ExportOptions(precision="fp16"), None)
    x = np.array([[-40, 1, 2, 3], [-40, -40, -40, -40]], np.float32)
    mask = np.array([[1, 1, 0, 0], [0, 0, 0, 0]])
    expected, got = (
        onnxruntime.InferenceSession(str(path)).run(None, {"x": x, "mask": mask})[0] for path in (source, half)
    )
    assert np.isfinite(got).all()
    assert np.abs(expected - got).max() < 1e-3


def test_a_mask_that_an_operator_holds_as_a_plain_number(tmp_path: Path) -> None:
    """`Constant(value_float=…)`, as some exporters write it, in the place of a tensor."""
    import onnx
    import onnxruntime

    source = mask_model(tmp_path / "m.onnx", -1e9)
    model = onnx.load(source)
    model.graph.initializer.remove(next(weight for weight in model.graph.initializer if weight.name == "far"))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["far"], value_float=-1e9))
    onnx.save(model, source)
    half, _ = convert(source, tmp_path, ExportOptions(precision="fp16"), None)
    x = np.array([[-40, 1, 2, 3], [-40, -40, -40, -40]], np.float32)
    given = {"x": x, "mask": np.array([[1, 1, 0, 0], [0, 0, 0, 0]])}
    expected, got = (onnxruntime.InferenceSession(str(path)).run(None, given)[0] for path in (source, half))
    assert np.isfinite(got).all()
    assert np.abs(expected - got).max() < 1e-3


def test_overflow_in_half_precision_is_refused_and_nothing_published(source: Path, tmp_path: Path) -> None:
    """Weights of thousands are nothing to single precision; products of them leave half precision."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(source / "model.safetensors")
    weights["encoder.layer.1.intermediate.dense.weight"] *= 1e5
    weights["encoder.layer.1.output.dense.weight"] *= 1e-5
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    options = ExportOptions(exporter="torchscript", precision="fp16")
    with pytest.raises(Refused, match=r"(a difference of|not a number).* at last_hidden_state\[") as caught:
        export_model(source, tmp_path / "repository", "m", options, console=SILENT)
    assert "fp32" in (caught.value.problems[0].hint or "")
    assert not (tmp_path / "repository").exists()
    export_model(source, tmp_path / "repository", "m", ExportOptions(exporter="torchscript"), console=SILENT)


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "optimize", "cosine", "megabytes"),
    [("fp32", True, 0.99999, 91), ("fp16", False, 0.9999, 46), ("int8", False, 0.96, 60)],
)
def test_minilm(
    precision: Any, optimize: bool, cosine: float, megabytes: float, minilm_dir: Path, tmp_path: Path
) -> None:
    options = ExportOptions(precision=precision, optimize=optimize)
    manifest = export_model(minilm_dir, tmp_path, "m", options, console=SILENT).manifest
    assert (manifest.verification.cosine or 0) > cosine
    assert manifest.model_bytes < megabytes * 1e6
    assert bool(manifest.fused) == optimize


def test_conversion_is_asked_for_by_options(run_cli: Callable[..., Any], bert_dir: Path, tmp_path: Path) -> None:
    done = run_cli("export", bert_dir, "-r", tmp_path, "--precision", "int8", "--exporter", "torchscript")
    assert done.code == 0, done.err
    assert "(exported in " in done.out and "feature-extraction, int8, torchscript" in done.out
    assert "cosine 0.9" in done.out
