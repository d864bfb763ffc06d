"""A finished directory takes its place in one step: whoever reads finds an old one or a new one, and no run is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import pytest

from tooling import repository
from tooling import staging as module
from tooling.errors import UsageError
from tooling.repository import alone_in, write_atomic
from tooling.staging import publish, staging


def put(target: Path, text: str) -> None:
    with staging(target) as staged:
        for name in "ab":
            (staged / name).write_text(text)
        publish(staged, target)


@pytest.fixture(params=["at once", "in two steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the directory changes place: as Linux can, and as other systems and file systems can."""
    if request.param == "in two steps":
        monkeypatch.setattr(module, "_exchanged", lambda one, other: False)
    return str(request.param)


def test_what_stood_there_is_replaced(way: str, tmp_path: Path) -> None:
    target = tmp_path / "some" / "m"
    put(target, "1")
    (target / "c").write_text("1")
    put(target, "2")
    assert {path.name: path.read_text() for path in target.iterdir()} == {"a": "2", "b": "2"}
    assert [path.name for path in target.parent.iterdir()] == ["m"]


def test_a_link_is_replaced_and_what_it_points_to_stays(way: str, tmp_path: Path) -> None:
    put(tmp_path / "real", "1")
    (tmp_path / "m").symlink_to(tmp_path / "real")
    put(tmp_path / "m", "2")
    assert not (tmp_path / "m").is_symlink()
    assert ((tmp_path / "m" / "a").read_text(), (tmp_path / "real" / "a").read_text()) == ("2", "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "real"]


def test_what_cannot_be_published_leaves_all_as_it_was(tmp_path: Path) -> None:
    put(tmp_path / "m", "1")
    with pytest.raises(UsageError, match="cannot be written"), staging(tmp_path / "m") as staged:
        staged.rmdir()
        publish(staged, tmp_path / "m")
    assert (tmp_path / "m" / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def many(work: Callable[[int], object], times: int = 200) -> None:
    for number in range(times):
        work(number)


def test_two_publish_while_another_reads(tmp_path: Path) -> None:
    """Without a moment in which nothing stands there."""
    target, done = tmp_path / "m", Event()
    put(target, "0")

    def read() -> int:
        seen = 0
        while not done.is_set():
            assert (target / "a").read_text() is not None
            seen += 1
        return seen

    with ThreadPoolExecutor(3) as pool:
        reader = pool.submit(read)
        others = [pool.submit(many, lambda number, who=who: put(target, f"{who}{number}")) for who in "xy"]
        try:
            for other in others:
                other.result()
        finally:
            done.set()
        assert reader.result()
    assert (target / "a").read_text() == (target / "b").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_file_is_written_where_its_directory_gave_way_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "m", "1")
    real = repository._write_synced

    def swapped(path: Path, data: bytes | str) -> None:
        real(path, data)
        monkeypatch.setattr(repository, "_write_synced", real)
        put(tmp_path / "m", "2")

    monkeypatch.setattr(repository, "_write_synced", swapped)
    write_atomic(tmp_path / "m" / "c", "3")
    assert {path.name: path.read_text() for path in (tmp_path / "m").iterdir()} == {"a": "2", "b": "2", "c": "3"}


def test_who_waited_for_a_directory_has_the_one_that_took_its_place(tmp_path: Path) -> None:
    target, inside, leave = tmp_path / "m", Event(), Event()
    put(target, "1")

    def hold() -> None:
        with alone_in(target):
            inside.set()
            assert leave.wait(60)

    with ThreadPoolExecutor(2) as pool:
        with alone_in(target):
            second = pool.submit(hold)
            wait([second], timeout=1)
            assert not inside.is_set()
            put(target, "2")
        assert inside.wait(60)
        inside.clear()
        third = pool.submit(hold)
        assert not inside.wait(1), "two at once"
        leave.set()
        for held in (second, third):
            held.result(timeout=60)
