"""Assignments by path: every field of the schema is reached, types are checked, slips get a suggestion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tooling.config.proto import pb
from tooling.errors import UsageError
from tooling.pbtxt.message import load
from tooling.pbtxt.paths import apply
from tooling.pbtxt.schema import Descriptor, Field, fields_of

SAMPLES = {"bool": "true", "string": "some text", "float": "0.5", "double": "1e-3"}


def sample(field: Field) -> str:
    if field.kind == "message":
        return "{}"
    if len(field.enum_numbers) > 1:
        return list(field.enum_numbers)[-1]
    return SAMPLES.get(field.kind, "7")


def walk(owner: Descriptor, prefix: str, made: list[str]) -> Iterator[tuple[list[str], str, Field]]:
    """For every field: the assignments that make its message, its path, and the field."""
    for field in fields_of(owner).values():
        path = prefix + field.name
        yield made, path, field
        if field.is_map:
            key = '["k"]' if fields_of(field.message)["key"].kind == "string" else "[7]"
            value = fields_of(field.message)["value"]
            if value.message is not None:
                yield from walk(value.message, f"{path}{key}.", made)
        elif field.message is not None and field.repeated:
            yield from walk(field.message, f"{path}[0].", [*made, f"{path}+={{}}"])
        elif field.message is not None:
            yield from walk(field.message, f"{path}.", made)


EVERYTHING = list(walk(pb().ModelConfig.DESCRIPTOR, "", []))


def test_all_of_the_schema_is_walked() -> None:
    assert len({(path.rpartition(".")[2], id(field)) for _, path, field in EVERYTHING}) >= 164


@pytest.mark.parametrize(("made", "path", "field"), EVERYTHING, ids=[path for _, path, _ in EVERYTHING])
def test_every_field_is_set_and_cleared_by_its_path(made: list[str], path: str, field: Field) -> None:
    before = apply(pb().ModelConfig(), made)
    if field.is_map:
        value = fields_of(field.message)["value"]
        key = "k" if fields_of(field.message)["key"].kind == "string" else 7
        selected = f'{path}["{key}"]'
        after = apply(before, [f"{selected}={sample(value)}"])
        entry = f"{{ key: {key!r} value: {'{}' if value.message is not None else repr(sample(value))} }}"
        assert apply(before, [f"{path}+={entry}"]) == after
        assert f"{field.name} {{" in str(after) and apply(after, [f"-{selected}"]) != after
        return
    after = apply(before, [f"{path}={sample(field)}"])
    assert after != before and f"{field.name}" in str(after)
    assert apply(apply(after, [f"-{path}"]), [f"{path}={sample(field)}"]) == after
    if field.repeated:
        twice = apply(after, [f"{path}+={sample(field)}"])
        assert apply(twice, [f"-{path}[1]"]) == after
        assert apply(twice, [f"{path}[1]={sample(field)}"]) == twice


def config(text: str) -> Any:
    return load(text.encode(), pb().ModelConfig(), "text")


BASE = """name: "m" input { name: "a" dims: [ 1, 2 ] } parameters { key: "k" value { string_value: "v" } }
metric_tags { key: "t" }"""


@pytest.mark.parametrize(
    ("assignment", "field", "text"),
    [
        ("max_batch_size=0x10", "max_batch_size", "max_batch_size: 16"),
        ("name=a b # c", "name", 'name: "a b # c"'),
        ("name=\"quoted\" 'twice'", "name", 'name: "quotedtwice"'),
        ("name=", "name", ""),
        ("input[0].dims=[-1, 4]", "input", 'input { name: "a" dims: [ -1, 4 ] }'),
        ("input[0].dims=5", "input", 'input { name: "a" dims: 5 }'),
        ("input[0].dims+=[5, 6]", "input", 'input { name: "a" dims: [ 1, 2, 5, 6 ] }'),
        ("input[0].dims[1]=9", "input", 'input { name: "a" dims: [ 1, 9 ] }'),
        ("-input[0].dims[0]", "input", 'input { name: "a" dims: 2 }'),
        ("input=[]", "input", ""),
        ("input+=[{}, <name: 'c'>]", "input", 'input { name: "a" dims: [ 1, 2 ] } input { } input { name: "c" }'),
        ('metric_tags["t"]=x=y', "metric_tags", 'metric_tags { key: "t" value: "x=y" }'),
        ('metric_tags["a.b[0]"]=1', "metric_tags", 'metric_tags [ { key: "t" }, { key: "a.b[0]" value: "1" } ]'),
        ("metric_tags={ key: 'z' }", "metric_tags", 'metric_tags { key: "z" }'),
        ("instance_group+={ profile: ['0'] }", "instance_group", 'instance_group { profile: "0" }'),
        ("dynamic_batching={}", "dynamic_batching", "dynamic_batching { }"),
        (
            "dynamic_batching.max_queue_delay_microseconds=1.5ms",
            "dynamic_batching",
            "dynamic_batching { max_queue_delay_microseconds: 1500 }",
        ),
        ("input[a].dims=[4]", "input", 'input { name: "a" dims: 4 }'),
        ("input['a'].data_type=fp32", "input", 'input { name: "a" data_type: TYPE_FP32 dims: [ 1, 2 ] }'),
        ("instance_group[0].kind=GPU", "instance_group", "instance_group { kind: KIND_GPU }"),
        ("instance_group[0]={ count: 2 }", "instance_group", "instance_group { count: 2 }"),
        ("parameters[k]=7", "parameters", 'parameters { key: "k" value { string_value: "7" } }'),
        ('parameters["k"]={}', "parameters", 'parameters { key: "k" value { } }'),
        (
            "dynamic_batching.priority_queue_policy[2]={}",
            "dynamic_batching",
            "dynamic_batching { priority_queue_policy { key: 2 value { } } }",
        ),
    ],
)
def test_values_are_written_as_in_a_config(assignment: str, field: str, text: str) -> None:
    result, expected = apply(config(BASE), [assignment]), config(text)
    assert getattr(result, field) == getattr(expected, field)
    assert [f.name for f, _ in result.ListFields() if f.name == field] == [f.name for f, _ in expected.ListFields()]


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("max_batchsize=1", "did you mean `max_batch_size`?"),
        ("max_queue_delay_microseconds=1", "belongs into `dynamic_batching` or"),
        ("input[0].shape=1", "`shape` belongs into `input.reshape`"),
        ("input[0].zzz=1", "its fields: name, data_type"),
        ("input[0].data_type=TYPE_FP23", "did you mean `TYPE_FP32`?"),
        ("max_batch_size=many", "a whole number from -2147483648 to 2147483647"),
        ("max_batch_size=2147483648", "Integer out of range"),
        ("max_batch_size=", "a whole number"),
        ('max_batch_size=1 name: "x"', "more than one value"),
        ("response_cache.enable=yes", "true or false"),
        ("dynamic_batching=4", "a message in braces"),
        ("dynamic_batching.max_queue_delay_microseconds=-1", "0 to 18446744073709551615"),
        ("name+=x", "`name` holds one value"),
        ("name.x=1", "`name` is a value of type string"),
        ("name[0]=1", "`name` is no list"),
        ("dynamic_batching[0].priority_levels=1", "`dynamic_batching` is no list"),
        ("input.name=x", "such as `input[0]`"),
        ("parameters.string_value=x", 'such as `parameters["key"]`'),
        ("input[2].name=x", "`input` has no such element (got `input[2]`; expected an index from 0 to 1)"),
        ("-input[1].name", "expected an index from 0 to 0"),
        ("-output[0]", "expected a list with elements"),
        ("input[b].name=x", "(got `input[b]`; expected one of `a`, or an index)"),
        ("output['b'].name=x", "expected an index"),
        ("input[0].dims[a]=1", "expected an index"),
        ("output[1].name=x", "append with `output+=…`"),
        ("dynamic_batching.max_queue_delay_microseconds=2parsecs", "a number with a unit"),
        ("input[0]+={}", "`input[0]` is one value"),
        ("input[0]=[{}, {}]", "got 2 values"),
        ('-parameters["z"]', "one of its keys: `k`"),
        ('-parameters["z"].string_value', "one of its keys: `k`"),
        ('dynamic_batching.priority_queue_policy["one"]={}', "the keys of `priority_queue_policy` are numbers"),
        ("dynamic_batching.priority_queue_policy[99999999999999999999]={}", "the keys of"),
        ("name", "not an assignment"),
        ("=1", "not an assignment"),
        ("-", "not an assignment"),
        ("-name=1", "not an assignment"),
        ("a..b=1", "not an assignment"),
        ("name.=1", "not an assignment"),
        ("input[]=1", "not an assignment"),
        ("input[x]=1", "one of `a`"),
        ("input[a[b]]=1", "not an assignment"),
        ("name=\udcff", "no UTF-8"),
        ('name="open', "Unexpected end of string"),
    ],
)
def test_what_cannot_be_assigned_is_explained(assignment: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        apply(config(BASE), [assignment])
    (problem, *_) = error.value.problems
    assert problem.where == assignment and said in f"{problem} {problem.hint}"


def test_all_problems_are_told_at_once_and_nothing_is_changed() -> None:
    before = config(BASE)
    with pytest.raises(UsageError) as error:
        apply(before, ["name=x", "foo=1", "bar=2"])
    assert [problem.where for problem in error.value.problems] == ["foo=1", "bar=2"]
    assert before == config(BASE)


def test_a_member_of_a_oneof_takes_the_place_of_the_other() -> None:
    result = apply(config("dynamic_batching { }"), ["sequence_batching.oldest.max_candidate_sequences=4"])
    assert result.WhichOneof("scheduling_choice") == "sequence_batching"
