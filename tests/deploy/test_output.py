"""Where a deployment's files go: over the same ones only, and from one command at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tooling.deploy.output import write_files
from tooling.errors import UsageError
from tooling.repository import alone_in


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    assert write_files(out, {"a": "1", "more/b": "1"}, force=False) == [out / "a", out / "more/b"]
    assert write_files(out, {"a": "1", "more/c": "1"}, force=False) == [out / "more/c"]
    with pytest.raises(UsageError, match=r"out/a: is there with another content"):
        write_files(out, {"a": "2", "d": "2"}, force=False)
    assert not (out / "d").exists()
    assert write_files(out, {"a": "2", "d": "2"}, force=True) == [out / "a", out / "d"]


def test_of_two_commands_at_once_the_second_finds_what_the_first_has_written(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with alone_in(tmp_path):
            second = pool.submit(write_files, tmp_path, {"a": "2", "b": "2"}, force=False)
            wait([second], timeout=1)
            (tmp_path / "a").write_text("1")
        with pytest.raises(UsageError, match="another content"):
            second.result(timeout=60)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "1"}


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written \(got .*/out, which is no directory"):
        write_files(tmp_path / "out", {"a": "1"}, force=False)
