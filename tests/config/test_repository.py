"""Repository paths and writes: safe names, whole files or nothing, one clear error where the disk refuses."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tooling import repository
from tooling.config.proto import pb
from tooling.config.render import render
from tooling.errors import UsageError
from tooling.repository import (
    check_model_name,
    config_path,
    guard_overwrite,
    hardware_name,
    locate_model,
    read_config,
    require_writable,
    write_all,
    write_atomic,
)
from tooling.staging import publish, staging

CONFIG = render(pb().ModelConfig(name="m", max_batch_size=8))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Two models, one of them in versions 2 and 10."""
    for path in ("one/1", "two/2", "two/10", "two/notes", "empty"):
        (tmp_path / "repo" / path).mkdir(parents=True)
    for path in ("one/1", "two/2", "two/10", "two/notes"):
        (tmp_path / "repo" / path / "model.onnx").touch()
    return tmp_path / "repo"


def test_names():
    check_model_name("all-MiniLM_L6.v2")
    with pytest.raises(UsageError, match="got `mini lm`") as caught:
        check_model_name("mini lm")
    assert caught.value.problems[0].hint == "for example `mini-lm`"


def test_config_paths(tmp_path):
    assert config_path(tmp_path) == tmp_path / "config.pbtxt"
    assert config_path(tmp_path, "cpu-2") == tmp_path / "configs" / "cpu-2.pbtxt"
    with pytest.raises(UsageError, match="not a usable hardware name"):
        config_path(tmp_path, "../x")


@pytest.mark.parametrize(
    ("given", "file", "name"),
    [
        ("one", "one/1/model.onnx", "one"),
        ("one/1", "one/1/model.onnx", "one"),
        ("one/1/model.onnx", "one/1/model.onnx", "one"),
        ("two", "two/10/model.onnx", "two"),
        ("two/2", "two/2/model.onnx", "two"),
    ],
)
def test_a_model_is_found_by_any_of_its_paths(given, file, name, repo):
    found = locate_model(repo / given)
    assert (found.file, found.model_dir, found.name) == (repo / file, repo / name, name)


def test_a_relative_path_has_a_name_too(repo, monkeypatch):
    monkeypatch.chdir(repo / "one")
    assert locate_model(Path()).name == "one"


def test_a_model_with_external_data_may_be_a_directory(tmp_path):
    inner = tmp_path / "big" / "1" / "model.onnx" / "model.onnx"
    inner.parent.mkdir(parents=True)
    inner.touch()
    for given in (tmp_path / "big", inner.parent, inner):
        found = locate_model(given)
        assert (found.file, found.model_dir, found.default_filename) == (inner, tmp_path / "big", "")


def test_a_loose_file_belongs_to_no_model_directory(tmp_path):
    (tmp_path / "bert.onnx").touch()
    found = locate_model(tmp_path / "bert.onnx")
    assert (found.model_dir, found.name) == (None, "bert")


@pytest.mark.parametrize(
    ("given", "hint"), [("", "name one of its models: one, two"), ("empty", "tritune export"), ("none", None)]
)
def test_a_path_without_a_model_is_explained(given, hint, repo):
    with pytest.raises(UsageError) as caught:
        locate_model(repo / given)
    found = caught.value.problems[0].hint
    assert (found is None) if hint is None else (hint in found)


def test_the_hardware_s_own_config_comes_first(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(tmp_path)
    write_atomic(config_path(tmp_path), "max_batch_size: 1")
    write_atomic(config_path(tmp_path, "cpu-2"), "max_batch_size: 2")
    assert [read_config(tmp_path, h).max_batch_size for h in (None, "cpu-2", "cpu-4")] == [1, 2, 1]


def test_a_config_that_is_no_text_is_refused(tmp_path):
    config_path(tmp_path).write_bytes(b'name: "\xff"')
    with pytest.raises(UsageError, match="1:7: String is not valid UTF-8"):
        read_config(tmp_path)


def test_edits_and_measured_settings_are_not_overwritten(tmp_path):
    path = tmp_path / "config.pbtxt"
    other = CONFIG.replace("8", "9")
    guard_overwrite(path, other)
    path.write_text(CONFIG)
    guard_overwrite(path, other)
    path.write_text(CONFIG + "# mine\n")
    with pytest.raises(UsageError, match="not as tritune wrote it"):
        guard_overwrite(path, other)
    guard_overwrite(path, CONFIG + "# mine\n")
    path.write_text(render(pb().ModelConfig(name="m"), evidence=["p99 24ms"]))
    with pytest.raises(UsageError, match="measured settings"):
        guard_overwrite(path, other)


def test_files_are_replaced_whole_with_the_usual_mode(tmp_path):
    path = tmp_path / "deep" / "config.pbtxt"
    write_atomic(path, "old")
    write_atomic(path, "é")
    assert path.read_bytes() == "é".encode()
    assert list(path.parent.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "config.pbtxt"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left") as caught:
        write_atomic(path, "new")
    assert caught.value.problems[0].where == str(path)
    with pytest.raises(UsageError, match="No space left"):
        write_atomic(tmp_path / "new" / "deep" / "config.pbtxt", "new")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "config.pbtxt", tmp_path / ("n" * 300)):
        with pytest.raises(UsageError, match="cannot be written"):
            write_atomic(path, "text")
    with pytest.raises(UsageError, match="cannot be written"), staging(tmp_path / "file" / "model"):
        pass


def test_a_directory_is_published_whole(tmp_path):
    target = tmp_path / "repo" / "model"
    for round_ in ("first", "second"):
        with staging(target) as staged:
            (staged / round_).touch()
            publish(staged, target)
        assert [p.name for p in target.iterdir()] == [round_]
        assert list(target.parent.iterdir()) == [target]


def test_a_question_whether_a_file_could_be_written_leaves_nothing(tmp_path):
    require_writable(tmp_path / "deep" / "report.html")
    assert not list(tmp_path.iterdir())


def test_a_failed_fill_leaves_nothing(tmp_path):
    target = tmp_path / "new" / "repository" / "model"
    with pytest.raises(RuntimeError), staging(target) as staged:
        (staged / "half").touch()
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_failed_publish_puts_the_old_directory_back(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        publish(tmp_path / "never made", target)
    assert [p.name for p in target.iterdir()] == ["old"] and list(tmp_path.iterdir()) == [target]


def test_hardware_is_named_by_what_can_be_used(monkeypatch):
    monkeypatch.setattr(repository, "_gpu_names", list)
    assert hardware_name() == f"cpu-{repository.usable_cores()}"
    assert 1 <= repository.usable_cores() <= os.cpu_count()
    monkeypatch.setattr(repository, "_gpu_names", lambda: ["NVIDIA A100-SXM4-80GB"] * 2)
    assert hardware_name() == "gpu-a100-sxm4-80gb-x2"


def test_gpus_are_listed_by_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert repository._gpu_names() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200'\n")
    tool.chmod(0o755)
    assert hardware_name() == "gpu-h200-x1"
    tool.write_text("#!/bin/sh\necho 'no devices were found'\nexit 6\n")
    assert repository._gpu_names() == []


def test_a_path_that_ends_in_dots_has_a_name(tmp_path, monkeypatch):
    """From inside of a version `..` is its model; behind a link it is what the system says."""
    (tmp_path / "repo" / "m" / "1").mkdir(parents=True)
    (tmp_path / "repo" / "m" / "1" / "model.onnx").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(tmp_path / "repo" / "m" / "1")
    (tmp_path / "repo" / "alias").symlink_to(tmp_path / "repo" / "m")
    monkeypatch.chdir(tmp_path / "repo" / "m" / "1")
    for text in ("..", "../1/..", "../../m", "../1/model.onnx", str(tmp_path / "other" / "link" / "..")):
        assert locate_model(Path(text)).name == "m"
    assert locate_model(Path("../../alias")).name == "alias"


def test_who_may_name_an_ensemble_is_told_of_those_too(repo: Path, run_cli) -> None:
    (repo / "joined").mkdir()
    (repo / "joined" / "config.pbtxt").write_text('name: "joined" platform: "ensemble"')
    for command in ("tune", "gen-config"):
        assert "hint: this is a repository: name one of its models: joined, one, two\n" in run_cli(command, repo).err
    assert "name one of its models: one, two\n" in run_cli("profile", repo).err


def test_several_files_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all({tmp_path / "a" / "x": "größe\udcff", tmp_path / "b": b"2"})
    assert ((tmp_path / "a" / "x").read_bytes(), (tmp_path / "b").read_bytes()) == ("größe".encode() + b"\xff", b"2")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        write_all({tmp_path / "b": b"3", tmp_path / "c" / "d": b"4", tmp_path / "file" / "e": b"5"})
    assert (tmp_path / "b").read_bytes() == b"2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "file"]


def test_a_disk_without_room_is_told_before_the_work(tmp_path: Path) -> None:
    """An empty file may be made on a full disk too."""
    code = (
        "import resource, pathlib, sys\n"
        "from tooling.repository import require_writable; from tooling.staging import staging\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "for use in (require_writable, lambda path: staging(path).__enter__()):\n"
        "    try: use(pathlib.Path(sys.argv[1]) / 'x')\n"
        "    except Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.count("cannot be written (got File too large)") == 2, done
    assert list(tmp_path.iterdir()) == []
