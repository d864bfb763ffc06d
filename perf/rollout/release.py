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

from perf.rollout.ledger import Entry, Ledger, beside
from tooling.errors import BUSY, ExternalError, Refused, TrituneError, UsageError
from tooling.pbtxt.editor import edit
from tooling.repository import CONFIG_FILE, config_path, encode, read_text, write_atomic, writing
from tooling.server.running import RunningServer
from tooling.staging import link, publish, staging

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

FOLDER = "rollout"
"""In the model directory, what went out of it: Triton passes over directories that are no numbers."""
SPLIT_FILE = "split.json"
ANSWER_S = 60.0
"""A server on full cores may take long to say what it serves; no switch is undone for that."""
_SETTLE_S, _LONGEST_S, _POLL_S = 5.0, 300.0, 0.02
_BEFORE, _AFTER = "before", "after"
_OWN = (CONFIG_FILE, "configs", FOLDER)
_UNREAD = ("export.json", "clients", "tokenizer")
"""What an export leaves beside a model that Triton itself does not read."""
_READS_ITS_FILES = ("onnxruntime", "tensorrt", "openvino", "pytorch")
"""Backends that run no code of the model directory: what else stands in there is nothing to them."""


class Release:
    """One model of a repository that a running server serves.

    A candidate is tried as a second model, `NAME.next`, in the same repository. In its place it is a version of its
    own: files are renamed, the config names that version, and one load call makes Triton load it before it lets the old
    one go. What was there is kept in `NAME/rollout/VERSION/before`, and goes back the same way.

    With `keep` the config names the old versions too where it can: requests go to the highest, and the way back is a
    change of the config's version policy, for which Triton loads no version. A model has one config, so this can only
    be where old and new have the same but for the number of instances: those Triton adds and takes away while a version
    serves, so that the old versions have as many as the new one until they serve again.
    """

    def __init__(self, model_dir: Path, server: RunningServer, config_name: str | None = None) -> None:
        self.model_dir, self.server, self.name = model_dir, server, model_dir.name
        self.next_name = f"{self.name}.next"
        self.next_dir = model_dir.with_name(self.next_name)
        self.split_path = beside(model_dir, SPLIT_FILE)
        own = config_path(model_dir, config_name)
        self.config_file = own if own.is_file() else config_path(model_dir)

    def served(self) -> list[int]:
        """The versions that are ready. Raises UsageError when the server has none of this model."""
        self.server.model_config(self.name)
        return self.server.versions(self.name)

    def new_version(self, ledger: Ledger) -> int:
        """A number that no version of this model ever had, so that an answer's version is never ambiguous."""
        return max(ledger.state.last_version, *_versions(self.model_dir), *_versions(self.model_dir / FOLDER), 0) + 1

    def stage(self, config: ModelConfig, config_source: Path, files: Path, version: int, *, keep: bool) -> None:
        """Make `NAME.next` with the newest version of the model directory `files` as `version`, and `config`.

        The text of the file `config_source`, its comments included, is kept where it says the same. Files of the served
        model itself are linked, but copied where its versions may stay loaded with `keep`: a link is a change of the
        file to Triton, which would load them anew. Raises UsageError when it cannot be written.
        """
        from tooling.config.render import parse

        own_files = files.samefile(self.model_dir)
        newest = max(self.served()) if own_files else max(_versions(files), default=0)
        if not newest:
            raise UsageError("the candidate has no version", where=files, expected="a directory such as 1/")
        current = parse(read_text(self.config_file), str(self.config_file))
        stays = keep and _countless(config) == _countless(current)
        copy = link if own_files and not stays else shutil.copy2
        own = type(config)()
        own.CopyFrom(config)
        own.ClearField("name")
        own.version_policy.specific.versions[:] = [version]
        text = edit(encode(read_text(config_source)), own, config_source)
        with staging(self.next_dir) as staged:
            with writing(self.next_dir):
                for entry in sorted(files.iterdir()):
                    if entry.name in _OWN or entry.name.isdecimal() or entry.name.startswith("."):
                        continue
                    _copy(entry, staged / entry.name, copy)
                _copy(files / str(newest), staged / str(version), copy)
            write_atomic(staged / CONFIG_FILE, text)
            publish(staged, self.next_dir)

    def switch(self, ledger: Ledger, version: int, *, keep: bool = False) -> list[int]:
        """Serve the candidate in place of the model; the versions that stay loaded besides, with `keep`. Raises what
        the load does; the old state is then back."""
        before = self.served()
        moves = list(self._moves(version))
        kept = before if keep and self._may_stay(moves) else []
        replaced = [str(to) for _, to in moves if (self.model_dir / to).exists()]
        added = [str(to) for _, to in moves if str(to) not in replaced]
        facts: dict[str, Any] = {"served": before, "replaced": replaced, "added": added}
        if kept:
            facts |= {"kept": kept, "config": read_text(self.config_file)}
        entry = ledger.note("switching", version=version, **facts)
        try:
            if kept:
                _move(self.next_dir / str(version), self.model_dir / str(version))
                self._name_versions([*kept, version], read_text(self.next_dir / CONFIG_FILE))
            else:
                self._move_in(moves, version)
            self.server.load(self.name, settle=False)
            self._require_served([*kept, version])
            self._require_the_config_that_passed()
        except BaseException:
            self._put_back(entry)
            with suppress(TrituneError):
                self.server.load(self.name)
            ledger.note("switch undone", version=version)
            raise
        return kept

    def let_go(self, ledger: Ledger, entry: Entry) -> None:
        """Unload the versions that a promotion kept, after their last answers, and bring the rest of its files in."""
        version = int(entry["version"])
        self._name_versions([version])
        self.server.load(self.name, settle=False)
        self._require_served([version])
        write_atomic(self._keep(version, _BEFORE) / self._config_name, entry["config"])
        if self.next_dir.is_dir():
            self._move_in([move for move in self._moves(version) if move[1] != self._config_name], version)
        ledger.note("let go", version=version, unloaded=entry["kept"])
        self.drop_candidate()

    def take_back(self, entry: Entry) -> list[int]:
        """Serve again what was served before the switch of this entry; the versions. What it brought is kept."""
        versions = [int(version) for version in entry["served"]]
        kept = entry.get("kept") and self.config_file.is_file()
        if kept and set(versions) <= set(self.server.versions(self.name)):
            promoted = read_text(self.config_file)
            self._name_versions(versions, entry["config"])  # for which no version is loaded, if no file was touched
            try:
                self.server.load(self.name, settle=False)
                self._require_served(versions)
            finally:
                write_atomic(self.config_file, encode(promoted))  # it is what goes out
            self._put_back(entry)
            return versions
        self._put_back(entry)
        self.server.load(self.name, settle=False)
        self._require_served(versions)
        return versions

    def split(self, percent: float) -> None:
        """Say in the split file which share of the requests the candidate gets; 0 takes the file away."""
        if percent:
            from perf.client.split import Split

            split = Split(self.name, self.next_name, percent)
            write_atomic(self.split_path, json.dumps(split._asdict()) + "\n")
        else:
            self.split_path.unlink(missing_ok=True)

    def unload_candidate(self) -> None:
        """End the trial: no share, unloaded after the last answer. A candidate that is gone is no error."""
        self.split(0)
        with suppress(Refused):
            self.server.unload(self.next_name)

    def drop_candidate(self) -> None:
        """End the trial, and remove the candidate's files."""
        self.unload_candidate()
        shutil.rmtree(self.next_dir, ignore_errors=True)

    def _moves(self, version: int) -> Iterator[tuple[Path, Path]]:
        """What of the candidate goes where, relative to the model directory; the config last."""
        for entry in sorted(self.next_dir.iterdir()):
            if entry.name == str(version) or not (entry.name.isdecimal() or entry.name == CONFIG_FILE):
                yield entry, Path(entry.name)
        yield self.next_dir / CONFIG_FILE, self._config_name

    def _may_stay(self, moves: list[tuple[Path, Path]]) -> bool:
        """Whether the versions that serve may stay loaded beside the candidate: under its config, which must be theirs,
        but for how many instances, and with its other files, which must be theirs or nothing to Triton."""
        tried, served = (_comparable(self.server.model_config(name)) for name in (self.next_name, self.name))
        others = [to for _, to in moves if to != self._config_name and not to.name.isdecimal()]
        same = [to for to in others if _same(self.next_dir / to, self.model_dir / to)]
        unread = _UNREAD if served.get("backend") in _READS_ITS_FILES else ()
        return _uncounted(tried) == _uncounted(served) and all(to in same or to.name in unread for to in others)

    def _name_versions(self, versions: list[int], source: str | None = None) -> None:
        """Make the config name these versions, and nothing else in it differ from `source`, else from what it says."""
        from tooling.config.proto import pb
        from tooling.pbtxt.message import load

        text = encode(read_text(self.config_file) if source is None else source)
        config = load(text, pb().ModelConfig(), self.config_file)
        config.version_policy.specific.versions[:] = versions
        write_atomic(self.config_file, edit(text, config, self.config_file))

    def _move_in(self, moves: list[tuple[Path, Path]], version: int) -> None:
        keep = self._keep(version, _BEFORE)
        for source, to in moves:
            if (self.model_dir / to).exists():
                _move(self.model_dir / to, keep / to)
            _move(source, self.model_dir / to)

    @property
    def _config_name(self) -> Path:
        return self.config_file.relative_to(self.model_dir)

    def _put_back(self, entry: Entry) -> None:
        """Undo a switch that was done, in part or as a whole."""
        before, after = (self._keep(entry["version"], part) for part in (_BEFORE, _AFTER))
        if "config" in entry and not (before / self._config_name).exists():
            write_atomic(before / self._config_name, entry["config"])
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
        """Raise ExternalError unless these versions are ready. A server on busy cores takes its time after the answer
        to the load call: as long as a version is under way it is waited for."""
        begun = time.monotonic()
        while True:
            (found, under_way), waited_s = self.server.readiness(self.name), time.monotonic() - begun
            if found == versions or waited_s > _LONGEST_S or (waited_s > _SETTLE_S and not under_way):
                break
            time.sleep(_POLL_S)
        limit_s = _LONGEST_S if under_way else _SETTLE_S
        hint = f"does it serve {self.model_dir}? With --model-config-name, say it here too: --config-name"
        if found != versions:
            raise ExternalError(
                f"the server took the load call, and serves other versions after {limit_s:g} s",
                where=f"{self.server.url}, `{self.name}`",
                got=f"{', '.join(map(str, found)) or 'none'}{', and one is under way' * under_way}",
                expected=", ".join(map(str, versions)),
                hint=BUSY if under_way else hint,
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


def _uncounted(config: dict[str, Any]) -> dict[str, Any]:
    """The same without how many instances there are of each group."""
    return {**config, "instance_group": [{**group, "count": 0} for group in config["instance_group"]]}


def _countless(config: ModelConfig) -> ModelConfig:
    """The same for configs in files."""
    found = type(config)()
    found.CopyFrom(config)
    found.ClearField("name")
    found.ClearField("version_policy")
    for group in found.instance_group:
        group.ClearField("name")
        group.ClearField("count")
    return found


def _same(one: Path, other: Path) -> bool:
    """Whether two files, or all files of two directories, have the same content."""
    if one.is_dir() and other.is_dir():
        names = {entry.name for entry in (*one.iterdir(), *other.iterdir())}
        return all(_same(one / name, other / name) for name in names)
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()


def _versions(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal() and entry.is_dir()]


def _copy(source: Path, target: Path, copy: object) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=copy, ignore=shutil.ignore_patterns("__pycache__"))  # type: ignore[arg-type]
    else:
        copy(source, target)  # type: ignore[operator]


def _move(source: Path, target: Path) -> None:
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
