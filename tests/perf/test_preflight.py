"""Whether a workload fits a configuration."""

from __future__ import annotations

import re

import pytest

from perf.preflight import cache_cautions, cautions, fitted, notes, without_cache
from perf.workload import Workload
from tooling.config.render import parse
from tooling.errors import UsageError

BATCHING = "max_batch_size: 8 dynamic_batching { } instance_group { count: 2 kind: KIND_CPU }"


@pytest.mark.parametrize(
    ("workload", "what"),
    [
        ({"batch": 16}, "batch 16 > max_batch_size 8 (got 16; expected at most 8)"),
        ({"batch": {1: 1, 4: 1}}, "one run of perf_analyzer sends requests of one size (got 1, 4"),
        ({"batch": 4, "lengths": (3, 9)}, "stacks only rows of equal length into a request (got batch 4, lengths 3–9"),
    ],
)
def test_requests_that_cannot_be_sent(workload, what):
    with pytest.raises(UsageError, match=re.escape(what)):
        fitted(Workload(concurrency=1, **workload), parse(BATCHING, "config.pbtxt"))


def test_without_batching_requests_have_their_own_rows():
    mixed = Workload(concurrency=1, batch={1: 1, 4: 1}, lengths=(3, 9))
    assert fitted(mixed, parse("max_batch_size: 0", "config.pbtxt")) == mixed


def test_a_decoupled_model_gets_a_stream():
    config = parse("model_transaction_policy { decoupled: true }", "config.pbtxt")
    assert fitted(Workload(concurrency=1), config).streams == 1
    assert fitted(Workload(concurrency=1, streams=3), config).streams == 3


def test_a_stream_is_told():
    config = parse('name: "dec" model_transaction_policy { decoupled: true }', "config.pbtxt")
    assert list(notes(config)) == ["dec: adds -i grpc --async --streaming for decoupled models"]
    assert list(notes(parse(BATCHING, "config.pbtxt"))) == []


def test_what_a_measurement_will_not_show_is_told():
    config = parse(BATCHING, "config.pbtxt")
    [told] = cautions(Workload(concurrency=4), config)
    assert told.startswith("highest concurrency 4 < max_batch_size x instances (16): batches cannot fill")
    assert list(cautions(Workload(concurrency=4, batch=4), config)) == []
    assert list(cautions(Workload(request_rate=4), config)) == []


def test_a_response_cache_is_told_as_it_is_measured():
    cached = parse(BATCHING + "response_cache { enable: true }", "config.pbtxt")
    [ours], [theirs] = (list(cache_cautions([parse(BATCHING, "c"), cached], left_out=out)) for out in (True, False))
    assert ours == "the response cache is on: it is left out while measuring, so that every request is executed"
    assert theirs == (
        "the response cache is on, if the server was started with --cache-config: "
        "repeated requests measure the cache; use varied inputs or turn it off"
    )
    assert list(cache_cautions([parse(BATCHING, "c")], left_out=False)) == []


def test_only_the_response_cache_is_left_out():
    cached = parse(BATCHING + "response_cache { enable: true }", "config.pbtxt")
    assert without_cache(cached) == without_cache(parse(BATCHING, "c")) == parse(BATCHING, "c")
    assert cached.response_cache.enable
