"""The verification says no to each classic mistake, made for real, and yes to the right file."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.batches import LEFT_SHAPES, SHAPES
from export.exporters import run_exporter
from export.graph import Reference, make_graph
from export.model_file import save_model
from export.plan import ExportPlan, Normalize, Pool, make_plan
from export.quiet import quiet
from export.source import open_source
from export.torch_model import TorchModel, load_model
from export.verify import Verification, verify
from tooling.console import Console
from tooling.errors import UsageError

SILENT = Console(quiet=True)
STEPS = (Pool("mean"), Normalize())
Forward = Callable[[Any, Any, Any, Any], Any]


@pytest.fixture(scope="module")
def plan(bert_dir: Path) -> ExportPlan:
    return dataclasses.replace(make_plan(open_source(bert_dir)), steps=STEPS)


@pytest.fixture(scope="module")
def tokenizer(bert_dir: Path) -> Path:
    return bert_dir / "tokenizer.json"


@pytest.fixture(scope="module")
def model(bert_dir: Path, plan: ExportPlan) -> TorchModel:
    with quiet(SILENT):
        return load_model(open_source(bert_dir), plan)


@pytest.fixture
def judge(model: TorchModel, plan: ExportPlan, tokenizer: Path, tmp_path: Path) -> Callable[..., Verification]:
    """Export `forward(transformer, ids, mask, types)` for real and verify the file against the model."""

    def run(
        forward: Forward, transformer: Any = model.module, axes: bool = True, precision: str = "fp32"
    ) -> Verification:
        import torch

        class Broken(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.transformer = transformer

            def forward(self, ids: Any, mask: Any, types: Any) -> Any:
                pooled = forward(self.transformer, ids, mask, types)
                return pooled / pooled.norm(dim=-1, keepdim=True)

        path = tmp_path / "broken.onnx"
        ids = torch.full((2, 8), 5)
        mask = torch.ones_like(ids)
        mask[1, 4:] = 0
        free = {name: {0: "batch", 1: "sequence"} for name in model.inputs} | {"embeddings": {0: "batch"}}
        with quiet(SILENT), torch.no_grad():
            torch.onnx.export(
                Broken().eval(),
                (ids, mask, torch.zeros_like(ids)),
                str(path),
                input_names=list(model.inputs),
                output_names=["embeddings"],
                dynamic_axes=free if axes else None,
                opset_version=17,
                dynamo=False,
            )
        with quiet(SILENT):
            return verify(path, Reference(model, plan), plan, tokenizer, precision)

    return run


def _vectors(transformer: Any, ids: Any, mask: Any, types: Any, **more: Any) -> Any:
    return transformer(input_ids=ids, attention_mask=mask, token_type_ids=types, **more).last_hidden_state


def _mean(vectors: Any, mask: Any) -> Any:
    kept = mask.unsqueeze(-1).to(vectors.dtype)
    return (vectors * kept).sum(1) / kept.sum(1)


def right(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
    return _mean(_vectors(transformer, ids, mask, types), mask)


def mask_ignored(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
    import torch

    return _mean(_vectors(transformer, ids, torch.ones_like(mask), types), mask)


def pooled_without_mask(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
    return _vectors(transformer, ids, mask, types).mean(1)


def token_types_ignored(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
    return right(transformer, ids, mask, types * 0)


def inputs_swapped(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
    return right(transformer, ids, types + mask, mask)


def positions_of_the_sample(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
    import torch

    return _mean(_vectors(transformer, ids, mask, types, position_ids=torch.arange(8)[None]), mask)


def positions_that_stop(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
    import torch

    stopped = torch.arange(ids.shape[1]).clamp(max=7)[None]
    return _mean(_vectors(transformer, ids, mask, types, position_ids=stopped), mask)


def test_right_file_passes_on_at_least_six_shapes_with_padding(
    model: TorchModel, plan: ExportPlan, tokenizer: Path, tmp_path: Path
) -> None:
    with quiet(SILENT):
        written = run_exporter("torchscript", make_graph(model, plan), plan, tmp_path)
        found = verify(save_model(written.model, tmp_path), Reference(model, plan), plan, tokenizer)
    assert found.passed
    assert 0 < found.worst.max_abs_error < 1e-5
    assert found.cosine is not None and found.cosine > 0.99999
    named = [check.batch for check in found.checks]
    assert [sum(word in name for name in named) for word in ("right-padded", "left-padded", "sentences")] == [
        len(SHAPES),
        len(LEFT_SHAPES),
        4,
    ]


def test_mistakes_below_are_the_only_difference_from_a_right_file(judge: Callable[..., Verification]) -> None:
    assert judge(right).passed


@pytest.mark.parametrize(
    "mistake",
    [
        mask_ignored,
        pooled_without_mask,
        token_types_ignored,
        positions_of_the_sample,
        positions_that_stop,
        inputs_swapped,
    ],
)
def test_wrong_graph_is_refused(mistake: Forward, judge: Callable[..., Verification]) -> None:
    assert not judge(mistake).passed


def test_mask_matters_only_where_there_is_padding(judge: Callable[..., Verification]) -> None:
    errors = {check.batch: check.max_abs_error for check in judge(mask_ignored).checks}
    assert errors["1 × 16 tokens, right-padded"] < 1e-5 < 1e-2 < errors["3 × 9 tokens, right-padded"]


def test_frozen_axes_are_refused_with_the_reason_of_onnxruntime(judge: Callable[..., Verification]) -> None:
    found = judge(right, axes=False)
    assert not found.passed
    assert "invalid dimensions" in (found.worst.failure or "")


def test_weights_off_by_a_thousandth_are_refused(judge: Callable[..., Verification], model: TorchModel) -> None:
    import torch

    scaled = copy.deepcopy(model.module)
    with torch.no_grad():
        for weight in scaled.parameters():
            weight *= 1.001
    found = judge(right, scaled)
    assert not found.passed
    assert found.worst.max_abs_error < 0.1
    (fault,) = found.faults()
    assert "embeddings[" in fault and "limit 0.0001" in fault


def test_not_a_number_is_refused(judge: Callable[..., Verification]) -> None:
    def divided_by_zero(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
        return right(transformer, ids, mask, types) / (mask.sum() - mask.sum())

    found = judge(divided_by_zero)
    assert not found.passed
    assert "infinite or not a number" in next(found.faults())


def test_answer_of_another_shape_is_refused(judge: Callable[..., Verification]) -> None:
    found = judge(lambda t, ids, mask, types: right(t, ids, mask, types)[:, :8])
    assert not found.passed
    assert "an answer of shape" in (found.worst.failure or "")


def test_garbage_file_is_a_usage_error(model: TorchModel, plan: ExportPlan, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not an onnx file")
    with pytest.raises(UsageError, match="onnxruntime cannot load"):
        verify(path, Reference(model, plan), plan)


@pytest.mark.parametrize("mistake", [mask_ignored, pooled_without_mask, positions_that_stop])
def test_looser_limits_of_half_precision_still_refuse(mistake: Forward, judge: Callable[..., Verification]) -> None:
    assert not judge(mistake, precision="fp16").passed
