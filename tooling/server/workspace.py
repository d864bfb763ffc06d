"""The private directory a server runs from: links to the repository and the backends under safe paths. Layer:
server."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.config.proto import backend_of
from tooling.errors import Refused, UsageError, suggest
from tooling.repository import CONFIG_FILE, check_model_name, read_config

if TYPE_CHECKING:
    from tooling.config.proto import ModelConfig

_SAFE_PATH = re.compile(r"[A-Za-z0-9_./-]+")
_CONFIG_ENTRIES = (CONFIG_FILE, "configs")
_MODEL_FILES = ("model.onnx", "model.plan", "model.py", "model.pt", "model.pt2", "model.xml")


class Workspace:
    """A directory of mode 0700 with an ASCII path. Triton's Python backend hangs for ever on a blank or a quote in a
    model's path, so the user's repository is reached through a link in here. What is not in it, such as a second name
    for a model, stands in `aliases`: a second repository of the same server."""

    def __init__(self, repository: Path, backends: Path, run_id: str) -> None:
        self._repository = repository.absolute()
        if not self._repository.is_dir():
            raise UsageError(
                "not a model repository",
                where=repository,
                got="a file" if repository.exists() else "no such directory",
                expected="a directory with one directory per model",
                hint="make one with `tritune export SOURCE --repository REPO --name NAME`",
            )
        self.root = Path(tempfile.mkdtemp(prefix=f"{run_id}-", dir=_safe_temporary_directory()))
        self.models, self.aliases = self.root / "models", self.root / "aliases"
        self.backends, self.log = self.root / "backends", self.root / "server.log"
        self.models.symlink_to(self._repository)
        self.aliases.mkdir()
        self.backends.symlink_to(backends.absolute())

    def model_names(self) -> list[str]:
        """Directories of the repository that Triton can make a model of: a config, or a model file it knows."""
        directories = (d for d in self._repository.iterdir() if d.is_dir() and not d.name.startswith("."))
        return sorted(directory.name for directory in directories if _is_model(directory))

    def require(self, name: str) -> None:
        """Raise UsageError for a name that cannot be served or that is not in the repository, OSError when the
        workspace is gone."""
        check_model_name(name)
        self.models.lstat()
        if (self.models / name).is_dir() or (self.aliases / name).is_dir():
            return
        known = sorted(d.name for d in self._repository.iterdir() if d.is_dir() and _is_model_name(d.name))
        raise UsageError(
            "no such model in the repository",
            where=self._repository,
            got=f"`{name}`",
            expected=", ".join(known) or "a directory per model; this one has none",
            hint=suggest(name, known),
        )

    def require_code(self, name: str, config: ModelConfig | None) -> None:
        """Raise Refused for a Python model whose file is not there: its load would never end. `config` is in place of
        the one on disk."""
        folder = self.models / name if (self.models / name).is_dir() else self.aliases / name
        try:
            config = config or read_config(folder)
        except UsageError:  # for Triton to say
            return
        if config.platform == "ensemble":  # which Triton refuses with any backend, before it looks for code
            return
        file = config.default_model_filename or "model.py"
        versions = sorted((entry for entry in folder.iterdir() if entry.name.isdecimal()), key=lambda e: int(e.name))
        if not versions or backend_of(config) != "python" or config.HasField("version_policy"):
            return
        if not (versions[-1] / file).exists():
            what = f"'{self.for_user(str(versions[-1] / file))}' is not there, and the Python backend would wait for "
            raise Refused(f"{what}a model without its code for ever", where=f"loading `{name}`")

    def alias(self, name: str, model_dir: Path) -> None:
        """A second model directory with the same files as `model_dir`, except for its configuration."""
        check_model_name(name)
        alias = self.aliases / name
        if alias.exists() or (self.models / name).exists():
            raise UsageError("the served repository already has a model of this name", got=f"`{name}`")
        if not model_dir.is_dir():
            raise UsageError("not a model directory", where=model_dir, expected="REPO/NAME, as in the repository")
        alias.mkdir()
        for entry in model_dir.absolute().iterdir():
            if entry.name not in _CONFIG_ENTRIES:
                (alias / entry.name).symlink_to(entry)

    def for_user(self, text: str) -> str:
        """A text of the server with the repository's real path in place of the private one."""
        return text.replace(f"{self.models}/", f"{self._repository}/")

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


def _is_model(directory: Path) -> bool:
    if not os.access(directory, os.R_OK | os.X_OK):  # such as lost+found of a volume
        return False
    files = [directory / CONFIG_FILE, *(directory.glob("configs/*.pbtxt"))]
    versions = [entry for entry in directory.iterdir() if entry.name.isdecimal()]
    return any(path.exists() for path in [*files, *(version / name for version in versions for name in _MODEL_FILES)])


def _is_model_name(name: str) -> bool:
    try:
        check_model_name(name)
    except UsageError:
        return False
    return True


def _safe_temporary_directory() -> str:
    """The system's temporary directory if its path is plain ASCII, else /tmp."""
    chosen = tempfile.gettempdir()
    return chosen if _SAFE_PATH.fullmatch(chosen) else "/tmp"
