"""The raw export: read as a stream, and what is made of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perf.profile_export import (
    Requests,
    declared_kinds,
    from_schedule_ns,
    lateness_ns,
    percentiles_us,
    read_profile_export,
    read_requests,
    strayed,
    stream_figures,
    write_requests,
)
from tooling.errors import ExternalError

SAMPLES = Path(__file__).parent / "samples"


def requests_of(sent, last, first=None, responses=None) -> Requests:
    columns = [np.array(values, dtype=np.int64) for values in (sent, first or last, last, responses or [1] * len(sent))]
    return Requests(*columns, {})


def test_a_recorded_stream():
    """Of the decoupled model each of the four responses counts, and the empty last one does not."""
    read = read_profile_export(SAMPLES / "stream_export.json", empty_finals=True)
    assert read.responses.tolist() == [4] * len(read.sent_ns)
    assert (np.diff(read.sent_ns) >= 0).all()
    assert read_profile_export(SAMPLES / "stream_export.json").responses.tolist() == [5] * len(read.sent_ns)
    figures = stream_figures(read)
    assert 3_000 < figures["itl_p50_us"] < 10_000
    assert figures["ttft_p50_us"] < figures["ttft_p99_us"]


def test_the_times_are_kept_without_the_tensors(tmp_path):
    read = read_profile_export(SAMPLES / "stream_export.json")
    write_requests(tmp_path / "requests.csv", read)
    again = read_requests(tmp_path / "requests.csv")
    assert all((a == b).all() for a, b in zip(read[:4], again[:4], strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"experiments":[]}',
        '{"experiments":[{"requests":[{"timestamp":1',
        '{"experiments":[{"requests":[{"timestamp":1}]}]}',
        '{"experiments":[{"requests":[{"timestamp":1,"request_inputs":{},"response_timestamps":[]}]}]}',
        '{"experiments":[{"requests":[]}]}',
    ],
)
def test_a_damaged_export(tmp_path, text):
    (tmp_path / "export.json").write_text(text)
    with pytest.raises(ExternalError, match=r"export\.json"):
        read_profile_export(tmp_path / "export.json")


def test_texts_that_look_like_the_export_itself(tmp_path):
    text = '"requests":[{"timestamp":1},{"response_timestamps":[9]}]\x00 \ud800'
    request = {"timestamp": 5, "request_inputs": {"timestamp": 3, "T": text}, "response_timestamps": [7]}
    other = {**request, "timestamp": 4, "request_inputs": {"requests": [1, 2, 3], "T": "é" * 3_000_000}}
    content = {"experiments": [{"requests": [request, other], "window_boundaries": [1, 2]}]}
    (tmp_path / "export.json").write_text(json.dumps(content).replace("\\u0000", "\x00"))
    read = read_profile_export(tmp_path / "export.json")
    assert read.sent_ns.tolist() == [4, 5]
    assert dict(read.kinds) == {(("T", 1), ("timestamp", 1)): 1, (("T", 1), ("requests", 3)): 1}


MEASURE = """
import sys
from pathlib import Path
from perf.profile_export import read_profile_export
count = len(read_profile_export(Path(sys.argv[1])).sent_ns)
print(count, Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])  # ru_maxrss holds the parent's too
"""


@pytest.mark.long
def test_an_export_of_100_mb_takes_little_memory(tmp_path):
    path, request = tmp_path / "export.json", {"timestamp": 1, "response_timestamps": [2]}
    tensors = {"request_inputs": {"ids": list(range(128))}, "response_outputs": [{"y": [0.123456789] * 1_000}]}
    line = json.dumps({**request, **tensors}, separators=(",", ":"))
    count = 100_000_000 // len(line) + 1
    with path.open("w") as file:
        file.write('{"experiments":[{"experiment":{"mode":"concurrency","value":1},"requests":[')
        for _ in range(count - 1):
            file.write(line + ",")
        file.write(line + '],"window_boundaries":[1,2]}],"version":"0.0.0"}')
    assert path.stat().st_size > 100_000_000
    done = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
    read, kilobytes = map(int, done.stdout.split())
    assert read == count
    assert kilobytes < 300_000


def test_latency_counts_from_the_planned_time():
    """A client that stalls hides the wait of the requests it sends late: theirs is counted from the plan."""
    requests = requests_of([1_000, 1_100, 1_500, 1_510], [1_050, 1_150, 1_550, 1_560])
    planned = np.array([0, 100, 200, 300, 400])
    assert requests.latency_ns.tolist() == [50, 50, 50, 50]
    assert lateness_ns(requests, planned).tolist() == [0, 0, 300, 210]
    assert from_schedule_ns(requests, planned).tolist() == [50, 50, 350, 260]


def test_percentiles_are_read_as_perf_analyzer_reads_them():
    figures = percentiles_us(np.arange(1, 101, dtype=np.int64)[::-1] * 1000)
    assert figures == {"avg_us": 50.5, "p50_us": 51, "p90_us": 90, "p95_us": 95, "p99_us": 99}
    assert percentiles_us(np.array([7_000]))["p99_us"] == 7


def test_streams_have_times_to_the_first_and_between_responses():
    figures = stream_figures(requests_of([0, 0], [5_000_000, 1_000_000], [1_000_000, 1_000_000], [5, 1]))
    assert (figures["ttft_p50_us"], figures["itl_p50_us"]) == (1_000, 1_000)
    assert figures["tokens_per_s"] == pytest.approx(6 / 0.005)
    assert "itl_p50_us" not in stream_figures(requests_of([0], [5], [5]))


def test_several_tokens_in_a_response_are_counted(tmp_path):
    """3 tokens at 1 ms, 2 at 5 ms, 1 at 7 ms, and an empty last response: 3 later ones in 6 ms."""
    outputs = [{"num_output_tokens": 3}, {"num_output_tokens": [1, 1]}, {"num_output_tokens": 1}]
    outputs.append({"num_output_tokens": ""})
    times = [1_000_000, 5_000_000, 7_000_000, 7_000_500]
    request = {"timestamp": 0, "request_inputs": {}, "response_timestamps": times, "response_outputs": outputs}
    (tmp_path / "export.json").write_text(json.dumps({"experiments": [{"requests": [request]}]}))
    read = read_profile_export(tmp_path / "export.json", empty_finals=True)
    figures = stream_figures(read)
    assert (figures["ttft_p50_us"], figures["itl_p50_us"]) == (1_000, 2_000)
    assert figures["tokens_per_s"] == pytest.approx(6 / 0.007)
    write_requests(tmp_path / "requests.csv", read)
    assert stream_figures(read_requests(tmp_path / "requests.csv")) == figures


def test_the_mix_that_was_sent_is_compared_with_the_declared_one(tmp_path):
    path = tmp_path / "in.json"
    steps = [{"ids": {"content": [1] * n, "shape": [n]}, "half": {"b64": "AAA=", "shape": [1]}} for n in (3, 3, 9)]
    path.write_text(json.dumps({"data": [*steps, {"ids": [1, 2, 3], "half": {"b64": "AAA="}}]}))
    declared = declared_kinds(path, path.stat().st_mtime_ns)
    assert declared == {(("ids", 3),): 0.75, (("ids", 9),): 0.25}
    three, nine = (("half", 1), ("ids", 3)), (("half", 1), ("ids", 9))
    assert strayed({three: 750, nine: 250}, declared, 4) is None
    assert strayed({three: 780, nine: 220}, declared, 4) is None
    assert strayed({three: 1000}, declared, 4) == ((("ids", 9),), 0.0, 0.25)
    assert strayed({three: 700, nine: 250, (("half", 1), ("ids", 4)): 50}, declared, 4) == ((("ids", 4),), 0.05, 0.0)
    assert strayed({three: 3}, declared, 4) is None, "the round has not ended"


def test_a_file_whose_numbers_the_export_does_not_tell_is_not_compared(tmp_path):
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"data": [{"text": ["a"]}, {"text": {"content": ["b", "c"], "shape": [2]}}]}))
    assert strayed({(("text", 1),): 50}, declared_kinds(path, 0), 1) is None
