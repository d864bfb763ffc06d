"""Accelerators inside ONNX Runtime: options that nobody reads, profiles that do not fit the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.config.build import build_config
from tooling.config.changes import Changes
from tooling.config.knobs import Knobs
from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature, TensorSpec

SIGNATURE = ModelSignature(
    Path("model.onnx"),
    "onnxruntime",
    (TensorSpec("ids", "TYPE_INT64", (-1, -1)),),
    (TensorSpec("emb", "TYPE_FP32", (-1, 4)),),
)
SHAPES = {f"trt_profile_{which}_shapes": f"ids:{shape}" for which, shape in
          (("min", "1x1"), ("opt", "8x64"), ("max", "8x128"))}  # fmt: skip


def build(settings: dict):
    return build_config(SIGNATURE, "m", Knobs(), changes=Changes(settings, "f"))


def gpu(name: str, **parameters) -> dict:
    accelerators = {"gpu_execution_accelerator": [{"name": name, "parameters": parameters}]}
    return {"optimization": {"execution_accelerators": accelerators}}


def cpu(name: str, **parameters) -> dict:
    accelerators = {"cpu_execution_accelerator": [{"name": name, "parameters": parameters}]}
    return {"optimization": {"execution_accelerators": accelerators}}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (gpu("tensorrt", **SHAPES | {"trt_profile_opt_shapes": "ids=8"}), "(got `ids=8`; expected NAME:AxB"),
        (gpu("tensorrt", **SHAPES | {"trt_profile_opt_shapes": "idz:8x64"}), "`idz` is no input of the model"),
        (gpu("tensorrt", **SHAPES | {"trt_profile_max_shapes": "ids:4x128"}), "below max_batch_size (got ids:4x128"),
        (gpu("cuda", device_id=0), "`device_id` is set by the backend itself"),
        (gpu("cuda", use_tf23=1), "the cuda accelerator has no parameter `use_tf23`"),
        (gpu("cuda", use_tf32="yes"), "cuda accelerator: `use_tf32` has a value that is not understood"),
        (cpu("openvino", device="CPU"), "the openvino accelerator reads no parameters (got device"),
    ],
)  # fmt: skip
def test_what_would_be_ignored_or_does_not_fit(settings, said):
    with pytest.raises(UsageError) as caught:
        build(settings)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"parameters": {"intra_op_thread_count": 2, "execution_mode": 1, "enable_mem_pattern": False}},
        {"parameters": {"gpu_mem_limit": 2**30, "arena_extend_strategy": 1, "team": "search"}},
        {"parameters": {"memory.enable_memory_arena_shrinkage": "cpu:0;gpu:0"}},
        gpu("tensorrt", precision_mode="FP16", max_workspace_size_bytes=2**30, trt_engine_cache_path="/c", **SHAPES),
        gpu("cuda", use_tf32=0, prefer_nhwc=True),
        cpu("openvino"),
    ],
)
def test_what_the_backend_reads(settings):
    build(settings)


def test_names_are_suggested():
    with pytest.raises(UsageError) as caught:
        build(gpu("cuda", use_tf23=1))
    assert caught.value.problems[0].hint == "did you mean `use_tf32`?"
