"""`tritune tune` of a vLLM model on the real engine: a starved scheduler is found and mended."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perf.slo import Slo

pytestmark = pytest.mark.llm


def test_a_single_place_is_too_few(
    add_llm: Callable[..., Path], run_cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speculation is one of the two candidates, and what became of it is told. The capacity is the most streams that
    were measured and kept the limit, and the record says so too."""
    monkeypatch.chdir(tmp_path)
    slo = Slo.parse("itl_p95<500ms,tokens_per_s")
    model = add_llm(tmp_path / "models", "llama", max_num_seqs=1)
    asked = ("--concurrency", 6, "--lengths", "8,30", "--output-lengths", "8,40", "--owner", "ann")
    asked += ("--speculate", "ngram:4", "--slo", ",".join(slo.words), "--apply", "--json")
    result = run_cli("tune", model, *asked)
    assert result.code == 0, result.err
    found = result.json["data"]
    assert found["met"]
    assert found["changed"], found
    assert found["chosen"]["max_num_seqs"] >= 4
    assert found["points"] <= 12
    written = json.loads((model / "1" / "model.json").read_text())
    assert written["max_num_seqs"] == found["chosen"]["max_num_seqs"]
    assert written["max_model_len"] == 512
    tried = [one.get("speculative_config", {}).get("method") for one in found["tried"]]
    assert tried == [None, "ngram"]
    assert found["speculation"].startswith("4 tokens speculated by n-grams: ")
    assert written.get("speculative_config") == found["chosen"].get("speculative_config")
    drafts = found["drafts"]
    assert 0 <= drafts["accepted"] <= drafts["drafted"]
    capacity = found["capacity"]
    assert capacity["how"] == "measured"
    assert 6 in [level["streams"] for level in capacity["levels"]], "what the rounds measured counts"
    kept = [level["streams"] for level in capacity["levels"] if slo.met(level)]
    assert capacity["streams"] == max(kept)
    assert all(level["streams"] not in kept for level in capacity["levels"] if level["streams"] == capacity["missed"])
    record = Path(found["decision"]).read_text()
    assert f"capacity: {'at least ' if capacity['missed'] is None else ''}{capacity['streams']} concurrent" in record
    assert "owner: ann" in record
