"""What the printer writes, character for character."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tooling.config.proto import pb
from tooling.pbtxt.message import load
from tooling.pbtxt.printer import Style, field_lines, render
from tooling.pbtxt.schema import fields_of

CONFIG = """\
name: "m"
max_batch_size: 8
input {
  name: "ids"
  data_type: TYPE_INT64
  dims: [-1, 128]
}
input {
  name: "mask"
}
dynamic_batching {
}
metric_tags {
  key: "a"
  value: "1"
}
metric_tags {
  key: "b"
  value: ""
}
parameters {
  key: "p"
  value {
    string_value: "v"
  }
}
"""


def config(text: str) -> Any:
    return load(text.encode(), pb().ModelConfig(), "text")


def test_fields_stand_in_the_order_of_the_schema_and_maps_by_key() -> None:
    shuffled = config(
        'parameters { key: "p" value { string_value: "v" } } metric_tags [ { key: "b" }, { key: "a" value: "1" } ]'
        'dynamic_batching { } input [ { dims: [ -1, 128 ] data_type: 9 name: "ids" }, { name: "mask" } ]'
        'max_batch_size: 8 name: "m"'
    )
    assert render(shuffled) == CONFIG


def test_a_style_gives_order_and_explicit_defaults() -> None:
    style = Style(
        order={"ModelConfig": ["max_batch_size", "input"], "ModelInput": ["dims"]},
        explicit=["ModelConfig.max_batch_size"],
    )
    message = config('name: "m" input { name: "a" dims: 1 }')
    assert render(message, style) == 'max_batch_size: 0\ninput {\n  dims: [1]\n  name: "a"\n}\nname: "m"\n'


def test_one_field_can_be_printed_alone() -> None:
    fields = fields_of(pb().ModelConfig.DESCRIPTOR)
    message = config(CONFIG)
    assert field_lines(message, fields["max_batch_size"]) == ["max_batch_size: 8"]
    assert field_lines(message, fields["dynamic_batching"]) == ["dynamic_batching {", "}"]
    assert field_lines(message, fields["output"]) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("it's", '"it\'s"'),
        ('"\\', '"\\"\\\\"'),
        ("\n\r\t\0\x7f\x0012", '"\\n\\r\\t\\000\\177\\00012"'),
        ("é 漢 😀", '"é 漢 😀"'),
        ("\u00a0\u2028\ufeff", '"\\302\\240\\342\\200\\250\\357\\273\\277"'),
    ],
)
def test_strings_are_escaped_only_where_they_must(value: str, text: str) -> None:
    assert render(pb().ModelConfig(platform=value)) == f"platform: {text}\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (1.0, "1"), (1e-45, "1.4013e-45"), (3.4028234663852886e38, "3.4028235e+38"), (-0.0, "-0"),
     (16777217.0, "16777216"), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")],
)  # fmt: skip
def test_floats_are_as_short_as_they_read_back(value: float, text: str) -> None:
    message = pb().ModelConfig()
    message.sequence_batching.direct.minimum_slot_utilization = value
    assert f"minimum_slot_utilization: {text}\n" in render(message)
    assert str(config(render(message))) == str(message)


def test_unknown_enum_numbers_and_false_oneof_members_are_kept() -> None:
    text = 'input {\n  name: "a"\n  data_type: 99\n}\n'
    assert render(config(text)) == text
    state = "sequence_batching {\n  state {\n    initial_state {\n      zero_data: false\n    }\n  }\n}\n"
    assert render(config(state)) == state
