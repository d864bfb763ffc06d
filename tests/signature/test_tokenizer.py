"""A tokenizer.json as the library reads it: whole texts, and what is wrong with the file."""

from __future__ import annotations

import pytest

from tooling.errors import UsageError
from tooling.signature.tokenizer import read_tokenizer

TEXTS = ["Yes.", "word " * 600]


def test_texts_are_neither_padded_nor_cut(minilm_dir):
    """The file itself asks for both: every text to 128 tokens."""
    short, long = read_tokenizer(minilm_dir).encode_batch(TEXTS)
    assert short.tokens == ["[CLS]", "yes", ".", "[SEP]"]
    assert len(long.ids) == 602


def test_the_directory_without_one_is_named_with_what_its_reader_may_do(tmp_path):
    with pytest.raises(UsageError) as caught:
        read_tokenizer(tmp_path, "give another one with --tokenizer")
    (problem,) = caught.value.problems
    assert (problem.where, problem.got) == (str(tmp_path), "no tokenizer.json")
    assert problem.hint == "give another one with --tokenizer"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"model": 3}', b"\xff\xfe", b'{"version": "1.0", "model": {}}'])
def test_a_broken_file_is_told_as_such(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UsageError, match="the tokenizer cannot be read") as caught:
        read_tokenizer(tmp_path)
    (problem,) = caught.value.problems
    assert (problem.where, problem.hint) == (str(tmp_path / "tokenizer.json"), "export the model again")
    assert problem.got
