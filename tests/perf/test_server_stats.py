"""The server's own figures, from recorded answers of its statistics and metrics endpoints."""

from __future__ import annotations

import pytest

from perf.server_stats import energy_j, failure_counts, since


def stats(success: int, success_ns: int, inferences: int, executions: int, **batches: int) -> dict:
    part = {"count": success, "ns": 1000 * success}
    return {
        "inference_count": str(inferences),  # Triton writes some counts as strings over gRPC
        "execution_count": executions,
        "inference_stats": {
            "success": {"count": success, "ns": success_ns},
            "fail": {"count": 2, "ns": 5},
            "queue": {"count": success, "ns": 3000 * success},
            **dict.fromkeys(("compute_input", "compute_infer", "compute_output"), part),
        },
        "batch_stats": [
            {"batch_size": int(size[1:]), "compute_infer": {"count": count, "ns": 9}} for size, count in batches.items()
        ],
    }


def test_latency_and_batches_come_from_differences():
    """Five requests of one row and one of eight are six answered requests, thirteen rows and six executions."""
    before, after = stats(10, 1_000_000, 10, 10, b1=10), stats(16, 7_000_000, 23, 16, b1=15, b8=1)
    found = since(before, after)
    assert (found["answered"], found["inference_count"], found["execution_count"]) == (6, 13, 6)
    assert found["server_us"] == pytest.approx(6_000_000 / 6 / 1e3)
    assert (found["queue_us"], found["compute_infer_us"]) == (3, 1)
    assert found["batch_histogram"] == {1: 5, 8: 1}
    assert found["failed"] == 0


def test_a_model_that_did_nothing_has_no_times():
    found = since(stats(4, 9, 4, 4, b1=4), stats(4, 9, 4, 4, b1=4))
    assert (found["server_us"], found["queue_us"], found["batch_histogram"]) == (None, None, {})
    assert since({}, {})["failed"] == 0


def test_failures_are_added_over_their_reasons():
    text = """# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="enc",reason="OTHER",version="1"} 0
nv_inference_request_failure{model="enc",reason="REJECTED",version="1"} 3
nv_inference_request_failure{model="enc",reason="CANCELED",version="1"} 0
nv_inference_request_failure{model="enc",reason="BACKEND",version="1"} 1
nv_inference_request_failure{model="other",reason="BACKEND",version="1"} 7
nv_inference_request_failure{model="enc",reason="REJECTED",version="2"} 1
"""
    counts = failure_counts(text, "enc")
    assert counts == {"OTHER": 0, "REJECTED": 4, "CANCELED": 0, "BACKEND": 1}
    assert failure_counts(text, "none") == {}


def test_energy_is_that_of_all_gpus():
    """The counter is in joules, one for each GPU; a server on the CPU has none."""
    text = 'nv_energy_consumption{gpu_uuid="GPU-a"} %s\nnv_energy_consumption{gpu_uuid="GPU-b"} %s\n'
    assert energy_j(text % (100, 20.5), text % (130, 21.5)) == pytest.approx(31)
    assert energy_j("", "") is None
    assert energy_j("", text % (1, 2)) is None, "a GPU that came meanwhile has no beginning"
