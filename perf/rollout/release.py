"""Moves a candidate beside a served model, into its place and out again; nothing is ever unloaded under traffic. Layer:
above ledger."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.client.split import Split
from perf.rollout.ledger import FOLDER, Entry, Ledger
from tooling.errors import ExternalError, Refused, TrituneError, UsageError
from tooling.pbtxt.editor import edit
from tooling.repository import CONFIG_FILE, config_path, publish, read_text, staging, write_atomic, writing
from tooling.server.running import RunningServer

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

SPLIT_FILE = "split.json"
_SETTLE_S, _POLL_S = 5.0, 0.02
_BEFORE, _AFTER = "before", "after"
_OWN = (CONFIG_FILE, "configs", FOLDER)


class Release:
    """One model of a repository that a running server serves.

    A candidate is tried as a second model, `NAME.next`, in the same repository. In its place it is a version of its
    own: files are renamed, the config names that version, and one load call makes Triton load it before it lets the old
    one go. What was there is kept in `NAME/rollout/VERSION/before`, and goes back the same way.
    """

    def __init__(self, model_dir: Path, server: RunningServer, config_name: str | None = None) -> None:
        self.model_dir, self.server, self.name = model_dir, server, model_dir.name
        self.next_name = f"{self.name}.next"
        self.next_dir = model_dir.with_name(self.next_name)
        self.split_path = model_dir / FOLDER / SPLIT_FILE
        own = config_path(model_dir, config_name)
        self.config_file = own if own.is_file() else config_path(model_dir)

    def served(self) -> list[int]:
        """The versions that are ready. Raises UsageError when the server has none of this model."""
        self.server.model_config(self.name)
        return self.server.versions(self.name)

    def new_version(self, ledger: Ledger) -> int:
        """A number that no version of this model ever had, so that an answer's version is never ambiguous."""
        return max(ledger.state.last_version, *_versions(self.model_dir), *_versions(ledger.folder), 0) + 1

    def stage(self, config: ModelConfig, config_source: Path, files: Path, version: int) -> None:
        """Make `NAME.next` with the newest version of the model directory `files` as `version`, and `config`.

        The text of the file `config_source`, its comments included, is kept where it says the same. Files of the served
        model itself are linked, others copied. Raises UsageError when it cannot be written.
        """
        own_files = files.samefile(self.model_dir)
        newest = max(self.served()) if own_files else max(_versions(files), default=0)
        if not newest:
            raise UsageError("the candidate has no version", where=files, expected="a directory such as 1/")
        copy = _link if own_files else shutil.copy2
        own = type(config)()
        own.CopyFrom(config)
        own.ClearField("name")
        own.version_policy.specific.versions[:] = [version]
        text = edit(read_text(config_source).encode("utf-8", "surrogateescape"), own, config_source)
        with staging(self.next_dir) as staged:
            with writing(self.next_dir):
                for entry in sorted(files.iterdir()):
                    if entry.name in _OWN or entry.name.isdecimal() or entry.name.startswith("."):
                        continue
                    _copy(entry, staged / entry.name, copy)
                _copy(files / str(newest), staged / str(version), copy)
            write_atomic(staged / CONFIG_FILE, text)
            publish(staged, self.next_dir)

    def switch(self, ledger: Ledger, version: int) -> None:
        """Serve the candidate in place of the model. Raises what the load does; the old state is then back."""
        before = self.served()
        moves = list(self._moves(version))
        replaced = [str(to) for _, to in moves if (self.model_dir / to).exists()]
        added = [str(to) for _, to in moves if str(to) not in replaced]
        entry = ledger.note("switching", version=version, served=before, replaced=replaced, added=added)
        try:
            keep = self._keep(version, _BEFORE)
            for source, to in moves:
                if (self.model_dir / to).exists():
                    _move(self.model_dir / to, keep / to)
                _move(source, self.model_dir / to)
            self.server.load(self.name, settle=False)
            self._require_served([version])
            self._require_the_config_that_passed()
        except BaseException:
            self._put_back(entry)
            with suppress(TrituneError):
                self.server.load(self.name)
            ledger.note("switch undone", version=version)
            raise

    def take_back(self, entry: Entry) -> list[int]:
        """Serve again what was served before the switch of this entry; the versions. What it brought is kept."""
        self._put_back(entry)
        self.server.load(self.name, settle=False)
        versions = [int(version) for version in entry["served"]]
        self._require_served(versions)
        return versions

    def split(self, percent: float) -> None:
        """Say in the split file which share of the requests the candidate gets; 0 takes the file away."""
        if percent:
            split = Split(self.name, self.next_name, percent)
            write_atomic(self.split_path, json.dumps(split._asdict()) + "\n")
        else:
            self.split_path.unlink(missing_ok=True)

    def drop_candidate(self) -> None:
        """End the trial: no share, unloaded after the last answer, files gone. A candidate that is gone is no error."""
        self.split(0)
        with suppress(Refused):
            self.server.unload(self.next_name)
        shutil.rmtree(self.next_dir, ignore_errors=True)

    def _moves(self, version: int) -> Iterator[tuple[Path, Path]]:
        """What of the candidate goes where, relative to the model directory; the config last."""
        for entry in sorted(self.next_dir.iterdir()):
            if entry.name == str(version) or not (entry.name.isdecimal() or entry.name == CONFIG_FILE):
                yield entry, Path(entry.name)
        yield self.next_dir / CONFIG_FILE, self.config_file.relative_to(self.model_dir)

    def _put_back(self, entry: Entry) -> None:
        """Undo a switch that was done, in part or as a whole."""
        before, after = (self._keep(entry["version"], part) for part in (_BEFORE, _AFTER))
        for name in (*entry["replaced"], *entry["added"]):
            here, old = self.model_dir / name, before / name
            began = name in entry["added"] or old.exists()
            if began and here.exists():
                _move(here, after / name)
            if old.exists():
                _move(old, here)
        os.utime(self.config_file)  # Triton loads nothing anew when no file is newer

    def _keep(self, version: int, part: str) -> Path:
        return self.model_dir / FOLDER / str(version) / part

    def _require_served(self, versions: list[int]) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while (found := self.server.versions(self.name)) != versions and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if found != versions:
            raise ExternalError(
                "the server took the load call, and serves other versions",
                where=f"{self.server.url}, `{self.name}`",
                got=", ".join(map(str, found)) or "none",
                expected=", ".join(map(str, versions)),
                hint=f"does it serve {self.model_dir}? With --model-config-name, say it here too: --config-name",
            )

    def _require_the_config_that_passed(self) -> None:
        """A server with another `--model-config-name` takes another file for its config than the one that was tried."""
        tried, served = (_comparable(self.server.model_config(name)) for name in (self.next_name, self.name))
        if tried != served:
            other = sorted(key for key in {*tried, *served} if tried.get(key) != served.get(key))
            raise ExternalError(
                "the server takes another config for the new version than the one that passed the gates",
                where=f"{self.server.url}, `{self.name}`",
                got=f"other {', '.join(other)}",
                hint="with --model-config-name (`tritune serve --config-name`), say it here too: --config-name",
            )


def _comparable(config: dict[str, Any]) -> dict[str, Any]:
    """A config in force without what follows from the model's name, or says which version serves."""
    groups = [{**group, "name": ""} for group in config.get("instance_group", [])]
    rest = {key: value for key, value in config.items() if key not in ("name", "version_policy")}
    return {**rest, "instance_group": groups}


def _versions(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal() and entry.is_dir()]


def _copy(source: Path, target: Path, copy: object) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=copy, ignore=shutil.ignore_patterns("__pycache__"))  # type: ignore[arg-type]
    else:
        copy(source, target)  # type: ignore[operator]


def _link(source: str | Path, target: str | Path) -> None:
    """A second name for a file; a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _move(source: Path, target: Path) -> None:
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
