"""`tritune export --pipeline text`: options, output, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def export(run_cli: Run, bert_dir: Path, tmp_path: Path) -> Run:
    def run(*options: object) -> Any:
        return run_cli("export", bert_dir, "-r", tmp_path / "models", "--name", "m", *options)

    return run


def test_one_command_writes_all_and_says_what(export: Run, tmp_path: Path) -> None:
    done = export("--pipeline", "text", "--buckets", "16,32,128")
    assert done.code == 0
    assert f"{tmp_path}/models/m  takes texts (m_tokenizer, m_model)" in done.out
    assert "padded to 16, 32, 64 tokens, cut at 64" in done.out
    assert "bucket 128 is cut to the 64 tokens" in done.err
    again = export("--pipeline", "text", "--padding", "models", "--buckets", "16", "--json", "-q")
    data = again.json["data"]["pipeline"]
    assert (again.code, data["padding"], data["buckets"]) == (0, "models", [16, 64])
    assert [Path(path).name for path in data["models"]] == ["m", "m_model_16", "m_model_64"]
    assert "is no longer used" in again.err and "m_tokenizer" in again.err


def test_buckets_come_from_real_texts(export: Run, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(["abc"] * 30 + ["ab" * 10] * 30 + ["", "abcde" * 100]))  # a token a letter
    done = export("--pipeline", "text", "--texts", texts, "--json", "-q")
    assert done.json["data"]["pipeline"]["buckets"] == [3, 20, 64]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--buckets", "16"], "--buckets: belongs to a text pipeline"),
        (["--pipeline", "text", "--buckets", "16", "--padding", "merged"], "there are no lengths to pad to"),
        (["--pipeline", "text", "--buckets", "0"], "--buckets: not a usable number"),
        (["--pipeline", "text", "--buckets", "16", "--texts", "x"], "exclude each other"),
        (["--pipeline", "text", "--texts", "missing.txt"], "missing.txt: cannot be read"),
        (["--pipeline", "text", "--padding", "auto"], "there is no service curve to decide with"),
        (["--pipeline", "text", "--max-tokens", "65"], "texts would be longer than the model takes"),
        (["--pipeline", "text", "--name", "a b"], "not a usable model name"),
        (["--pipeline", "text", "--concurrency", "4"], "clients matter to `--padding auto` only"),
        (["--pipeline", "text", "--texts", "x", "--padding", "none"], "--texts: there are no lengths to find (got"),
        (["--pipeline", "text", "--curve", "x"], "--curve: there is nothing to decide with it (got --padding none;"),
        (["--pipeline", "text", "--curve", "x", "--buckets", "8"], "--curve: there is nothing to decide with it (g"),
        (["--padding", "merged", "--max-tokens", "9"], "--padding, --max-tokens: belongs to a text pipeline"),
    ],
)
def test_wrong_options(export: Run, options: list[str], message: str) -> None:
    done = export(*options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_name_that_is_taken_is_told_before_anything_is_exported(export: Run, tmp_path: Path) -> None:
    assert export("--name", "m_model").code == 0
    done = export("--pipeline", "text", "--name", "m_model")
    assert done.code == 2 and "another model has the name" in done.err
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["m_model"]


@pytest.mark.parametrize(("content", "message"), [(b"\n \n", "no texts"), (b"good\ncaf\xe9\n", ":2: not UTF-8")])
def test_files_that_hold_no_texts(export: Run, tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes(content)
    done = export("--pipeline", "text", "--texts", file)
    assert done.code == 2 and message in done.err


def test_a_plain_export_gets_clients_too(export: Run, tmp_path: Path) -> None:
    assert export().code == 0
    clients = tmp_path / "models" / "m" / "clients"
    assert sorted(path.name for path in clients.iterdir()) == [
        "client_async.py",
        "client_curl.sh",
        "client_grpc.py",
        "client_http.py",
    ]
    assert json.loads((clients / "client_curl.sh").read_text().partition(" -d '")[2].rpartition("'")[0])["inputs"]
