"""Knobs read from a config and applied to it change nothing; what they cannot say is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tooling.config.knobs import THREADS_KEY, Knobs, apply, describe, from_dict, read, to_dict
from tooling.config.proto import pb
from tooling.errors import UsageError

int32 = st.integers(-(2**31), 2**31 - 1)
uint64 = st.integers(0, 2**64 - 1)


@st.composite
def configs(draw):
    """Configs with at most one instance group, set beyond what knobs know of."""
    config = pb().ModelConfig(name=draw(st.text(max_size=5)), max_batch_size=draw(int32))
    scheduler = draw(st.sampled_from(["none", "dynamic", "sequence"]))
    if scheduler == "dynamic":
        config.dynamic_batching.SetInParent()
        config.dynamic_batching.preferred_batch_size.extend(draw(st.lists(int32, max_size=3)))
        config.dynamic_batching.max_queue_delay_microseconds = draw(uint64)
        config.dynamic_batching.preserve_ordering = draw(st.booleans())
        if draw(st.booleans()):
            config.dynamic_batching.default_queue_policy.max_queue_size = 3
    elif scheduler == "sequence":
        config.sequence_batching.max_sequence_idle_microseconds = draw(uint64)
    if draw(st.booleans()):
        group = config.instance_group.add(count=draw(int32), kind=draw(st.integers(0, 3)))
        group.gpus.extend(draw(st.lists(st.integers(0, 7), max_size=2)))
    if draw(st.booleans()):
        config.parameters[THREADS_KEY].string_value = draw(st.sampled_from(["0", "4", "04", "-1"]))
    if draw(st.booleans()):
        config.parameters["other"].string_value = draw(st.text(max_size=5))
    return config


knobs = st.builds(
    Knobs,
    max_batch_size=int32,
    dynamic_batching=st.just(True),
    preferred_batch_size=st.lists(int32, max_size=3).map(tuple),
    max_queue_delay_us=uint64,
    instance_count=st.none() | st.integers(1, 9),
    instance_kind=st.sampled_from(["auto", "cpu", "gpu", "model"]),
    intra_op_threads=st.none() | st.integers(0, 9),
)


@settings(deadline=None)
@given(configs())
def test_applying_what_was_read_changes_nothing(config):
    assert apply(read(config), config) == config


@settings(deadline=None)
@given(knobs, configs().filter(lambda c: not c.HasField("sequence_batching")))
def test_what_is_applied_is_read_back_and_nothing_else_changes(knobs, config):
    before = config.SerializeToString(deterministic=True)
    result = apply(knobs, config)
    assert read(result) == knobs
    assert config.SerializeToString(deterministic=True) == before
    for field in ("name", "sequence_batching"):
        assert getattr(result, field) == getattr(config, field)
    assert result.parameters.get("other") == config.parameters.get("other")
    assert result.dynamic_batching.preserve_ordering == config.dynamic_batching.preserve_ordering


@settings(deadline=None)
@given(knobs)
def test_json_form_is_exact(knobs):
    assert from_dict(to_dict(knobs)) == knobs


def test_an_unknown_knob_is_named_with_the_closest_one():
    with pytest.raises(UsageError) as caught:
        from_dict({"max_batchsize": 4})
    assert caught.value.problems[0].hint == "did you mean `max_batch_size`?"


def test_dynamic_batching_does_not_push_out_another_scheduler():
    config = pb().ModelConfig(name="m", max_batch_size=4)
    config.sequence_batching.SetInParent()
    with pytest.raises(UsageError, match="got `sequence_batching`"):
        apply(Knobs(), config)


def test_several_instance_groups_are_refused():
    config = pb().ModelConfig(name="m")
    config.instance_group.add(count=1)
    config.instance_group.add(count=2)
    with pytest.raises(UsageError, match="got 2 instance groups"):
        read(config)


def test_a_thread_count_that_is_no_number_is_refused():
    config = pb().ModelConfig(name="m")
    config.parameters[THREADS_KEY].string_value = "four"
    with pytest.raises(UsageError, match="got `four`"):
        read(config)


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        (Knobs(), "default instances, batch ≤ 8, no delay"),
        (
            Knobs(instance_count=2, intra_op_threads=1, max_queue_delay_us=2000),
            "2 instances × 1 thread, batch ≤ 8, delay 2ms",
        ),
        (
            Knobs(instance_count=1, instance_kind="cpu", intra_op_threads=2),
            "1 CPU instance × 2 threads, batch ≤ 8, no delay",
        ),
        (Knobs(preferred_batch_size=(4, 8)), "default instances, batch ≤ 8, preferred 4 8, no delay"),
        (Knobs(max_batch_size=0, dynamic_batching=False), "default instances, no batching"),
        (Knobs(dynamic_batching=False), "default instances, batch ≤ 8, requests not merged"),
    ],
)
def test_description(knobs, text):
    assert describe(knobs) == text


def test_several_groups_become_one_with_their_instances() -> None:
    from tooling.config.knobs import one_group
    from tooling.config.proto import pb

    config = pb().ModelConfig(name="m")
    assert one_group(config) is config
    config.instance_group.add(name="a", count=2, kind=pb().ModelInstanceGroup.KIND_CPU)
    config.instance_group.add(name="b", count=3, kind=pb().ModelInstanceGroup.KIND_CPU)
    one = one_group(config)
    assert (read(one).instance_count, read(one).instance_kind) == (5, "cpu")
    assert len(config.instance_group) == 2
