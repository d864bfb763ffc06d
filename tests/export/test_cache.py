"""The same export is not made twice, wherever it goes; a kept one that is damaged or of other facts is not taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import export.cache
from export.options import ExportOptions
from export.run import export_model
from tooling.console import Console

SILENT = Console(quiet=True)
FAST = ExportOptions(exporter="torchscript")


def files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, exporting fails."""

    def forbid() -> None:
        def fail(*_: object) -> Any:
            raise AssertionError("exported a second time")

        monkeypatch.setattr("export.build.run_exporter", fail)

    return forbid


def test_another_repository_and_name_are_no_second_export(
    source: Path, tmp_path: Path, forbidden: Callable[[], None]
) -> None:
    first = export_model(source, tmp_path / "a", "one", FAST, console=SILENT)
    forbidden()
    second = export_model(source, tmp_path / "b", "two", FAST, console=SILENT)
    assert (first.reused, second.reused) == (False, True)
    assert second.manifest == first.manifest
    assert files(second.model_dir) == files(first.model_dir)
    moved = source.rename(tmp_path / "elsewhere")
    third = export_model(moved, tmp_path / "b", "three", FAST, console=SILENT)
    assert third.reused
    assert third.manifest.source.id == str(moved)


@pytest.mark.parametrize("change", ["options", "source", "versions", "force"])
def test_other_facts_are_another_export(
    change: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_model(source, tmp_path / "a", "m", FAST, console=SILENT)
    options = FAST
    if change == "options":
        options = ExportOptions(exporter="torchscript", opset=17)
    elif change == "source":
        (source / "tokenizer_config.json").write_text("{}")
    elif change == "versions":
        monkeypatch.setattr("export.run.library_versions", lambda: {"torch": "0"})
    assert not export_model(source, tmp_path / "b", "m", options, force=change == "force", console=SILENT).reused


@pytest.mark.parametrize("damage", ["model", "manifest", "unreadable"])
def test_damaged_copy_is_made_anew(damage: str, source: Path, tmp_path: Path, own_cache: Path) -> None:
    first = export_model(source, tmp_path / "a", "m", FAST, console=SILENT)
    (kept,) = own_cache.iterdir()
    victim = kept / ("export.json" if damage == "manifest" else "1/model.onnx")
    victim.unlink()
    if damage == "unreadable":
        victim.mkdir()
    else:
        victim.write_bytes(b"damaged")
    again = export_model(source, tmp_path / "b", "m", FAST, console=SILENT)
    assert not again.reused
    assert files(again.model_dir).keys() == files(first.model_dir).keys()
    assert export_model(source, tmp_path / "c", "m", FAST, console=SILENT).reused


def test_what_is_changed_in_a_repository_does_not_reach_the_cache(source: Path, tmp_path: Path) -> None:
    first = export_model(source, tmp_path / "a", "m", FAST, console=SILENT)
    whole = first.model_file.read_bytes()
    with first.model_file.open("r+b") as file:
        file.write(b"changed in place")
    assert export_model(source, tmp_path / "b", "m", FAST, console=SILENT).model_file.read_bytes() == whole


def test_cache_that_cannot_be_written_is_no_fault(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(export.cache.CACHE_VARIABLE, str(tmp_path / "file"))
    assert not export_model(source, tmp_path / "a", "m", FAST, console=SILENT).reused


def test_longest_unused_makes_room(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.cache, "_LIMIT_BYTES", 25)
    export_dir = tmp_path / "export"
    export_dir.mkdir()
    (export_dir / "file").write_bytes(b"0123456789")
    for age, key in enumerate(("old", "used", "new")):
        assert export.cache.store(key, export_dir)
        os.utime(own_cache / key, (1_000 + age, 1_000 + age))
        if key == "used":
            os.utime(own_cache / "old", (2_000, 2_000))
    assert sorted(entry.name for entry in own_cache.iterdir()) == ["new", "old"]
    (export_dir / "file").write_bytes(b"0" * 26)
    assert not export.cache.store("large", export_dir)
    assert sorted(entry.name for entry in own_cache.iterdir()) == ["new", "old"]
