"""torch's two exporters give files alike; which one is taken, and why, stands in the manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import export.build
from export.exporters import Written, run_exporter
from export.graph import Graph
from export.model_file import save_model
from export.options import ExportOptions
from export.plan import make_plan
from export.quiet import quiet
from export.run import export_model
from export.source import open_source
from tooling.console import Console
from tooling.errors import ExternalError, Refused, UsageError
from tooling.signature.onnx_file import read_onnx

SILENT = Console(quiet=True)
BOTH = ["torchscript", pytest.param("dynamo", marks=pytest.mark.long)]  # which takes ten times as long


def write(exporter: str, module: Any, inputs: list[str], place: Path, plan: Any) -> tuple[Path, Written]:
    """Export a module of [batch, sequence] int64 inputs for real."""
    import torch

    axes = {0: "batch", 1: "sequence"}
    sample = tuple(torch.ones((2, 8), dtype=torch.int64) for _ in inputs)
    graph = Graph(module.eval(), sample, dict.fromkeys(inputs, axes), {"y": {0: "batch", 1: "sequence"}})
    place.mkdir()
    with quiet(SILENT):
        written = run_exporter(exporter, graph, plan, place)
        return save_model(written.model, place), written


@pytest.fixture(scope="module")
def plan(bert_dir: Path) -> Any:
    return make_plan(open_source(bert_dir))


@pytest.mark.parametrize("exporter", BOTH)
def test_input_that_changes_no_output_is_left_out_and_named(exporter: str, plan: Any, tmp_path: Path) -> None:
    import torch

    class Ignores(torch.nn.Module):
        def forward(self, a: Any, unused: Any, b: Any) -> Any:
            return (a - b).float()

    path, written = write(exporter, Ignores(), ["a", "unused", "b"], tmp_path / "out", plan)
    assert [tensor.name for tensor in read_onnx(path).inputs] == ["a", "b"]
    assert written.dropped == ("unused",)


@pytest.mark.parametrize("exporter", BOTH)
def test_files_are_alike_whoever_writes_them(exporter: str, bert_dir: Path, tmp_path: Path) -> None:
    import onnx

    result = export_model(bert_dir, tmp_path, "m", ExportOptions(exporter=exporter), console=SILENT)  # type: ignore[arg-type]
    model = onnx.load(result.model_file)
    axes = {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*model.graph.input, *model.graph.output)
    }
    assert list(axes) == ["input_ids", "attention_mask", "token_type_ids", "last_hidden_state"]
    assert axes.pop("last_hidden_state") == ["batch", "sequence", 32]
    assert set(map(tuple, axes.values())) == {("batch", "sequence")}
    assert (model.ir_version, [(o.domain, o.version) for o in model.opset_import]) == (8, [("", 18)])
    # Nothing of the machine that wrote it: torch notes the source line of each operator.
    assert str(Path.home()).encode() not in model.SerializeToString()
    assert b"site-packages" not in model.SerializeToString()
    assert not model.metadata_props and not any(node.metadata_props for node in model.graph.node)
    assert (result.manifest.exporter, result.manifest.passed_over) == (exporter, ())


def test_first_exporter_that_verifies_is_taken_and_the_reason_kept(
    bert_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tried = export.build.run_exporter, []

    def gives_up(name: str, graph: Any, *rest: Any) -> Any:
        tried.append(name)
        if name == "dynamo":
            graph = Graph(graph.module, (), graph.inputs, graph.outputs)  # no arguments to trace it with
        return real(name, graph, *rest)

    monkeypatch.setattr(export.build, "run_exporter", gives_up)
    monkeypatch.setattr(export.build, "candidates", lambda *_: ("dynamo", "torchscript"))
    manifest = export_model(bert_dir, tmp_path, "m", console=SILENT).manifest
    assert (tried, manifest.exporter) == (["dynamo", "torchscript"], "torchscript")
    (passed,) = manifest.passed_over
    assert passed.exporter == "dynamo"
    assert passed.reason.startswith("torch's exporter `dynamo` cannot export the model: ")


@pytest.mark.long
def test_file_that_is_wrong_is_passed_over_too(bert_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, saved = export.build.save_model, []

    def scaled(model: Any, *rest: Any) -> Path:
        import onnx_ir

        saved.append(model)
        if len(saved) == 1:
            for value in model.graph.initializers.values():
                if value.const_value.dtype == onnx_ir.DataType.FLOAT:
                    value.const_value = onnx_ir.tensor(value.const_value.numpy() * np.float32(1.001))
        return real(model, *rest)

    monkeypatch.setattr(export.build, "save_model", scaled)
    manifest = export_model(bert_dir, tmp_path, "m", console=SILENT).manifest
    assert manifest.exporter == "dynamo"
    assert "a difference of" in manifest.passed_over[0].reason


@pytest.mark.long
def test_when_none_verifies_the_last_one_says_why(make_model: Callable[..., Path], tmp_path: Path) -> None:
    longformer = make_model(tmp_path / "longformer", "longformer")  # pads to its window by an amount that is frozen
    with pytest.raises((Refused, ExternalError)):
        export_model(longformer, tmp_path / "repository", "m", console=SILENT)
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize(
    ("release", "opset", "ir", "exporter"), [("23.01", 17, 8, "torchscript"), ("23.05", 18, 8, "torchscript")]
)
def test_release_decides_what_the_file_asks_for(
    release: str, opset: int, ir: int, exporter: str, bert_dir: Path, tmp_path: Path
) -> None:
    manifest = export_model(bert_dir, tmp_path, "m", ExportOptions(release=release), console=SILENT).manifest
    assert (manifest.opset, manifest.ir_version, manifest.exporter) == (opset, ir, exporter)
    assert manifest.release == release


@pytest.mark.parametrize(
    ("opset", "exporter", "ir"),
    [(14, "torchscript", 7), (20, "torchscript", 9), pytest.param(21, "dynamo", 10, marks=pytest.mark.long)],
)
def test_both_ends_of_the_opsets(opset: int, exporter: str, ir: int, bert_dir: Path, tmp_path: Path) -> None:
    manifest = export_model(
        bert_dir, tmp_path, options=ExportOptions(opset=opset, exporter=exporter), console=SILENT
    ).manifest  # type: ignore[arg-type]
    assert (manifest.opset, manifest.ir_version) == (opset, ir)


def test_exporter_that_does_not_write_the_opset(bert_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"dynamo.*18 to 23"):
        export_model(bert_dir, tmp_path, "m", ExportOptions(exporter="dynamo", opset=17), console=SILENT)


def test_weights_beyond_a_size_stand_in_a_file_of_their_own(bert_dir: Path, tmp_path: Path) -> None:
    options = ExportOptions(exporter="torchscript", inline_bytes=10_000)
    result = export_model(bert_dir, tmp_path, "m", options, console=SILENT)
    version = result.model_dir / "1"
    assert sorted(str(p.relative_to(version)) for p in version.rglob("*") if p.is_file()) == [
        "model.onnx/model.onnx",
        "model.onnx/model.onnx.data",
    ]
    assert result.model_file.stat().st_size < 60_000
    assert result.manifest.model_bytes > 90_000
    assert export_model(bert_dir, tmp_path, "m", options, console=SILENT).reused
    with (version / "model.onnx" / "model.onnx.data").open("r+b") as data:
        data.write(b"damaged")
    repaired = export_model(bert_dir, tmp_path, "m", options, console=SILENT)
    assert b"damaged" not in (version / "model.onnx" / "model.onnx.data").read_bytes()[:7]
    assert repaired.manifest == result.manifest
