"""The backend's rules beyond the recorded verdicts, on signatures and configurations as Triton hands them over."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

Rules = Callable[..., None]


@pytest.fixture
def native(backend_modules: Callable[[str], ModuleType]) -> ModuleType:
    return backend_modules("native_config")


def _signature(native: ModuleType, inputs: dict[str, Any], outputs: dict[str, Any], **initializers: Any) -> Any:
    made = [
        {name: native.Tensor(element, tuple(dims)) for name, (element, *dims) in group.items()}
        for group in (inputs, outputs, initializers)
    ]
    return native.Signature(*made)


def _config(inputs: list[Any], outputs: list[Any], batch: int = 8, **more: Any) -> dict[str, Any]:
    return {"name": "m", "max_batch_size": batch, "input": inputs, "output": outputs} | more


def _io(name: str, dims: list[int], data_type: str = "TYPE_FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims} | more


X = {"x": ("float", -1, 4)}
Y = {"y": ("float", -1, 4)}
CONTROL = {"name": "start", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]}


@pytest.mark.parametrize(
    ("inputs", "outputs", "config", "text"),
    [
        pytest.param(
            {"x": ("bfloat16", -1, 4)},
            Y,
            _config([_io("x", [4], "TYPE_BF16")], [_io("y", [4])]),
            "unsupported datatype TYPE_BF16 for input 'x' for model 'm'",
            id="type without counterpart",
        ),
        pytest.param(
            {"x": ("string", -1, 4)},
            Y,
            _config([_io("x", [4])], [_io("y", [4])]),
            "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'x', model provides "
            "TYPE_BYTES",
            id="text is called bytes",
        ),
        pytest.param(
            {"x": ("float", 2, 4)},
            {"y": ("float", 2, 4)},
            _config([_io("x", [2])], [_io("y", [2, 4])], batch=0),
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [2,4]) but the model configuration specifies "
            "1 dimensions (shape [2])",
            id="rank without batching",
        ),
        pytest.param(
            {"x": ("float",)},
            {"y": ("float",)},
            _config([_io("x", [2])], [_io("y", [1])], batch=0),
            "unable to load model 'm', scalar tensor 'x', should only provide 1 in the model configuration when the "
            "model doesn't support batching. Model configuration provided: [2].",
            id="scalar",
        ),
        pytest.param(
            X,
            Y,
            _config([_io("x", [-1], allow_ragged_batch=True)], [_io("y", [4])]),
            "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input "
            "'x', model provides [-1,4]",
            id="ragged needs one open axis",
        ),
        pytest.param(
            X,
            Y,
            _config([_io("x", [4]), _io("w", [1], optional=True)], [_io("y", [4])]),
            "unable to load model 'm', optional input 'w' is not supported for models that support batching",
            id="optional with batching",
        ),
        pytest.param(
            X,
            Y,
            _config([_io("x", [4])], [_io("y", [4])], sequence_batching={"control_input": [CONTROL]}),
            "configuration specified sequence control 'start', but model does not provide that input",
            id="control the model lacks",
        ),
        pytest.param(
            X | {"start": ("int32", -1, 2)},
            Y,
            _config([_io("x", [4])], [_io("y", [4])], sequence_batching={"control_input": [CONTROL]}),
            "unable to load model 'm', sequence control 'start' in model has dims [2] but dims [1] is expected",
            id="control of another shape",
        ),
        pytest.param(
            X | {"start": ("float", -1, 1)},
            Y,
            _config([_io("x", [4])], [_io("y", [4])], sequence_batching={"control_input": [CONTROL]}),
            "unable to load model 'm', sequence control 'start', the model expects data-type FLOAT but the model "
            "configuration specifies data-type TYPE_INT32",
            id="control of another type",
        ),
        pytest.param(
            X,
            Y,
            _config([_io("x", [4])], [_io("y", [4])], sequence_batching={"state": [{"input_name": "x"}]}),
            "unable to load model 'm', implicit state is not supported without the native ONNX Runtime backend: the "
            "model would read uninitialized memory; remove `sequence_batching.state` or serve it in the container",
            id="implicit state",
        ),
    ],
)
def test_refusals(native: ModuleType, inputs: Any, outputs: Any, config: dict[str, Any], text: str) -> None:
    with pytest.raises(native.Refusal) as refusal:
        native.validate(config, _signature(native, inputs, outputs))
    assert str(refusal.value) == text


@pytest.mark.parametrize(
    ("inputs", "initializers", "config"),
    [
        pytest.param(
            X | {"start": ("int32", -1, 1)},
            {},
            _config([_io("x", [4])], [_io("y", [4])], sequence_batching={"control_input": [CONTROL]}),
            id="sequence control counts as an input",
        ),
        pytest.param(
            {"x": ("float", 2, 4)},
            {"w": ("float", 4)},
            _config([_io("x", [2, 4]), _io("w", [4], optional=True)], [_io("y", [-1, 4])], batch=0),
            id="optional initializer",
        ),
        pytest.param(
            {"x": ("float", -1)},
            {},
            _config([_io("x", [1], reshape={"shape": []})], [_io("y", [4])]),
            id="reshape replaces dims",
        ),
        pytest.param(
            {"x": ("float",)}, {}, _config([_io("x", [1])], [_io("y", [-1, 4])], batch=0), id="scalar as one element"
        ),
    ],
)
def test_accepted(native: ModuleType, inputs: Any, initializers: Any, config: dict[str, Any]) -> None:
    native.validate(config, _signature(native, inputs, Y, **initializers))


def test_auto_complete_reads_the_model_only_when_something_is_missing(native: ModuleType) -> None:
    listed = _config([_io("x", [4])], [_io("y", [4])], batch=0)
    native.auto_complete(listed, lambda: pytest.fail("the model was read"))
    assert listed == _config([_io("x", [4])], [_io("y", [4])], batch=0)


def test_auto_complete_gives_a_batching_scalar_an_empty_reshape(native: ModuleType) -> None:
    config: dict[str, Any] = {"name": "m", "max_batch_size": 0, "input": [], "output": []}
    native.auto_complete(config, lambda: _signature(native, {"x": ("float", -1)}, {"y": ("float", -1, 3)}))
    assert config == {
        "name": "m",
        "max_batch_size": 4,
        "dynamic_batching": {},
        "input": [_io("x", [1], reshape={"shape": []})],
        "output": [_io("y", [3])],
    }


@pytest.mark.parametrize("scheduler", ["sequence_batching", "dynamic_batching"])
def test_auto_complete_keeps_a_scheduler(native: ModuleType, scheduler: str) -> None:
    config: dict[str, Any] = {"name": "m", "max_batch_size": 2, "input": [], "output": [], scheduler: {"kept": 1}}
    native.auto_complete(config, lambda: _signature(native, X, Y))
    assert config[scheduler] == {"kept": 1}
    assert len({"sequence_batching", "dynamic_batching"} & config.keys()) == 1


@pytest.mark.parametrize(("text", "value"), [("4", 4), (" -1", -1), ("4abc", 4), ("+2", 2)])
def test_integers_parse_like_stoi(native: ModuleType, text: str, value: int) -> None:
    assert native.parse_int(text) == value


@pytest.mark.parametrize(("text", "value"), [("ON", True), ("1", True), ("false", False), ("0", False)])
def test_booleans(native: ModuleType, text: str, value: bool) -> None:
    assert native.parse_bool(text) is value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        ("parse_int", "failed to convert 'two' to integral number"),
        ("parse_bool", "failed to convert 'two' to boolean"),
    ],
)
def test_unreadable_values(native: ModuleType, parse: str, text: str) -> None:
    with pytest.raises(native.Refusal, match=text):
        getattr(native, parse)("two")
