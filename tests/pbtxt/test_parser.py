"""The parser by itself: spans, faults behind the server's first one, hints, limits, and texts of any bytes."""

from __future__ import annotations

import gc
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tooling.config.proto import pb
from tooling.errors import UsageError
from tooling.pbtxt.cursor import LIMIT
from tooling.pbtxt.editor import edit
from tooling.pbtxt.faults import position
from tooling.pbtxt.message import fill, load
from tooling.pbtxt.parser import Document, parse
from tooling.pbtxt.tree import Body

TENSOR = b"""input [
  {
    name: "input_ids"  # tokens
    data_type: TYPE_INT64
    dims: [ -1, 128 ]
  }
]
"""


def read(text: str | bytes) -> Document:
    return parse(text.encode() if isinstance(text, str) else text, pb().ModelConfig.DESCRIPTOR)


def test_every_node_is_a_span_of_the_text() -> None:
    source = b"input: [ { name: 'a' 'b', dims: 1 } , < >] ; max_batch_size :4 # c"
    document = read(source)
    inputs, size = document.root.entries
    assert source[inputs.start : inputs.end] == b"input: [ { name: 'a' 'b', dims: 1 } , < >]"
    assert source[inputs.start : inputs.stop].endswith(b"] ;")
    assert source[inputs.list_start : inputs.list_start + 1] == b"["
    first, second = inputs.values
    assert source[first.start : first.end] == b"{ name: 'a' 'b', dims: 1 }"
    assert source[first.comma : first.comma + 1] == b"," and second.comma == -1
    assert isinstance(first.value, Body)
    name, dims = first.value.entries
    assert source[name.start : name.stop] == b"name: 'a' 'b'," and name.values[0].value == "ab"
    assert source[dims.values[0].start : dims.values[0].end] == b"1" and dims.list_start == -1
    assert source[size.start : size.stop] == b"max_batch_size :4"


def test_problems_behind_the_first_one_are_told_too() -> None:
    faults = read(
        'foo: 1\ninput { shape: [ 1, {} ] data_type: FP32 dims: "4" }\nmax_batch_size: 2147483648\nbar <>'
    ).faults
    assert [(fault.line, fault.server) for fault in faults] == [(1, True), *[(2, False)] * 3, (3, False), (4, False)]
    assert [fault.message.split('"')[-2] for fault in faults[1:4]] == ["shape", "data_type", "4"]


def test_reading_ends_where_the_rest_makes_no_sense() -> None:
    faults = read("max_batch_size = 8\nfoo: 1").faults
    assert [str(fault) for fault in faults] == ['1:16: Expected ":", found "=".']


def test_one_usage_error_carries_all_problems_with_their_places() -> None:
    with pytest.raises(UsageError) as error:
        load(b"foo: 1\nmax_batchsize: 8", pb().ModelConfig(), "enc/config.pbtxt")
    assert [problem.where for problem in error.value.problems] == ["enc/config.pbtxt:1:4", "enc/config.pbtxt:2:14"]
    assert error.value.problems[1].hint == "did you mean `max_batch_size`?"


def test_a_string_that_is_no_utf8_is_our_fault_not_the_servers() -> None:
    document = read(b'platform: "caf\xe9"')
    assert document.accepted
    assert [fault.message for fault in document.faults] == ["String is not valid UTF-8."]


def test_faults_are_limited() -> None:
    assert len(read('platform: "' + "\\q" * 1000).faults) == LIMIT
    assert len(read("foo: 1\n" * 1000).faults) == LIMIT


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("max_batchsize: 1", "did you mean `max_batch_size`?"),
        ("shape: 1", "`shape` belongs into `input.reshape`"),
        ("max_queue_size: 1", "`max_queue_size` belongs into `dynamic_batching.default_queue_policy`"),
        ("input { data_type: INT64 }", "did you mean `TYPE_INT64`?"),
        ("input { data_type: float32 }", "one of TYPE_INVALID, TYPE_BOOL"),
        ("instance_group { kind: gpu }", "did you mean `KIND_GPU`?"),
        ("max_batch_size = 1", "write `name: value`"),
        ('max_batch_size: "8"', "remove the quotes: `8`"),
        ("platform: onnxruntime_onnx", 'put the value in quotes: `"onnxruntime_onnx"`'),
        ("input { dims: [ 1, ] }", "remove the comma before `]`"),
        ("input [ { }, ]", "remove the comma before `]`"),
        ("input { dims: [ 1 2 ] }", "separate the elements of a list by commas"),
        ('{ "name": "a" }', "this is no JSON"),
        ('"name": "a"', "names of fields are written without quotes"),
        ("// c", "comments start with `#`"),
        ("input {", "a closing `}` is missing"),
        ("input { } }", "one `}` too many"),
        ("input { } >", "one `>` too many"),
        ("name: 'a", "close the string with the quote it starts with"),
        ("name: 'a\n'", "close the string on its line"),
        ("name: 'a\\q'", "write a backslash as `\\\\`"),
        ("max_batch_size: 1_000", "write the digits alone"),
        ("max_batch_size: 08", "drop the leading zero"),
        ("response_cache { enable: yes }", "write `true` or `false`"),
        ("max_batch_size: 1;;", "one separator after a value is enough"),
        ("[a.b]: 1", "no extensions"),
        ("\ufeffname: 'a'", "a byte order mark"),
        ("max_batch_size:\u00a08", "a non-breaking space"),
        ("name: “a”", 'typographic quotes: use plain ones, `"`'),
        ("name: ‘a’", "typographic quotes: use plain ones, `'`"),
        ("input { dims: –1 }", "a typographic dash"),
        ("naïve: 1", "only comments and quoted strings"),
    ],
)
def test_usual_slips_come_with_a_way_out(text: str, hint: str) -> None:
    assert hint in (read(text).faults[0].hint or "")


def test_positions_count_bytes_and_tab_stops() -> None:
    source = b"a\tb\n\xc3\xa9\r\tc\n"
    assert [position(source, offset) for offset in (0, 2, 4, 6, 8, 10)] == [
        (1, 1),
        (1, 9),
        (2, 1),
        (2, 3),
        (2, 9),
        (3, 1),
    ]


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_no_bytes_raise_anything_but_the_usage_error(source: bytes) -> None:
    document = read(source)
    for call in (load, edit):
        arguments = (pb().ModelConfig(), "text")
        try:
            call(source, *arguments)
        except UsageError:
            assert document.faults
        else:
            assert not document.faults


@given(st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_no_damage_raises_anything(seed: int) -> None:
    chance = random.Random(seed)
    source = TENSOR * 3 + b'parameters { key: "a" value: { string_value: "1.5e3\\n" } }\n' + TENSOR
    for _ in range(chance.randint(1, 5)):
        at = chance.randint(0, len(source))
        source = source[:at] + chance.randbytes(chance.randint(0, 3)) + source[at + chance.randint(0, 3) :]
    document = read(source)
    assert document.root.end == len(source)
    assert all(0 <= fault.offset <= len(source) for fault in document.faults)
    fill(pb().ModelConfig(), document.root)


def test_a_wrong_value_in_a_list_stands_for_the_default() -> None:
    config = pb().ModelConfig()
    document = read(b'input { name: "x" dims: [ "8", 4 ] } model_warmup { batch_size: "1" }')
    fill(config, document.root)
    assert list(config.input[0].dims) == [0, 4]
    assert [fault.message for fault in document.faults] == ['Expected integer, got: "8"', 'Expected integer, got: "1"']


def seconds(source: bytes, tries: int) -> float:
    """The shortest processor time of reading a text, without looks at all that other tests have left in memory."""
    best = float("inf")
    gc.disable()
    try:
        for _ in range(tries):
            start = time.process_time()
            read(source)
            best = min(best, time.process_time() - start)
    finally:
        gc.enable()
    return best


def test_a_config_is_read_in_five_milliseconds() -> None:
    assert seconds(TENSOR * 40, 20) < 0.005


@pytest.mark.parametrize(
    "source",
    [
        TENSOR * 10_000,
        random.Random(1).randbytes(1_000_000),
        b'platform: "' + b"\\n" * 500_000,
        b'platform: "' + b"\\q" * 500_000,
        b"#\n" * 500_000,
        b" " * 1_000_000,
        b"max_batch_size: " + b"9" * 1_000_000,
        b"foo: 1 " * 140_000,
        b"input {" * 140_000,
    ],
    ids=["config", "random", "unclosed", "escapes", "comments", "blanks", "digits", "unknown", "open"],
)
def test_ten_times_the_text_takes_about_ten_times_as_long(source: bytes) -> None:
    """Were it the square, a hundred times; a megabyte takes half a second at most."""
    assert seconds(source, 2) < 40 * seconds(source[: len(source) // 10], 3) + 0.1
