"""The description of traffic, in Python and as a file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from perf.mix import MOST, expand, histogram
from perf.sim import Arrivals
from perf.workload import Workload
from perf.workload_file import read_log, read_texts, read_workload, workload_text
from tooling.errors import UsageError


def test_a_closed_loop():
    workload = Workload(concurrency=4, lengths=(3, 5))
    assert (workload.mode, workload.level, str(workload)) == ("concurrency", 4, "4 clients")
    assert str(Workload(concurrency=1)) == "1 client"


def test_an_open_loop():
    workload = Workload(request_rate=12.5, distribution="poisson")
    assert (workload.mode, workload.level, str(workload)) == ("request_rate", 12.5, "12.5 requests/s (poisson)")
    assert workload.times_s(3).tolist() == Workload(request_rate=12.5, distribution="poisson").times_s(3).tolist()
    assert np.diff(workload.times_s(4_000)).mean() == pytest.approx(1 / 12.5, rel=0.05)
    assert Workload(request_rate=10).times_s(3) == pytest.approx([0, 0.1, 0.2])


def test_bursts_keep_the_rate():
    constant = Workload(request_rate=10, burst=4)
    assert constant.times_s(6) == pytest.approx([0, 0, 0, 0, 0.4, 0.4])
    assert str(constant) == "10 requests/s (constant) in bursts of 4"
    random = Workload(request_rate=10, burst=4, distribution="poisson").times_s(8_000)
    assert len(set(random)) == 2_000
    assert random[-1] == pytest.approx(800, rel=0.05)


def test_a_trace_is_played_again_with_a_mean_gap():
    trace = Workload(timestamps=(5.0, 5.1, 5.4), lengths=(9, 7, 8))
    assert trace.times_s(5) == pytest.approx([0, 0.1, 0.4, 0.6, 0.7])
    assert (trace.mode, trace.level) == ("request_rate", pytest.approx(5))
    assert str(trace) == "a trace of 3 requests at 5 requests/s"


def test_the_simulator_gets_the_same_requests():
    trace = Workload(timestamps=(0, 0.1, 0.4), lengths=(9, 7, 8), batch=(2,))
    arrivals = Arrivals.of(trace, 5)
    assert arrivals.times_ns is not None
    assert arrivals.times_ns.tolist() == [0, 100_000_000, 400_000_000, 600_000_000, 700_000_000]
    assert (arrivals.lengths, arrivals.sizes) == ((9, 7, 8), (2,))
    assert Arrivals.of(Workload(concurrency=3), 5).concurrency == 3


def test_what_requests_hold_is_told():
    assert str(Workload(concurrency=2, batch=4)) == "2 clients of 4 rows"
    assert str(Workload(concurrency=2, batch={1: 1, 4: 1}, streams=1)) == "2 clients of 1–4 rows on 1 stream"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"concurrency": 1, "request_rate": 2.0},
        {"concurrency": 1, "timestamps": (0, 1)},
        {"concurrency": 0},
        {"request_rate": 0.0},
        {"request_rate": float("inf")},
        {"concurrency": 1, "lengths": (3, 0)},
        {"concurrency": 1, "lengths": {0: 1}},
        {"concurrency": 1, "lengths": {"many": 1}},
        {"concurrency": 1, "lengths": {4: -1, 5: 2}},
        {"concurrency": 1, "lengths": {4: 0}},
        {"concurrency": 1, "lengths": True},
        {"concurrency": 1, "distribution": "bursty"},
        {"concurrency": 1, "distribution": "poisson"},
        {"concurrency": 1, "burst": 2},
        {"concurrency": 1, "batch": ()},
        {"concurrency": 1, "lenghts": (3,)},
        {"concurrency": 1, "seed": -1},
        {"concurrency": 1, "seed": 2**32},
        {"concurrency": 1_000_001},
        {"request_rate": 2e6},
        {"concurrency": 1, "lengths": (10**9,)},
        {"concurrency": 1, "duration": "fast"},
        {"concurrency": 1, "duration": "1s", "duration_s": 2},
        {"timestamps": (0.0,)},
        {"timestamps": (1.0, 1.0)},
        {"timestamps": (1.0, 0.5)},
        {"timestamps": (1.0, 1e300)},
        {"timestamps": (0.0, float("nan"))},
        {"concurrency": 1, "lengths": {"distribution": "zipf", "a": 1}},
        {"concurrency": 1, "lengths": {"distribution": "uniform", "min": 4}},
        {"concurrency": 1, "lengths": {"distribution": "uniform", "min": 9, "max": 4}},
        {"concurrency": 1, "lengths": {"distribution": "normal", "mean": 4, "std": -1}},
        {"concurrency": 1, "lengths": {"distribution": "lognormal", "median": 9, "p95": 4}},
        {"concurrency": 1, "lengths": {"distribution": "lognormal", "median": 9, "p95": "x"}},
    ],
)
def test_what_is_no_traffic(fields):
    with pytest.raises(ValidationError):
        Workload(**fields)


@pytest.mark.parametrize(
    "workload",
    [
        Workload(request_rate=3.25, lengths=(9, 4), seed=7),
        Workload(concurrency=2, lengths={5: 3, 9: 1}, batch=2, streams=3, duration_s=1.5),
        Workload(timestamps=(0, 0.25, 1.5), lengths=(7, 6, 9)),
        Workload(request_rate=8, distribution="poisson", burst=2, texts=("a",)),
    ],
)
def test_it_survives_json_and_yaml(workload, tmp_path):
    assert Workload.model_validate_json(workload.model_dump_json()) == workload
    (tmp_path / "texts.txt").write_text("a\n")
    path = tmp_path / "w.yaml"
    path.write_text(workload_text(workload, ["From somewhere."], "texts.txt"))
    assert read_workload(path) == workload


def test_shares_are_dealt_out_exactly_where_they_fit():
    assert Counter(expand({12: 40, 128: 10})) == {12: 4, 128: 1}
    assert Counter(expand({"5": 0.25, "6": 0.75})) == {5: 99, 6: 298}
    assert expand({5: 40, 9: 60}) == expand({5: 40, 9: 60}), "the same order every time"


def test_the_longest_of_many_lengths_keeps_a_place():
    counts = Counter(expand({10: 90_001, 20: 10_000, 500: 1}))
    assert counts.total() == MOST and counts[500] == 1
    assert counts[10] / counts[20] == pytest.approx(9, rel=0.05)


def test_distributions_have_the_figures_they_are_named_by():
    lognormal = np.array(expand({"distribution": "lognormal", "median": 24, "p95": 96, "max": 200}))
    assert np.median(lognormal) == 24 and lognormal.max() == 200
    assert np.percentile(lognormal, 95) == pytest.approx(96, rel=0.05)
    normal = np.array(expand({"distribution": "normal", "mean": 40, "std": 10}))
    assert (normal.mean(), normal.std()) == (pytest.approx(40, rel=0.01), pytest.approx(10, rel=0.03))
    uniform = histogram(expand({"distribution": "uniform", "min": 5, "max": 8}))  # type: ignore[arg-type]
    assert uniform.keys() == {5, 6, 7, 8} and max(uniform.values()) - min(uniform.values()) <= 1


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("concurrency: 2\nlenghts: 3\n", "`lenghts`: unknown key (got 3)"),
        ("concurrency: 0\n", "`concurrency`: out of range (got 0; expected 1 or more)"),
        ("concurrency: many\n", "`concurrency`: not a whole number (got 'many'; expected a whole number)"),
        (
            "request_rate: 4\ndistribution: often\n",
            "`distribution`: no such choice (got 'often'; expected 'constant' or 'poisson')",
        ),
        ("concurrency: [", "not YAML"),
        pytest.param(
            f"concurrency: 2\nseed: {'9' * 5_000}\n", "w.yaml:2:7: not YAML (got a number of 5000", id="digits"
        ),
        ("concurrency: 2\nseed: 4294967296\n", "`seed`: out of range (got 4294967296; expected 4294967295 or less)"),
        ("- 3\n", "not a workload (got a list"),
        ("", "not a workload (got an empty file"),
        ("concurrency: 2\nduration: 3 parsecs\n", "`duration` is not a duration (got `3 parsecs`"),
        ("concurrency: 2\ntexts: none.txt\n", "none.txt: cannot be read"),
        (b"concurrency: 2 # \xff\n", "w.yaml:1: not UTF-8 text (got byte 0xff"),
    ],
)
def test_a_file_that_is_no_workload(tmp_path, text, what):
    with pytest.raises(UsageError) as refused:
        read_workload(write(tmp_path / "w.yaml", text))
    assert what in str(refused.value)


def test_a_misspelt_key_gets_its_closest_match(tmp_path):
    with pytest.raises(UsageError) as refused:
        read_workload(write(tmp_path / "w.yaml", "concurrency: 2\nlenghts: 3\n"))
    assert refused.value.problems[0].hint == "did you mean `lengths`?"


def test_texts_of_each_kind_of_file(tmp_path):
    assert read_texts(write(tmp_path / "a.txt", "\ufeffone\r\n\n two \n")) == ("one", " two ")
    assert read_texts(write(tmp_path / "a.jsonl", '"one"\n{"id": 3, "Prompt": "two\u2028"}\n')) == ("one", "two\u2028")
    assert read_texts(write(tmp_path / "a.csv", 'id,Text\n1,"one, ""two"""\n2,"a\nb"\n')) == ('one, "two"', "a\nb")
    assert read_texts(write(tmp_path / "b.csv", "body\none\n")) == ("one",)
    assert read_texts(write(tmp_path / "c.csv", "title,text\none,two\n"), "title") == ("one",)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.txt", "\n \n", "there is no text"),
        ("a.pdf", "x", "unknown kind of file (got .pdf"),
        ("a.jsonl", "{", "a.jsonl:1: not JSON"),
        ("a.jsonl", "3\n", "a.jsonl:1: not an object or a text"),
        ("a.jsonl", '{"text": 3}\n', "a.jsonl:1, `text`: not a text"),
        ("a.csv", "a,b\n1,2\n", "no column is the text (got a, b)"),
        ("a.csv", 'a\n"1\n', "not CSV"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_texts_that_cannot_be_read(tmp_path, name, text, what):
    with pytest.raises(UsageError) as refused:
        read_texts(write(tmp_path / name, text))
    assert what in str(refused.value)


@pytest.mark.parametrize(
    "times",
    [
        ("0.5", "1.75"),
        ("1795957904.5", "1795957905.75"),
        ("1795957904500", "1795957905750"),
        ("1795957904500000", "1795957905750000"),
        ("1795957904500000000", "1795957905750000000"),
        ("2026-11-29T19:00:00.5Z", "2026-11-29T20:00:01.75+01:00"),
        ("2026-11-29T19:00:00.5+0000", "2026-11-29 20:00:01.7500000+01"),
    ],
)
def test_a_log_in_each_way_of_writing_times(tmp_path, times):
    first, second = times
    log = read_log(write(tmp_path / "log.csv", f"tokens,Time\n9,{second}\n7,{first}\n"))
    assert (log.times_s, log.lengths, log.texts) == ((0.0, 1.25), (7, 9), ())
    assert log.rate_rps == pytest.approx(1 / 1.25)


def test_a_log_with_texts_or_other_names(tmp_path):
    rows = [{"at": 3, "q": "a b"}, {"at": 5, "q": "c"}]
    path = write(tmp_path / "log.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_log(path, time="at", text="q", unit="ms").texts == ("a b", "c")
    assert read_log(path, time="at", unit="ms").times_s == (0.0, 0.002)


@pytest.mark.parametrize(
    ("text", "options", "what"),
    [
        ("time,tokens\n1,2\n", {}, "too few requests (got 1"),
        ("when,tokens\n1,2\n2,3\n", {}, "no column is the time (got when, tokens)"),
        ("time,tokens\n1,2\n2,3\n", {"length": "token"}, "there is no column `token`"),
        ("time,tokens\n1,2\n2,x\n", {}, "log.csv:3: not a length (got 'x'"),
        ("time,tokens\n1,2\nnow,3\n", {}, "log.csv:3: not a time (got 'now'"),
        ("time,tokens\n-1,2\n1,3\n", {}, "not a time"),
        ("time,tokens\n2026-01-01T00:00:00Z,2\n1,3\n", {}, "log.csv:3: times of two kinds (got '1'; expected a date"),
        ("time,tokens\n4,2\n4,3\n", {}, "all requests came at the same time"),
    ],
)
def test_a_log_that_cannot_be_read(tmp_path, text, options, what):
    with pytest.raises(UsageError) as refused:
        read_log(write(tmp_path / "log.csv", text), **options)
    assert what in str(refused.value)
