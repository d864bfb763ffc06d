"""`tritune quickstart`, a build of the bundled project, with the real server; the budget lets it try little."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.long
@pytest.mark.live
def test_quickstart_and_its_second_run(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    directory = tmp_path / "quick start"
    model = directory / "model_repository" / "minilm"

    first = run_cli("quickstart", "--directory", directory, "--budget", "1s")
    assert first.code == 0, first.err
    for words in ("requests/s", "p99 ms", "default config", "tritune serve", "--config-name auto"):
        assert words in first.out
    (tuned,) = (model / "configs").iterdir()
    (study,) = (directory / ".tritune" / "studies").iterdir()
    for path in (tuned, study, directory / "reports" / "minilm.html"):
        assert str(path) in first.out
    assert "ETA" in first.err
    assert "# Measured on" in tuned.read_text()
    assert "max_batch_size: 8" in (model / "config.pbtxt").read_text()

    before = (study / "study.jsonl").read_bytes()
    second = run_cli("quickstart", "--directory", directory, "--budget", "1s", "--json")
    assert second.code == 0, second.err
    assert (study / "study.jsonl").read_bytes() == before
    assert second.json["data"]["report"] == str(directory / "reports" / "minilm.html")
    assert second.json["data"]["default"]["figures"]["throughput_rps"]["middle"] > 1

    third = run_cli("build", "--file", directory / "tritune.yaml")
    assert third.out == "nothing to do: all 5 steps are unchanged\n", third.err
    frozen = run_cli("build", "--file", directory / "tritune.yaml", "--frozen")
    assert frozen.code == 0, frozen.err
    (directory / "tritune.yaml").write_text("# mine\n" + (directory / "tritune.yaml").read_text())
    refused = run_cli("quickstart", "--directory", directory, "--budget", "2s")
    assert (refused.code, refused.out) == (2, "")
    assert "the project file was edited" in refused.err


@pytest.mark.live
def test_a_place_that_cannot_be_written_is_a_usage_error(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run_cli("quickstart", "--directory", tmp_path / "file")
    assert (refused.code, refused.out) == (2, "")
    assert str(tmp_path / "file") in refused.err


def test_budget_without_a_unit_is_a_usage_error(run_cli: Callable[..., Any]) -> None:
    refused = run_cli("quickstart", "--budget", "5")
    assert refused.code == 2
    assert "--budget: not a duration (got `5`" in refused.err
