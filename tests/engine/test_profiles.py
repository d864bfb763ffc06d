"""Which shapes an engine is built for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.engine.profiles import ShapeRange, parse_shapes, profile_from_shapes, profiles_of
from tooling.errors import UsageError
from tooling.signature.onnx_file import read_onnx
from tooling.signature.spec import ModelSignature, TensorSpec

ENCODER = ModelSignature(
    Path("model.onnx"),
    "onnxruntime",
    tuple(TensorSpec(name, "TYPE_INT64", (-1, -1)) for name in ("input_ids", "attention_mask")),
    (TensorSpec("embeddings", "TYPE_FP32", (-1, 384)),),
)


def test_one_profile_for_every_length() -> None:
    (profile,) = profiles_of(ENCODER, ShapeRange(max_batch=16, edges=(512,), opt_batch=8, opt_length=100))
    for name in ("input_ids", "attention_mask"):
        assert (profile.smallest[name], profile.best[name], profile.largest[name]) == ((1, 1), (8, 100), (16, 512))


def test_a_profile_for_each_bucket_is_best_at_its_edge() -> None:
    profiles = profiles_of(ENCODER, ShapeRange(max_batch=8, edges=(64, 128, 256), opt_batch=8))
    lengths = [tuple(s["input_ids"][1] for s in (p.smallest, p.best, p.largest)) for p in profiles]
    assert lengths == [(1, 64, 64), (65, 128, 128), (129, 256, 256)]
    assert {p.batches for p in profiles} == {(1, 8)}


@given(
    edges=st.lists(st.integers(1, 4096), min_size=1, max_size=6, unique=True).map(sorted),
    max_batch=st.integers(1, 64),
    length=st.integers(1, 4096),
)
def test_every_length_up_to_the_last_edge_lies_in_exactly_one_profile(edges: list[int], max_batch: int, length: int):
    profiles = profiles_of(ENCODER, ShapeRange(max_batch, tuple(edges), max_batch))
    inside = [p for p in profiles if p.smallest["input_ids"][1] <= length <= p.largest["input_ids"][1]]
    assert len(inside) == (1 if length <= edges[-1] else 0)
    for profile in profiles:
        for name, least in profile.smallest.items():
            assert all(a <= b <= c for a, b, c in zip(least, profile.best[name], profile.largest[name], strict=True))


def test_fixed_shapes_need_no_profile(encoder: Callable[..., Path]) -> None:
    fixed = read_onnx(encoder((("input_ids", "INT64", [8, 128]),)))
    assert profiles_of(fixed, ShapeRange(8, (128,), 8)) == ()


def test_an_axis_that_is_neither_batch_nor_length_needs_shapes() -> None:
    pixels = TensorSpec("pixel_values", "TYPE_FP32", (-1, 3, -1, -1))
    image = ModelSignature(Path("model.onnx"), "onnxruntime", (pixels,), ())
    with pytest.raises(UsageError, match=r"dynamic input pixel_values needs min/opt/max shapes"):
        profiles_of(image, ShapeRange(8, (128,), 8))
    shapes = [parse_shapes(f"pixel_values:{text}") for text in ("1x3x224x224", "4x3x224x224", "8x3x448x448")]
    assert profile_from_shapes(image, *shapes).largest == {"pixel_values": (8, 3, 448, 448)}


@pytest.mark.parametrize(
    ("traffic", "message"),
    [
        (ShapeRange(0, (128,), 1), "no batch fits"),
        (ShapeRange(8, (128,), 9), "the usual batch is outside the profile"),
        (ShapeRange(8, (), 8), "no usable length edges"),
        (ShapeRange(8, (128, 64), 8), "no usable length edges"),
        (ShapeRange(8, (64, 128), 8, opt_length=64), "a usual length has no meaning with several buckets"),
        (ShapeRange(8, (64,), 8, opt_length=65), "the usual length is outside the profile"),
    ],
)
def test_ranges_that_contradict_themselves(traffic: ShapeRange, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        profiles_of(ENCODER, traffic)


@pytest.mark.parametrize(
    ("smallest", "best", "largest", "message"),
    [
        ("input_ids:1x1", "input_ids:1x8", "input_ids:8x8", "dynamic input attention_mask needs"),
        ("ids:1x1", "", "", "no such input .*`ids` in the min shapes.*"),
        ("input_ids:1x1x1", "input_ids:1x8", "input_ids:8x8", "shapes of another rank than input input_ids"),
        ("input_ids:1x9", "input_ids:1x8", "input_ids:8x8", "shapes of input_ids do not rise on axis 1"),
    ],
)
def test_shapes_by_hand_are_checked(smallest: str, best: str, largest: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        profile_from_shapes(ENCODER, *(parse_shapes(text) if text else {} for text in (smallest, best, largest)))


@pytest.mark.parametrize("text", ["input_ids", "input_ids:", "input_ids:1x", "input_ids:ax1", ":1x1", "input_ids:0x1"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(UsageError, match="not a shape"):
        parse_shapes(text)
