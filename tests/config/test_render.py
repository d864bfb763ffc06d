"""Rendered text, parsed, is the message it was rendered from; edits show; what Triton cannot read is pointed at."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from tooling.config.build import build_config
from tooling.config.knobs import Knobs
from tooling.config.proto import pb
from tooling.config.render import origin, parse, render
from tooling.errors import UsageError
from tooling.signature.spec import ModelSignature, TensorSpec

names = st.text(min_size=1, max_size=12)  # tensors may have any name
types = st.sampled_from([t for t in pb().DataType.DESCRIPTOR.values_by_name if t not in ("TYPE_INVALID", "TYPE_BF16")])
dims = st.lists(st.sampled_from([-1, 1, 3, 384, 2**40]), max_size=3)
tensors = st.builds(lambda n, t, d: TensorSpec(n, t, (-1, *d)), names, types, dims)
evidences = st.lists(st.text(max_size=30), max_size=3)


@st.composite
def built(draw):
    """Any config that this package builds."""
    signature = ModelSignature(
        Path("model.onnx"),
        "onnxruntime",
        tuple(draw(st.lists(tensors, min_size=1, max_size=3, unique_by=lambda t: t.name))),
        tuple(draw(st.lists(tensors, min_size=1, max_size=2, unique_by=lambda t: t.name))),
    )
    top = draw(st.integers(0, 64))
    dynamic = top > 0 and draw(st.booleans())
    return build_config(
        signature,
        draw(st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True).filter(lambda n: n[0] != "-")),
        Knobs(
            max_batch_size=top,
            dynamic_batching=dynamic,
            preferred_batch_size=tuple(draw(st.lists(st.integers(1, top), max_size=3))) if dynamic else (),
            max_queue_delay_us=draw(st.integers(0, 10**9)) if dynamic else 0,
            instance_count=draw(st.none() | st.integers(1, 8)),
            instance_kind=draw(st.sampled_from(["auto", "cpu", "gpu", "model"])),
            intra_op_threads=draw(st.none() | st.integers(0, 8)),
        ),
    )


@settings(deadline=None)
@given(built(), evidences)
def test_text_and_message_are_the_same(config, evidence):
    text = render(config, evidence=evidence)
    assert parse(text, "text") == config
    assert render(parse(text, "text"), evidence=evidence) == text
    assert origin(text) == ("measured" if evidence else "generated")


def scalars(field):
    kinds = {
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_STRING: st.text(max_size=4),
        field.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
        field.TYPE_DOUBLE: st.floats(allow_nan=False),
        field.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
        field.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
        field.TYPE_UINT32: st.integers(0, 2**32 - 1),
        field.TYPE_UINT64: st.integers(0, 2**64 - 1),
    }
    return st.sampled_from(list(field.enum_type.values_by_number)) if field.enum_type else kinds[field.type]


@st.composite
def messages(draw, message, depth=3):
    """`message` with any of its fields set, down to `depth`: everything the schema can say."""
    fields = [f for f in message.DESCRIPTOR.fields if depth or not f.message_type]
    for field in draw(st.lists(st.sampled_from(fields), max_size=4)) if fields else []:
        target = getattr(message, field.name)
        if field.message_type is None:
            if field.is_repeated:
                target.append(draw(scalars(field)))
            else:
                setattr(message, field.name, draw(scalars(field)))
        elif not field.message_type.GetOptions().map_entry:
            draw(messages(target.add() if field.is_repeated else target, depth - 1))
            if not field.is_repeated:
                target.SetInParent()
        else:
            entry = field.message_type.fields_by_name
            key = draw(scalars(entry["key"]))
            if entry["value"].message_type:
                draw(messages(target[key], depth - 1))
            else:
                target[key] = draw(scalars(entry["value"]))
    return message


@settings(deadline=None)
@given(st.builds(lambda: pb().ModelConfig()).flatmap(messages))
def test_whatever_the_schema_can_say_comes_through(config):
    text = render(config)
    assert parse(text, "text") == config
    assert text_format.Parse(text, pb().ModelConfig()) == config  # protobuf's own reader agrees
    assert render(parse(text, "text")) == text


def test_max_batch_size_zero_is_written():
    assert "\nmax_batch_size: 0\n" in render(pb().ModelConfig(name="m"))


def test_comments_follow_the_config():
    config = pb().ModelConfig(name="m", backend="onnxruntime", max_batch_size=4)
    config.dynamic_batching.SetInParent()
    plain = render(config)
    assert "No preferred_batch_size" in plain and "No max_queue_delay" in plain and "No instance_group" in plain
    config.dynamic_batching.preferred_batch_size.append(4)
    config.dynamic_batching.max_queue_delay_microseconds = 100
    config.instance_group.add(count=2)
    tuned = render(config, evidence=["p99 24.1ms\non cpu-2"])
    assert "No " not in tuned and "\n# p99 24.1ms\n# on cpu-2\n" in tuned


def test_evidence_can_hold_any_text():
    """A control character in a comment would make Triton refuse the file; a path need not be UTF-8."""
    text = render(pb().ModelConfig(name="m"), evidence=["a\x00b\x1b[31m\udcff é"])
    assert "\n# a\\x00b\\x1b[31m\\udcff é\n" in text


@pytest.mark.parametrize("edit", [lambda t: t + "# note\n", lambda t: t.replace(": 8", ": 9"), lambda t: "\n" + t])
def test_an_edit_is_seen(edit):
    text = render(pb().ModelConfig(name="m", max_batch_size=8))
    assert origin(text) == "generated" and origin(edit(text)) is None
    assert origin("max_batch_size: 8\n") is None


@pytest.mark.parametrize(
    ("text", "where", "what", "hint"),
    [
        (
            'name: "m"\nmax_batchsize: 8',
            "c.pbtxt:2:14",
            'no field named "max_batchsize"',
            "did you mean `max_batch_size`?",
        ),
        ('input { name: "x" dimz: 1 }', "c.pbtxt:1:23", 'no field named "dimz"', "did you mean `dims`?"),
        ('input { data_type: "x" }', "c.pbtxt:1:20", "Expected integer or identifier", "remove the quotes: `x`"),
        ('name: "m"\nname: "n"', "c.pbtxt:2:5", "multiple", None),
        ("dynamic_batching {} sequence_batching {}", "c.pbtxt:1:39", "oneof", None),
        ("input {", "c.pbtxt:1:8", "Expected identifier", "a closing `}` is missing"),
    ],
)
def test_what_triton_cannot_read_is_pointed_at(text, where, what, hint):
    """Places and words are those of the server's parser (C++ protobuf 3.19)."""
    with pytest.raises(UsageError) as caught:
        parse(text, "c.pbtxt")
    (problem,) = caught.value.problems
    assert problem.where == where and what in problem.what and problem.hint == hint


def test_several_faults_are_told_at_once():
    with pytest.raises(UsageError) as caught:
        parse('nmae: "m"\nmax_batch_size: 8\nbackedn: "x"', "c.pbtxt")
    assert [p.hint for p in caught.value.problems] == ["did you mean `name`?", "did you mean `backend`?"]
