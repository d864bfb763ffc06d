"""What holds requests back: from figures, from requests with padding, and on the real server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perf.bottleneck import Facts, Split, causes
from perf.trace import read_trace
from perf.waste import file_padding, fixed_shape_padding, padding_of
from tooling.errors import UsageError
from tooling.server import EmbeddedServer, ServerFlags, ServerOptions
from tooling.signature.spec import ModelSignature, TensorSpec

CALM = Facts(
    split=Split(100, 400, 200, 20, 4_000, 30),
    throughput_rps=100.0,
    mean_batch=1.0,
    instances=1,
    threads=1,
    cores=2,
    max_batch_size=8,
    dynamic_batching=True,
    delay_us=0,
    clients=1,
    client_busy_percent=3.0,
)


def kinds(facts: Facts) -> list[str]:
    return [cause.kind for cause in causes(facts)]


def knob(facts: Facts) -> str:
    return causes(facts)[0].knob


def test_a_split_adds_up_to_the_latency() -> None:
    split = Split.of(10_000, 100, 2_000, (50, 6_000, 60))
    assert split.network_us == 1_790
    assert split.total_us == 10_000
    assert split.share("compute_infer") == 0.6
    assert Split.of(1_000, 0, 2_000, (0, 0, 0)).network_us == 0, "clocks that do not agree give no negative time"


def test_compute_is_named_with_how_busy_the_instances_are() -> None:
    assert CALM.busy == pytest.approx(0.405)
    assert kinds(CALM) == ["compute"]
    full = replace(CALM, throughput_rps=240.0, split=replace(CALM.split, queue_us=20_000), instances=1, clients=8)
    assert full.busy == pytest.approx(0.972)
    assert kinds(full) == ["compute"], "waiting for busy instances is no bottleneck of its own"
    assert "instances compute 97% of the time" in causes(full)[0].figure
    assert "more instances or threads: 1 × 1 leave cores unused" in knob(full)
    assert knob(replace(full, dynamic_batching=False)) == "batching=on, so that waiting requests are merged"


def test_answers_from_the_response_cache_say_nothing_of_the_model() -> None:
    """They are in no queue and no execution, so that all their time would be the network's."""
    cached = replace(CALM, split=Split(100, 600, 0, 0, 0, 0), executed=0.001)
    (cause,) = causes(cached)
    assert (cause.kind, cause.knob) == (
        "cache",
        "varied inputs, or the cache turned off: nothing can be said of the model",
    )
    assert cause.figure == "100% of the requests were answered from the response cache, without the model"
    assert kinds(replace(CALM, executed=0.9)) == ["compute"]


def test_more_threads_than_cores_are_named_first() -> None:
    crowded = replace(CALM, instances=2, threads=2, cores=2)
    assert kinds(crowded)[0] == "oversubscribed cores"
    assert "2 instances × 2 threads want 4 cores, there are 2" in causes(crowded)[0].figure
    assert knob(crowded).startswith("threads=1")
    assert kinds(replace(crowded, cores=None)) == ["compute"], "cores of another host are not known"


def test_a_delay_that_waits_for_nobody() -> None:
    waiting = replace(CALM, split=replace(CALM.split, queue_us=5_100), delay_us=5_000, throughput_rps=50.0)
    assert kinds(waiting)[0] == "queueing"
    assert "a delay of 5ms waits for batches that become 1.0 rows" in causes(waiting)[0].figure
    assert knob(waiting) == "delay=0, or less of it"


def test_lengths_that_do_not_merge() -> None:
    mixed = replace(CALM, split=replace(CALM.split, queue_us=9_000), lengths=20, throughput_rps=120.0)
    assert kinds(mixed)[0] == "queueing"
    assert "length buckets" in knob(mixed)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"client_busy_percent": 60.0}, "client"),
        ({"split": Split(6_000, 400, 200, 20, 4_000, 30)}, "client"),
        ({"split": Split(10, 9_000, 200, 20, 4_000, 30)}, "network"),
        ({"split": Split(10, 400, 200, 2_000, 2_000, 3_000)}, "data"),
    ],
)
def test_client_network_and_data(change: dict[str, Any], kind: str) -> None:
    assert kind in kinds(replace(CALM, **change))


def test_where_nothing_stands_out_the_largest_part_is_named() -> None:
    even = replace(CALM, split=Split(300, 280, 290, 50, 310, 60))
    (cause,) = causes(even)
    assert cause.kind == "compute"
    assert "nothing stands out; 24% of a request is compute infer" in cause.figure


def test_padding_above_half_of_the_tokens_comes_first() -> None:
    padding = padding_of([(128, [10, 20, 14])] * 5)
    assert padding.share == pytest.approx(1 - 44 / 384)
    assert kinds(replace(CALM, padding=padding, instances=2, threads=2))[:2] == ["padding", "oversubscribed cores"]
    half = padding_of([(20, [10, 11])])
    assert half.share < 0.5
    assert "padding" not in kinds(replace(CALM, padding=half))


def test_the_bucket_edge_that_mends_it() -> None:
    padding = padding_of([(128, [length]) for length in (8, 10, 12, 16, 128)])
    assert padding.edge is not None
    assert padding.edge[0] == 16
    assert padding.edge[1] == pytest.approx(1 - (8 + 10 + 12 + 16 + 128) / (4 * 16 + 128))
    assert "a bucket edge at 16 tokens beside 128: 9% padding" in padding.mend
    assert padding.smaller_batch is None, "one row cannot be fewer"


def test_the_smaller_batch_that_mends_it() -> None:
    """Rows padded to the longest of their request: alone each needs only its own length."""
    padding = padding_of([(64, [4, 4, 4, 4, 4, 4, 4, 64])] * 3 + [(60, [4] * 7 + [60])])
    assert padding.smaller_batch is not None
    rows, left = padding.smaller_batch
    assert rows == 2
    assert left < padding.share
    assert "requests of 2 rows instead of 8" in padding.mend
    fixed = padding_of([(128, [4, 4, 4, 64])] * 3)
    assert fixed.smaller_batch is None, "a fixed length stays, however few the rows"


def test_full_requests_have_no_padding() -> None:
    padding = padding_of([(16, [16, 16]), (8, [8])])
    assert (padding.share, padding.smaller_batch, padding.edge) == (0, None, None)
    for wrong in ([], [(4, [5])], [(4, [])]):
        with pytest.raises(ValueError, match="requests need rows"):
            padding_of(wrong)


def signature(length: int) -> ModelSignature:
    tensors = tuple(TensorSpec(name, "TYPE_INT64", (-1, length)) for name in ("input_ids", "attention_mask"))
    return ModelSignature(Path("m"), "onnxruntime", tensors, ())


def test_a_model_of_fixed_length_pads_all_texts_to_it() -> None:
    padding = fixed_shape_padding(signature(128), [10, 30, 200], batching=True)
    assert padding is not None
    assert padding.share == pytest.approx(1 - (10 + 30 + 128) / 384)
    assert fixed_shape_padding(signature(-1), [10, 30], batching=True) is None


def test_padding_in_requests_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    step = {"input_ids": {"content": [1] * 8, "shape": [2, 4]}}
    file.write_text(
        json.dumps({"data": [{**step, "attention_mask": {"content": [1, 0, 0, 0, 1, 1, 0, 0], "shape": [2, 4]}}]})
    )
    padding = file_padding(file, signature(-1))
    assert padding is not None
    assert (padding.share, padding.rows, padding.length) == (0.625, 2, 4)
    for wrong in ("", "[]", '{"data": [{}]}', '{"data": [{"attention_mask": {"content": ["a"]}}]}', '{"data": []}'):
        file.write_text(wrong)
        with pytest.raises(UsageError, match="not input data of perf_analyzer"):
            file_padding(file, signature(-1))


def test_a_trace_that_triton_has_not_closed_yet(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    stamps = {"QUEUE_START": 1_000, "COMPUTE_START": 51_000, "COMPUTE_INPUT_END": 52_000, "REQUEST_END": 99_000}
    events = [
        {"id": 1, "model_name": "m"},
        *({"id": 1, "timestamps": [{"name": n, "ns": t}]} for n, t in stamps.items()),
    ]
    for text in (json.dumps(events), json.dumps(events)[:-1], json.dumps(events)[:-1] + ","):
        file.write_text(text)
        assert read_trace(file) == {"queue": [50.0], "compute_input": [1.0]}
    for wrong in ("{}{", '[{"timestamps": [{"name": "x"}]}]', "[1]"):
        file.write_text(wrong)
        with pytest.raises(UsageError, match="not a trace file of Triton"):
            read_trace(file)


@pytest.mark.long
@pytest.mark.live
def test_on_the_real_server(minilm_repository: Path, tmp_path: Path, run_cli: Any, monkeypatch: Any) -> None:
    """MiniLM as generated: two instances that each take every core."""
    monkeypatch.chdir(tmp_path)
    found = run_cli("bottleneck", minilm_repository / "minilm", "--trace", "--concurrency", 4, "--json")
    assert found.code == 0, found.err
    data = found.json["data"]
    assert data["instances"] == 2
    assert "compute" in [cause["kind"] for cause in data["causes"]]
    if data["cores"] < 2 * data["threads"]:
        assert data["causes"][0]["kind"] == "oversubscribed cores"
    assert sum(data["shares"].values()) == pytest.approx(1)
    assert data["shares"]["compute_infer"] + data["shares"]["queue"] > 0.5
    assert data["latency_us"][0] <= data["total_us"] * 1.02
    assert data["trace"]["compute_infer"]["requests"] > 5
    assert 0.2 < data["trace"]["compute_infer"]["p50_us"] / data["split"]["compute_infer_us"] < 5
    assert Path(data["trace_file"]).is_file()
    assert run_cli("bottleneck").code == 2


ECHO = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        rows = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("y", row)]) for row in rows]
"""
CACHED = """backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "y" data_type: TYPE_INT64 dims: [ -1 ] }
response_cache { enable: true }
"""


@pytest.mark.live
@pytest.mark.parametrize("cache_bytes", [None, 2**24])
def test_the_cache_is_named_where_the_server_has_one(
    runtime: Any, tmp_path: Path, run_cli: Any, monkeypatch: Any, cache_bytes: int | None
) -> None:
    """The model asks for it in both; its requests are a file, for which no tokenizer is needed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(CACHED)
    (tmp_path / "models" / "m" / "1" / "model.py").write_text(ECHO)
    (tmp_path / "one.json").write_text(json.dumps({"data": [{"x": {"content": [5, 6, 7], "shape": [3]}}]}))
    with EmbeddedServer(
        tmp_path / "models", runtime, ServerOptions(flags=ServerFlags(cache_bytes=cache_bytes))
    ) as server:
        server.load("m")
        found = run_cli("bottleneck", "m", "--url", server.http_url, "--input-data", "one.json", "--json")
    assert found.code == 0, found.err
    assert "the response cache is on, if the server was started with --cache-config" in found.err
    data = found.json["data"]
    assert [cause["kind"] == "cache" for cause in data["causes"][:1]] == [cache_bytes is not None]
    assert data["workload"] == "8 clients"  # and no lengths, which the file has
