"""The verification says no to each classic mistake, made for real, and yes to the right file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.plan import ExportPlan, Normalize, Pool, make_plan
from export.quiet import quiet
from export.source import open_source
from export.torch_onnx import TorchModel, load_model, torch_reference, write_onnx
from export.verify import SHAPES, Verification, verify
from tooling.console import Console
from tooling.errors import UsageError

SILENT = Console(quiet=True)
STEPS = (Pool("mean"), Normalize())
Forward = Callable[[Any, Any, Any, Any], Any]


@pytest.fixture(scope="module")
def plan(bert_dir: Path) -> ExportPlan:
    base = make_plan(open_source(bert_dir))
    return ExportPlan(STEPS, base.opset, base.max_tokens, base.vocabulary, base.pad_token, base.token_types)


@pytest.fixture(scope="module")
def model(bert_dir: Path, plan: ExportPlan) -> TorchModel:
    with quiet(SILENT):
        return load_model(open_source(bert_dir), plan)


@pytest.fixture
def judge(model: TorchModel, plan: ExportPlan, tmp_path: Path) -> Callable[..., Verification]:
    """Export `forward(transformer, ids, mask, types)` for real and verify the file against the model."""

    def run(forward: Forward, transformer: Any = model.transformer, axes: bool = True) -> Verification:
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
            return verify(path, torch_reference(model, STEPS), plan)

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


def positions_of_the_sample(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
    import torch

    return _mean(_vectors(transformer, ids, mask, types, position_ids=torch.arange(8)[None]), mask)


def positions_that_stop(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
    import torch

    stopped = torch.arange(ids.shape[1]).clamp(max=7)[None]
    return _mean(_vectors(transformer, ids, mask, types, position_ids=stopped), mask)


def test_right_file_passes_on_at_least_six_shapes_with_padding(
    model: TorchModel, plan: ExportPlan, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    with quiet(SILENT):
        write_onnx(model, plan, path)
        found = verify(path, torch_reference(model, STEPS), plan)
    assert found.passed
    assert 0 < found.worst.max_abs_error < 1e-5
    assert len({(c.batch, c.length) for c in found.checks}) == len(SHAPES) >= 6


def test_mistakes_below_are_the_only_difference_from_a_right_file(judge: Callable[..., Verification]) -> None:
    assert judge(right).passed


@pytest.mark.parametrize(
    "mistake", [mask_ignored, pooled_without_mask, token_types_ignored, positions_of_the_sample, positions_that_stop]
)
def test_wrong_graph_is_refused(mistake: Forward, judge: Callable[..., Verification]) -> None:
    assert not judge(mistake).passed


def test_mask_matters_only_where_there_is_padding(judge: Callable[..., Verification]) -> None:
    errors = {(c.batch, c.length): c.max_abs_error for c in judge(mask_ignored).checks}
    assert errors[1, 16] < 1e-5 < 1e-2 < errors[3, 9]


def test_frozen_axes_are_refused_with_the_reason_of_onnxruntime(judge: Callable[..., Verification]) -> None:
    found = judge(right, axes=False)
    assert not found.passed
    assert "invalid dimensions" in (found.worst.failure or "")


def test_weights_off_by_a_thousandth_are_refused(judge: Callable[..., Verification], model: TorchModel) -> None:
    import torch

    scaled = copy.deepcopy(model.transformer)
    with torch.no_grad():
        for weight in scaled.parameters():
            weight *= 1.001
    found = judge(right, scaled)
    assert not found.passed
    assert found.worst.max_abs_error < 0.1


def test_not_a_number_is_refused(judge: Callable[..., Verification]) -> None:
    def divided_by_zero(transformer: Any, ids: Any, mask: Any, types: Any) -> Any:
        return right(transformer, ids, mask, types) / (mask.sum() - mask.sum())

    assert not judge(divided_by_zero).passed


def test_answer_of_another_shape_is_refused(judge: Callable[..., Verification]) -> None:
    found = judge(lambda t, ids, mask, types: right(t, ids, mask, types)[:, :8])
    assert not found.passed
    assert "an answer of shape" in (found.worst.failure or "")


def test_garbage_file_is_a_usage_error(model: TorchModel, plan: ExportPlan, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not an onnx file")
    with pytest.raises(UsageError, match="onnxruntime cannot load"):
        verify(path, torch_reference(model, STEPS), plan)
