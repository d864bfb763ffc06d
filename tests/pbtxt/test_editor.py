"""Edits as people see them: the lines that change, and everything around them that does not."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import pytest

from tooling.config.proto import pb
from tooling.errors import UsageError
from tooling.pbtxt.editor import edit
from tooling.pbtxt.message import load
from tooling.pbtxt.paths import apply
from tooling.pbtxt.printer import Style

TEXT = """\
# My model, do not touch
name: "m"
backend: 'onnxruntime'   # the backend
max_batch_size: 8
input [
  {
    name: "ids" data_type: TYPE_INT64
    dims: [ -1 ]  # free
  },
  { name: "mask", data_type: TYPE_INT64, dims: [ -1 ] }
]
output: < name: "o" data_type: 11; dims: [ -1, 4 ] >

dynamic_batching { }
parameters { key: "a" value: { string_value: "1" } }
parameters { key: "b" value: { string_value: "2" "2" } }  # b
"""


def changed(text: str, *assignments: str) -> list[str]:
    """The lines an edit takes out (-) and puts in (+)."""
    source = text.encode()
    new = apply(load(source, pb().ModelConfig(), "text"), assignments)
    lines = difflib.ndiff(text.splitlines(keepends=True), edit(source, new, "text").decode().splitlines(keepends=True))
    return [line.rstrip("\n") for line in lines if line[0] in "+-"]


MASK = '  { name: "mask", data_type: TYPE_INT64, dims: [ -1 ] }'
OUTPUT = 'output: < name: "o" data_type: 11; dims: [ -1, 4 ] >'
B = 'parameters { key: "b" value: { string_value: "2" "2" } }  # b'


@pytest.mark.parametrize(
    ("assignment", "lines"),
    [
        ("max_batch_size=16", ["- max_batch_size: 8", "+ max_batch_size: 16"]),
        ("backend='py'", ["- backend: 'onnxruntime'   # the backend", "+ backend: 'py'   # the backend"]),
        ("backend=it's", ["- backend: 'onnxruntime'   # the backend", "+ backend: 'it\\'s'   # the backend"]),
        ("-backend", ["- backend: 'onnxruntime'   # the backend"]),
        ("platform=p", ['+ platform: "p"']),
        ("input[0].dims+=7", ["-     dims: [ -1 ]  # free", "+     dims: [ -1, 7 ]  # free"]),
        ("output[0].dims=[4]", [f"- {OUTPUT}", '+ output: < name: "o" data_type: 11; dims: [ 4 ] >']),
        ("-output[0].dims[1]", [f"- {OUTPUT}", '+ output: < name: "o" data_type: 11; dims: [ -1 ] >']),
        ("output[0].data_type=13", [f"- {OUTPUT}", f"+ {OUTPUT}".replace("11", "TYPE_STRING")]),
        ("input[0].optional=true", ["+     optional: true"]),
        ("input[1].optional=true", [f"- {MASK}", f"+ {MASK[:-2]} optional: true }}"]),
        ("input[1].format=FORMAT_NHWC", [f"- {MASK}", f"+ {MASK}".replace(" dims", " format: FORMAT_NHWC, dims")]),
        ("input+={name:'type'}", [f"- {MASK}", f"+ {MASK},", "+   {", '+     name: "type"', "+   }"]),
        ("-input[0]", ["-   {", '-     name: "ids" data_type: TYPE_INT64', "-     dims: [ -1 ]  # free", "-   },"]),
        ("-input[1]", ["-   },", "+   }", f"- {MASK}"]),
        (
            "dynamic_batching.preferred_batch_size=4",
            ["- dynamic_batching { }", "+ dynamic_batching { preferred_batch_size: [4] }"],
        ),
        ("-dynamic_batching", ["- dynamic_batching { }"]),
        ("sequence_batching={}", ["+ sequence_batching {", "+ }", "- dynamic_batching { }"]),
        ("instance_group+={count: 2 kind: 2}", ["+ instance_group {", "+   kind: KIND_CPU", "+   count: 2", "+ }"]),
        ('parameters["b"].string_value=x', [f"- {B}", f"+ {B}".replace('"2" "2"', '"x"')]),
        ('-parameters["a"]', ['- parameters { key: "a" value: { string_value: "1" } }']),
        ('parameters["c"]={}', ["+ parameters {", '+   key: "c"', "+   value {", "+   }", "+ }"]),
    ],
)
def test_only_the_lines_of_the_changed_field_change(assignment: str, lines: list[str]) -> None:
    assert sorted(changed(TEXT, assignment)) == sorted(lines)


@pytest.mark.parametrize(
    ("text", "assignment", "result"),
    [
        ("", "max_batch_size=4", "max_batch_size: 4\n"),
        ("# only a comment", "max_batch_size=4", "# only a comment\nmax_batch_size: 4\n"),
        ('name: "m"', "max_batch_size=4", 'name: "m"\nmax_batch_size: 4'),
        ('name: "m" backend: "b"', "platform=p", 'name: "m" platform: "p" backend: "b"'),
        ('name: "m", backend: "b"', "platform=p", 'name: "m", platform: "p", backend: "b"'),
        ('name:"m"max_batch_size:1', "platform=p", 'name:"m" platform: "p" max_batch_size:1'),
        ('backend: "b" max_batch_size: 1', "platform=p", 'platform: "p"\nbackend: "b" max_batch_size: 1'),
        ('name: "m"\r\n', "dynamic_batching={}", 'name: "m"\r\ndynamic_batching {\r\n}\r\n'),
        ('backend: "b"  # c\r\nname: "m"\r\n', "-backend", 'name: "m"\r\n'),
        ('name: "m" backend: "b"\r\nmax_batch_size: 1\r\n', "-backend", 'name: "m"\r\nmax_batch_size: 1\r\n'),
        ('name: "m"\nbackend: "b"', "-backend", 'name: "m"\n'),
        ("input [ ]", "input+={dims: 1}", "input [{ dims: [1] } ]"),
        ("input { dims: 1 }\ninput { dims: 2 }\n", "-input[0]", "input { dims: 2 }\n"),
        ("input { dims: 1 dims: 2 }", "input[0].dims+=3", "input { dims: 1 dims: 2 dims: 3 }"),
        ("input { dims: 1 dims: 2 }", "-input[0].dims[0]", "input { dims: 2 }"),
        ("input { dims: [ 1, 2, 3 ] }", "-input[0].dims[2]", "input { dims: [ 1, 2 ] }"),
        ("input { dims: [ 1 ] }", "-input[0].dims", "input { }"),
        ("input {\n  # to be filled\n}\n", "input[0].name=a", 'input {\n  name: "a"\n  # to be filled\n}\n'),
        ("input {\n\tdims: 1\n}\n", "input[0].name=a", 'input {\n\tname: "a"\n\tdims: 1\n}\n'),
        ("max_batch_size: 0 max_batch_size: 4", "max_batch_size=8", "max_batch_size: 0 max_batch_size: 8"),
        (
            'metric_tags [ { key: "a" }, { key: "a" value: "2" } ]',
            'metric_tags["a"]=3',
            'metric_tags [ { key: "a" }, { key: "a" value: "3" } ]',
        ),
        (
            "instance_group [ { count: 1 }, { count: 2 }, { count: 3 } ]",
            "instance_group[1].count=9",
            "instance_group [ { count: 1 }, { count: 9 }, { count: 3 } ]",
        ),
    ],
)
def test_every_form_of_the_syntax_is_edited_in_its_own_form(text: str, assignment: str, result: str) -> None:
    new = apply(load(text.encode(), pb().ModelConfig(), "text"), [assignment])
    assert edit(text.encode(), new, "text").decode() == result


def test_an_explicit_default_is_written_out_instead_of_taken_out() -> None:
    source = b"max_batch_size: 8  # all it can\n"
    style = Style(explicit=["ModelConfig.max_batch_size"])
    assert edit(source, pb().ModelConfig(), "text", style) == b"max_batch_size: 0  # all it can\n"
    assert edit(source, pb().ModelConfig(), "text") == b""


def swap(message: Any) -> None:
    one, two = message.input
    inputs = [type(one).FromString(part.SerializeToString()) for part in (two, one)]
    del message.input[:]
    message.input.extend(inputs)


@pytest.mark.parametrize("change", [swap, lambda message: message.input.insert(1, message.input[0])])
def test_tensors_that_move_take_their_values_along(change: Callable[[Any], None]) -> None:
    new = load(TEXT.encode(), pb().ModelConfig(), "text")
    change(new)
    assert load(edit(TEXT.encode(), new, "text"), new, "text") == new


def test_a_text_with_faults_is_not_edited() -> None:
    with pytest.raises(UsageError, match=r"config\.pbtxt:1:4"):
        edit(b"foo: 1", pb().ModelConfig(), "config.pbtxt")
