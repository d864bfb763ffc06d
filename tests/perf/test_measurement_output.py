"""Reading and judging what perf_analyzer wrote, on recorded runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from perf.measurement import Load, Measurement
from perf.outcome import cross_checked, judge
from perf.pa_output import read_row, read_stdout

SAMPLES = Path(__file__).parent / "samples"


def concurrency(value: int) -> Load:
    return Load(mode="concurrency", value=value)


def recorded(name: str, load: Load, **more: object) -> Measurement:
    report = asdict(read_stdout((SAMPLES / f"{name}.stdout").read_text()))
    row = read_row(SAMPLES / f"{name}.csv", load)
    assert row is not None
    return Measurement(status="ok", load=load, **{**report, **row, **more})


def test_a_row_is_found_by_its_first_column_whatever_its_place():
    assert read_row(SAMPLES / "sorted_by_throughput.csv", concurrency(2)) == {
        "throughput_rps": 179.327, "p50_us": 10817, "p90_us": 11472, "p95_us": 12177, "p99_us": 14406,
        "queue_us": 5330, "compute_input_us": 24, "compute_infer_us": 5351, "compute_output_us": 146,
    }  # fmt: skip
    assert read_row(SAMPLES / "sorted_by_throughput.csv", concurrency(4)) is None


def test_columns_are_found_by_name_when_others_come_between():
    row = read_row(SAMPLES / "cached.csv", concurrency(1))
    header, values = (line.split(",") for line in (SAMPLES / "cached.csv").read_text().splitlines())
    assert row is not None
    assert row["p99_us"] == float(values[header.index("p99 latency")])
    assert "avg_us" not in row


def test_a_rate_is_found_with_the_six_digits_the_csv_keeps(tmp_path):
    (tmp_path / "r.csv").write_text("Request Rate,Inferences/Second\n123.457,120.5\n")
    load = Load(mode="request_rate", value=123.456789)
    assert read_row(tmp_path / "r.csv", load) == {"throughput_rps": 120.5}
    assert read_row(tmp_path / "r.csv", concurrency(123)) is None


def test_an_underflowed_counter_is_no_figure(tmp_path):
    (tmp_path / "r.csv").write_text("Concurrency,Inferences/Second,Server Queue\n1,10,18446744073709551615\n")
    assert read_row(tmp_path / "r.csv", concurrency(1)) == {"throughput_rps": 10}


def test_no_csv_is_no_row(tmp_path):
    assert read_row(tmp_path / "none.csv", concurrency(1)) is None


def test_stdout_gives_what_the_csv_lacks():
    report = read_stdout((SAMPLES / "closed_loop.stdout").read_text())
    assert (report.requests, report.inference_count, report.execution_count) == (155, 155, 155)
    assert report.client_overhead_percent == 0.03
    assert report.windows_rps == (55.1803, 47.6985, 58.0575)
    assert report.windows_us == (17906, 20800, 17238)
    assert (report.delayed_percent, report.send_rate_rps) == (None, None)


def test_stdout_of_a_late_client():
    report = read_stdout((SAMPLES / "delayed.stdout").read_text())
    assert (report.delayed_percent, report.send_rate_rps) == (99.1, 154.42)


def test_stdout_of_several_points_gives_the_last():
    assert read_stdout((SAMPLES / "sweep.stdout").read_text()).execution_count == 257


def test_stdout_of_a_run_that_never_measured():
    assert read_stdout("*** Measurement Settings ***\n").requests is None


@pytest.mark.parametrize(
    ("name", "rc", "status", "words"),
    [
        ("model_unknown", 99, "model_unknown", "Request for unknown model: 'nosuch' is not found"),
        ("unreachable_http", 99, "unreachable", "Couldn't connect to server"),
        ("unreachable_grpc", 99, "unreachable", "Connection refused"),
        ("server_killed", 99, "unreachable", "went away: HTTP client failed: Send failed"),
        ("request_failed", 99, "request_failed", "idx=99999 must be within the inclusive range [-30522,30521]"),
        ("wrong_element_count", 99, "request_failed", "unexpected number of string elements 2"),
        ("bad_syntax", 99, "bad_input", "failed to parse the specified json file"),
        ("missing_tensor", 99, "bad_input", "missing tensor token_type_ids"),
        ("bad_option", 99, "bad_input", "Failed to parse -m (model name)"),
        ("decoupled", 99, "bad_input", "Decoupled models must be run with"),
        ("no_samples", 3, "no_samples", "no request finished"),
        ("unstable", 2, "unstable", "within 4 measurement windows"),
        ("over_limit", 0, "over_limit", "12 msec"),
        ("interrupted", 0, "interrupted", "interrupted"),
        ("aborted", -6, "crashed", "SIGABRT: basic_string::substr"),
        ("missing_library", 127, "missing", "libb64.so.0d is missing"),
        ("missing_glibc", 1, "missing", "GLIBC_2.38 is missing"),
    ],
)
def test_a_run_without_a_result_has_a_status_and_its_cause(name, rc, status, words):
    outcome = judge(rc, (SAMPLES / f"{name}.stderr").read_text(), has_row=False)
    assert outcome.status == status
    assert words in (outcome.message or "")
    assert "\n" not in (outcome.message or "")


def test_failed_requests_are_counted_by_their_text():
    rejected = "[StatusCode.UNAVAILABLE] Exceeds maximum queue size"
    text = f"Failed to retrieve results.\nThread [0] had error: {rejected}\nThread [2] had error: {rejected}\n"
    outcome = judge(99, text + "Thread [3] had error: onnx runtime error 2\n\nAt:\n  model.py(20): execute\n", False)
    assert outcome.status == "request_failed"
    assert outcome.failures == {rejected: 2, "onnx runtime error 2": 1}
    assert outcome.message == f"a request was rejected: {rejected} (the first of 3 threads that failed)"
    assert "max_queue_size" in (outcome.hint or "")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("HTTP client failed: Unsupported protocol", "it is the gRPC port: measure over gRPC"),
        ("last error: UNAVAILABLE: ipv4:127.0.0.1:8000: Socket closed", "it is the HTTP port: measure over HTTP"),
        ("HTTP client failed: SSL connect error", "check that this port speaks TLS"),
        ("Ssl handshake failed: SSL_ERROR_SSL: wrong version number", "check that this port speaks TLS"),
    ],
)
def test_the_wrong_port_is_told_from_no_server(cause, words):
    outcome = judge(99, f"error: failed to get model metadata: {cause}\n\n", has_row=False)
    assert outcome.status == "unreachable"
    assert words in (outcome.hint or "")


@pytest.mark.parametrize(
    "text", ["failed to find the requested model version", "missing statistics for requested model"]
)
def test_a_window_in_which_the_server_counted_nothing_has_no_samples(text):
    assert judge(99, f"{text}\n\n", has_row=False).status == "no_samples"


def test_a_signal_comes_with_the_last_line():
    outcome = judge(-11, "WARNING: first\nsomething about step 3\n\n", has_row=False)
    assert outcome.message == "perf_analyzer died of SIGSEGV: something about step 3"


def test_rates_of_uneven_loads_stand_in_the_only_row(tmp_path):
    (tmp_path / "r.csv").write_text("Request Rate,Inferences/Second\n40,39.7\n")
    load = Load(mode="request_rate", value=40.83)
    assert read_row(tmp_path / "r.csv", load) is None
    assert read_row(tmp_path / "r.csv", load, exact=False) == {"throughput_rps": 39.7}


def test_a_stream_has_several_responses_to_a_request():
    report = read_stdout((SAMPLES / "stream.stdout").read_text())
    assert report.responses_per_request == pytest.approx(4, rel=0.01)


def test_bursts_under_way_are_not_missing():
    """Ten at a time, one burst a second, measured to just after the last burst: none of it has to be answered yet."""
    planned = np.repeat(np.arange(1, 20) * 1_000_000_000, 10)
    measured = Measurement(
        status="ok",
        load=Load(mode="request_rate", value=10.0),
        throughput_rps=20 / 3.05,
        requests=20,
        windows_us=(200_000.0,),
    )
    assert cross_checked(measured, planned).status == "ok"
    assert cross_checked(replace(measured, requests=12, throughput_rps=12 / 3.05), planned).status == "saturated"


def test_the_server_s_text_is_kept_without_its_traceback():
    outcome = judge(99, (SAMPLES / "request_failed.stderr").read_text(), has_row=False)
    assert outcome.message is not None
    assert outcome.message.startswith("a request failed: Failed to process the request(s) for model")
    assert outcome.message.endswith("[-30522,30521]")


def test_ids_in_the_segment_table_are_swapped_inputs():
    stderr = (SAMPLES / "request_failed.stderr").read_text()
    assert "ids inside the vocabulary" in (judge(99, stderr, has_row=False).hint or "")
    swapped = judge(99, stderr.replace("[-30522,30521]", "[-2,1]"), has_row=False)
    assert swapped.hint is not None
    assert swapped.hint.startswith("a range of 2 values means the segment table: inputs are swapped")


@pytest.mark.parametrize(
    ("rc", "status", "words"),
    [
        (-11, "crashed", "SIGSEGV"),
        (139, "crashed", "SIGSEGV"),
        (-9, "crashed", "SIGKILL"),
        (-15, "interrupted", "interrupted"),
        (130, "interrupted", "interrupted"),
        (0, "crashed", "exit code 0 and no result"),
        (55, "crashed", "exit code 55 and no result: some news"),
    ],
)
def test_an_end_that_explains_little(rc, status, words):
    outcome = judge(rc, "some news\n" if rc == 55 else "", has_row=False)
    assert (outcome.status, words in (outcome.message or "")) == (status, True)


def test_a_result_cut_short_by_a_signal_is_not_a_result():
    text = (SAMPLES / "interrupted.stderr").read_text()
    assert judge(0, text, has_row=True).status == "interrupted"
    assert judge(0, "", has_row=True).status == "ok"


def test_a_quiet_closed_loop_has_only_the_warning_about_p99():
    checked = cross_checked(recorded("closed_loop", concurrency(1)))
    assert checked.status == "ok"
    assert checked.warnings == ("p99 stands on 155 requests; 2000 are needed for a steady one",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"avg_us": 15_000.0}, "0.80 requests in flight instead of 1"),
        ({"client_overhead_percent": 31.0}, "the client was busy itself 31 %"),
        ({"delayed_percent": 2.5}, "2.5 % of the requests left late"),
        ({"inference_count": 3000}, "it has other clients"),
        ({"foreign_cores": 0.7}, "other programs used 0.7 cores"),
    ],
)
def test_a_disturbed_run_is_warned_about(change, words):
    long_run = recorded("closed_loop", concurrency(1), requests=2500, **{"inference_count": 2500, **change})
    checked = cross_checked(long_run)
    assert [words in warning for warning in checked.warnings] == [True]


def test_an_open_loop_that_the_server_follows_is_ok():
    assert cross_checked(recorded("open_loop", Load(mode="request_rate", value=30.0))).status == "ok"


def test_an_open_loop_that_the_server_cannot_follow_is_saturated():
    checked = cross_checked(recorded("overload", Load(mode="request_rate", value=600.0)))
    assert checked.status == "saturated"
    assert checked.message == "the server falls behind: 600 requests/s asked, 103 answered"


@pytest.mark.parametrize(("rate", "status"), [(30.5, "ok"), (36.0, "saturated")])
def test_saturation_allows_for_the_edges_of_a_short_run(rate, status):
    measured = replace(
        recorded("open_loop", Load(mode="request_rate", value=30.0)), load=Load(mode="request_rate", value=rate)
    )
    assert cross_checked(measured).status == status


def test_a_run_cut_in_its_backlog_is_saturated_and_a_silent_one_is_hung():
    load = Load(mode="request_rate", value=8000.0)
    backlog = Measurement(status="hung", load=load, windows_rps=(32.6,), windows_us=(184899.0,))
    assert cross_checked(backlog).status == "saturated"
    assert cross_checked(Measurement(status="hung", load=load)).status == "hung"


def test_a_measurement_survives_json():
    measured = cross_checked(recorded("overload", Load(mode="request_rate", value=600.0), argv=("perf_analyzer", "-m")))
    assert Measurement.from_dict(json.loads(json.dumps(measured.to_dict()))) == measured
    assert measured.mean_batch == pytest.approx(111 / 106)
