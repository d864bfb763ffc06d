"""Model Analyzer's YAML as input of a tuning."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.grid import Grid
from perf.model_analyzer import read_model_analyzer
from perf.workload import Workload
from tooling.errors import UsageError

FULL = """
model_repository: /models
profile_models:
  bert:
    parameters: { concurrency: [2, 8] }
    objectives: { perf_latency_p99: 1, perf_throughput: 10 }
    constraints: { perf_latency_p99: { max: 80 }, perf_throughput: { min: 20 } }
    model_config_parameters:
      max_batch_size: [4, 8]
      instance_group: [{ kind: KIND_CPU, count: [1, 2] }]
      dynamic_batching: { max_queue_delay_microseconds: [0, 500] }
      response_cache: { enable: true }
  other: {}
perf_output: true
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_everything_with_a_counterpart_is_taken_and_the_rest_named(tmp_path: Path) -> None:
    asked = read_model_analyzer(written(tmp_path, FULL), "bert")
    assert asked.grid == Grid(instances=(1, 2), delays_us=(0, 500), max_batch_sizes=(4, 8))
    assert asked.workload == Workload(concurrency=8)
    assert asked.words == ("p99<=80ms", "throughput>=20", "throughput")
    assert asked.unused == ("perf_output", "model_config_parameters.response_cache")


@pytest.mark.parametrize(
    ("text", "grid", "workload", "slo"),
    [
        ("profile_models: a, bert", Grid(), None, ""),
        ("profile_models: [bert]\nlatency_budget: 50", Grid(), None, "p99<=50ms"),
        ("profile_models: [bert]\nparameters: {request_rate: 30}", Grid(), Workload(request_rate=30), ""),
        (
            "profile_models: [bert]\nconcurrency: {start: 2, stop: 8, step: 2}",
            Grid(),
            Workload(concurrency=8),
            "",
        ),
        (
            "profile_models: bert\nrun_config_search_max_instance_count: 3\nrun_config_search_max_model_batch_size: 16",
            Grid(instances=(1, 2, 3), max_batch_sizes=(1, 2, 4, 8, 16)),
            None,
            "",
        ),
    ],
)
def test_the_ways_to_write_it(tmp_path: Path, text: str, grid: Grid, workload: Workload | None, slo: str) -> None:
    asked = read_model_analyzer(written(tmp_path, text), "bert")
    assert (asked.grid, asked.workload, ",".join(asked.words), asked.unused) == (grid, workload, slo, ())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("profile_models: [a]", "does not name this model"),
        ("", "does not name this model"),
        ("profile_models: {bert: 3}", "not a mapping"),
        ("profile_models: [bert]\nconcurrency: many", "not a usable number"),
        ("profile_models: [bert]\nconcurrency: 2\nrequest_rate: 3", "exclude each other"),
        ("profile_models: [bert]\nconstraints: {perf_latency_p99: {max: soon}}", "not a duration"),
        ("profile_models: [bert]\nprofile_models: [a]", "not a YAML file"),
        ("- a", "not a mapping"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        read_model_analyzer(written(tmp_path, text), "bert")


def test_options_win_over_the_file() -> None:
    theirs = Grid(instances=(1, 2), delays_us=(0, 500))
    assert theirs.overridden(Grid(instances=(4,), threads=(1,))) == Grid((4,), (1,), (0, 500))


def test_the_command_reads_it_before_a_server_starts(minilm_repository: Path, run_cli, tmp_path: Path) -> None:
    file = written(tmp_path, "profile_models: [other]")
    refused = run_cli("tune", minilm_repository / "minilm", "--from-model-analyzer", file)
    assert (refused.code, refused.out) == (2, "")
    assert "profile_models: the file does not name this model (got other; expected minilm)" in refused.err


def test_an_empty_file_names_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not name this model \(got none; expected bert\)"):
        read_model_analyzer(written(tmp_path, ""), "bert")
