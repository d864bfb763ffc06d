"""A Python model's auto_complete_config is read as text: literal values count, nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.errors import UsageError
from tooling.signature.declared import Declared, declare
from tooling.signature.python_model import read_python_text

PATH = Path("model.py")
HEAD = "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"


def read(body: str, declared: Declared = Declared(), head: str = HEAD):
    text = head + "\n".join(f"        {line}" for line in body.splitlines())
    return read_python_text(text.encode(), PATH, declared)


def tensors(signature) -> list[tuple]:
    return [(t.name, t.data_type, t.dims, t.optional) for t in (*signature.inputs, *signature.outputs)]


X = '{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}'
Y = '{"name": "y", "data_type": "TYPE_INT64", "dims": [-1], "optional": True}'


@pytest.mark.parametrize(
    "body",
    [
        f"config.add_input({X})\nconfig.add_output({Y})\nconfig.set_max_batch_size(8)",
        f"a = {X}\nb: dict = {Y}\nn = 8\nconfig.add_input(input=a)\nconfig.add_output(b)\nconfig.set_max_batch_size(n)",
        (
            f"for t in [{X}]:\n    if t['name'] not in seen:\n        config.add_input(t)\n"
            f"try:\n    config.add_output({Y})\nfinally:\n    config.set_max_batch_size(8)"
        ),
        (
            "config.add_input(dict(name='x', data_type='TYPE_FP32', dims=(4,)))\n"
            f"config.add_output({Y})\nconfig.set_max_batch_size(8)"
        ),
    ],
    ids=["literals", "names", "loops and branches", "dict call"],
)
def test_the_ways_people_write_it(body):
    signature = read(body)
    assert tensors(signature) == [("x", "TYPE_FP32", (-1, 4), False), ("y", "TYPE_INT64", (-1, -1), True)]
    assert (signature.max_batch_size, signature.decoupled) == (8, False)


def test_constants_of_the_module_count():
    signature = read("for t in INPUTS:\n    config.add_input(t)", head=f"INPUTS = [{X}]\n{HEAD}")
    assert [t.name for t in signature.inputs] == ["x"]


def test_without_a_batch_the_shapes_are_whole():
    signature = read(f"config.add_input({X})")
    assert (signature.inputs[0].dims, signature.max_batch_size) == ((4,), 0)


def test_decoupled():
    assert read(f"config.add_input({X})\nconfig.set_model_transaction_policy(dict(decoupled=True))").decoupled


@pytest.mark.parametrize(
    "body",
    ["config.add_input(make('x'))", "x = load()\nconfig.add_input(x)", "for t in load():\n    config.add_input(t)",
     "config.set_max_batch_size(N)", "config.add_input([])"],
)  # fmt: skip
def test_what_only_running_would_tell_is_refused_with_its_line(body):
    with pytest.raises(UsageError, match=r"model.py:\d+: the argument of `\w+` is not literal"):
        read(body)


def test_all_wrong_tensors_at_once():
    with pytest.raises(UsageError) as caught:
        read(
            'config.add_input({"name": "x", "data_type": "FP32", "dims": []})\n'
            'config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [0], "shape": 1})'
        )
    assert [problem.what for problem in caught.value.problems] == [
        "input `x` has no data type of Triton",
        "input `x` has no usable dims",
        "output `y` has other properties than Triton takes",
        "output `y` has no usable dims",
    ]


def test_declared_tensors_where_the_code_says_none():
    declared = declare(["x:FP32:-1,3"], ["y:FP32:-1,2"])
    code = "class TritonPythonModel:\n    def execute(self, requests): ...\n"
    signature = read_python_text(code.encode(), PATH, declared)
    assert (signature.inputs, signature.max_batch_size) == (declared.inputs, None)
    with pytest.raises(UsageError, match="the model has no auto_complete_config"):
        read_python_text(code.encode(), PATH, Declared())
    with pytest.raises(UsageError, match="auto_complete_config adds no tensors"):
        read("return config")
    with pytest.raises(UsageError, match="says what the model takes"):
        read(f"config.add_input({X})", declared)


@pytest.mark.parametrize(
    ("code", "said"),
    [(b"class Other: ...", "no class TritonPythonModel"), (b"def (", r"model.py:1: not Python code"),
     (b"\xff\xfe", "not Python code"), (b"x = 1\0", "not Python code")],
)  # fmt: skip
def test_no_model(code, said):
    with pytest.raises(UsageError, match=said):
        read_python_text(code, PATH, Declared())
