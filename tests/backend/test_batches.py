"""Requests become one feed, and outputs come back to the requests they belong to."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def layout(backend_modules: Callable[[str], ModuleType]) -> Callable[..., Any]:
    native_config, native_batch = backend_modules("native_config"), backend_modules("native_batch")

    def make(elements: dict[str, tuple[Any, ...]], batch: int = 8, ragged: tuple[str, ...] = (), **more: Any) -> Any:
        tensors = {name: native_config.Tensor(kind, tuple(dims)) for name, (kind, *dims) in elements.items()}
        config = {
            "max_batch_size": batch,
            "input": [{"name": name, "allow_ragged_batch": name in ragged} for name in elements],
            "output": [{"name": "y", "dims": [-1]}],
        } | more
        return native_batch.BatchLayout(config, SimpleNamespace(inputs=tensors, initializers={}), "m_0")

    return make


def _requests(*shapes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Requests for `x` whose values tell them apart."""
    return [{"x": np.full(shape, index, np.float32)} for index, shape in enumerate(shapes)]


def test_a_single_request_is_not_copied(layout: Callable[..., Any]) -> None:
    plain = layout({"x": ("float", -1, -1)})
    [request] = _requests((2, 3))
    batch = plain.gather([request])
    output = np.zeros((2, 5), np.float32)
    assert batch.feed["x"] is request["x"]
    assert plain.split("y", output, batch)[0] is output


def test_batch_is_split_by_the_size_of_each_request(layout: Callable[..., Any]) -> None:
    plain = layout({"x": ("float", -1, -1)})
    batch = plain.gather(_requests((2, 3), (1, 3), (3, 3)))
    parts = plain.split("y", batch.feed["x"], batch)
    assert [part.shape for part in parts] == [(2, 3), (1, 3), (3, 3)]
    assert [set(part.flat) for part in parts] == [{0.0}, {1.0}, {2.0}]


def test_too_large_a_batch_is_refused(layout: Callable[..., Any], backend_modules: Callable[[str], ModuleType]) -> None:
    plain = layout({"x": ("float", -1, -1)}, batch=2)
    with pytest.raises(backend_modules("native_config").Refusal, match="batch size 3 for 'm_0', max allowed is 2"):
        plain.gather(_requests((2, 1), (1, 1)))


def test_a_short_output_fails_only_the_requests_it_is_short_for(
    layout: Callable[..., Any], backend_modules: Callable[[str], ModuleType]
) -> None:
    plain = layout({"x": ("float", -1, -1)})
    batch = plain.gather(_requests((1, 3), (1, 3)))
    first, second = plain.split("y", np.zeros((1, 3), np.float32), batch)
    assert first.shape == (1, 3)
    assert isinstance(second, backend_modules("native_config").Refusal)
    assert str(second) == (
        "failed to split the output tensor 'y' in responses: expected batch size of atleast 2 in model output, got 1"
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [6, 2]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [6, 8]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 6, 8]),
        ("BATCH_ITEM_SHAPE", [[3, 1], [3, 1], [2, 1]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 1, 3, 1, 2, 1]),
    ],
)
@pytest.mark.parametrize(("data_type", "numpy_type"), [("TYPE_INT32", np.int32), ("TYPE_FP32", np.float32)])
def test_batch_inputs(
    layout: Callable[..., Any], kind: str, expected: list[Any], data_type: str, numpy_type: type
) -> None:
    described = {"kind": kind, "target_name": ["n"], "data_type": data_type, "source_input": ["x"]}
    feed = (
        layout({"x": ("float", -1)}, ragged=("x",), batch_input=[described])
        .gather(_requests((2, 3, 1), (1, 2, 1)))
        .feed
    )
    assert feed["x"].tolist() == [0.0] * 6 + [1.0] * 2
    assert feed["n"].dtype == numpy_type
    assert feed["n"].tolist() == expected


def test_the_largest_request_gives_the_shape(layout: Callable[..., Any]) -> None:
    described = {
        "kind": "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
        "target_name": ["n", "again"],
        "data_type": "TYPE_INT32",
        "source_input": ["x"],
    }
    feed = layout({"x": ("float", -1)}, ragged=("x",), batch_input=[described]).gather(_requests((1, 2), (1, 5))).feed
    assert feed["n"].shape == feed["again"].shape == (5,)


def test_batch_output_is_scattered_by_the_shapes_of_its_source(layout: Callable[..., Any]) -> None:
    ragged = layout({"x": ("float", -1)}, ragged=("x",), batch_output=[{"target_name": ["y"], "source_input": ["x"]}])
    batch = ragged.gather(_requests((1, 2), (1, 5)))
    first, second = ragged.split("y", batch.feed["x"], batch)
    assert first.tolist() == [[0.0, 0.0]]
    assert second.tolist() == [[1.0] * 5]


def test_scalars_and_text_take_the_form_onnxruntime_wants(layout: Callable[..., Any]) -> None:
    text = np.array([b"caf\xc3\xa9", b"\xff"], dtype=np.object_)
    single = layout({"x": ("float",), "t": ("string", 2)}, batch=0)
    feed = single.gather([{"x": np.array([3.0], np.float32), "t": text}]).feed
    assert feed["x"].shape == ()
    assert feed["t"].tolist() == text.tolist()
