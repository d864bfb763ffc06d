"""Reasons and last lines out of tritonserver's log, on lines as the server writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.server.example import curl_example
from tooling.server.log import ServerLog, plain_reason, refusal_reason

HEAD = "1129 15:31:04.153967 8713 model_repository_manager.cc:1460]"


@pytest.fixture
def log(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = ServerLog(tmp_path / "server.log")
    yield made
    made.close()


def test_tail_keeps_what_matters(log: ServerLog) -> None:
    log.path.write_text(
        'W1129 15:30:42.09 8402 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, pinned memory '
        'pool will not be available: CUDA driver version is insufficient for CUDA runtime version"\n'
        "I1129 15:30:42.096268 8402 server.cc:604] \n+----+----+\n| Repository Agent | Path |\n+----+----+\n\n"
        "Error: Failed to initialize NVML\n"
        'I1129 15:30:42.101100 8402 metrics.cc:770] "Collecting CPU metrics"\n'
        'E1129 15:33:41.280028 10307 main.cc:257] "failed to start \\"HTTP\\" service"\n'
        "terminate called after throwing an instance of 'std::bad_alloc'\n"
    )
    assert log.tail().splitlines() == [
        '    error: failed to start "HTTP" service',
        "    terminate called after throwing an instance of 'std::bad_alloc'",
    ]


def test_tail_is_short_and_never_empty(log: ServerLog) -> None:
    assert log.tail() == "    (nothing was logged)"
    log.path.write_text("".join(f"line {i} {'x' * 1000}\n" for i in range(50)))
    lines = log.tail().splitlines()
    assert lines[0].startswith("    line 38 ")
    assert lines[-1].startswith("    line 49 ")
    assert max(map(len, lines)) <= 404


def test_log_is_readable_after_its_directory_is_gone(log: ServerLog) -> None:
    log.path.write_text("last words\n")
    log.path.unlink()
    assert log.tail() == "    last words"


def test_only_lines_after_the_mark_and_of_this_model_give_the_reason(log: ServerLog) -> None:
    log.path.write_text(f"E{HEAD} \"Poll failed for model directory 'm': an old reason\"\n")
    mark = log.mark()
    with log.path.open("a") as file:
        file.write(f"E{HEAD} \"Poll failed for model directory 'other': not ours\"\n")
        file.write(f"E{HEAD} \"Poll failed for model directory 'm': Invalid config override: foo\"\n")
    general = "failed to load 'm', failed to poll from model repository"
    assert refusal_reason("m", general, log.lines(mark)) == "Invalid config override: foo"


def test_missing_model_has_its_reason_in_the_log_too(log: ServerLog) -> None:
    log.path.write_text(f"E{HEAD} \"failed to poll model 'm': model not found in any model repository.\"\n")
    assert refusal_reason("m", "failed to load 'm'", log.lines()) == "model not found in any model repository."


def test_reason_in_the_answer() -> None:
    answer = (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: TritonModelException: Invalid "
        "argument: no; not now\n\nAt:\n  /opt/model.py(4): initialize\n;\n"
    )
    assert refusal_reason("m", answer, iter(())) == "Invalid argument: no; not now"


def test_reasons_of_several_versions() -> None:
    answer = (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: a;\n"
        "version 12 is at UNAVAILABLE state: Invalid argument: b;\n"
    )
    assert refusal_reason("m", answer, iter(())) == "version 1: Internal: a; version 12: Invalid argument: b"


def test_answer_of_an_ensemble_stays_whole() -> None:
    answer = "load failed for model 'e': ensemble e contains models that are not available: m"
    assert refusal_reason("e", answer, iter(())) == answer


def test_plain_reason_keeps_other_prefixes() -> None:
    assert plain_reason("Internal: onnx runtime error 7: x") == "Internal: onnx runtime error 7: x"


def test_curl_example_fills_free_axes() -> None:
    entries = [
        {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1]},
        {"name": "text", "data_type": "TYPE_STRING", "dims": [1]},
    ]
    assert curl_example("127.0.0.1:8000", "m", {"max_batch_size": 8, "input": entries}) == (
        "curl -s http://127.0.0.1:8000/v2/models/m/infer -d '"
        '{"inputs":[{"name":"ids","datatype":"INT64","shape":[1,4],"data":[1,1,1,1]},'
        '{"name":"text","datatype":"BYTES","shape":[1,1],"data":["text"]}]}\''
    )


def test_curl_example_asks_a_decoupled_model_for_a_stream() -> None:
    entries = [
        {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
        {"name": "beams", "data_type": "TYPE_INT32", "dims": [2]},
        {"name": "image", "data_type": "TYPE_STRING", "dims": [-1], "optional": True},
    ]
    config = {"max_batch_size": 4, "input": entries, "model_transaction_policy": {"decoupled": True}}
    assert curl_example("127.0.0.1:8000", "m", config) == (
        'curl -s http://127.0.0.1:8000/v2/models/m/generate_stream -d \'{"text_input":"text","beams":[1,1]}\''
    )


@pytest.mark.parametrize(("kind", "dims"), [("TYPE_FP32", [3, 224, 224]), ("TYPE_FP16", [2])])
def test_curl_example_without_json_data(kind: str, dims: list[int]) -> None:
    config = {"max_batch_size": 0, "input": [{"name": "x", "data_type": kind, "dims": dims}]}
    assert curl_example("127.0.0.1:8000", "m", config) == "curl -s http://127.0.0.1:8000/v2/models/m"
