"""The example of a language model, as `tritune build` makes it, on the real vLLM."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.llm
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llm"


def test_the_example_is_built_and_answers(
    tmp_path: Path, llama_dir: Path, run_cli: Callable[..., Any], start: Callable[..., Any], monkeypatch: Any
) -> None:
    root = Path(shutil.copytree(EXAMPLE, tmp_path / "llm"))
    shutil.copytree(llama_dir, root / "model")
    monkeypatch.chdir(root)
    built = run_cli("build")
    assert built.code == 0, built.err
    assert run_cli("build").out.startswith("nothing to do")
    with start(root / "model_repository") as server:
        server.load("chat")
        body = json.dumps({"text_input": "Once", "parameters": {"max_tokens": 8, "ignore_eos": True}}).encode()
        request = urllib.request.Request(f"http://{server.http_url}/v2/models/chat/generate", body)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.loads(answer.read())["text_output"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"{error}: {error.read().decode()}")
