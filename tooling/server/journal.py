"""What a running server must be given back: its own configuration, kept on disk while another one is loaded. Layer:
server."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tooling.errors import Refused, TrituneError, UsageError
from tooling.repository import writing
from tooling.server.running import RunningServer

Config = dict[str, Any]


def journals() -> Path:
    """The directory of all journals of this user."""
    import platformdirs

    return platformdirs.user_state_path("tritune") / "restore"


class Journal:
    """The original configuration of one model on one server, on disk before the first change and until it is back.

    A context manager that holds a lock: one process changes a model at a time. Leaving it, for whatever reason, loads
    the original again if it was changed; a process that was killed leaves the journal for `tritune restore`.
    Entering raises UsageError while another process holds it, or when an earlier one left it.
    """

    def __init__(self, server: RunningServer, model: str, directory: Path | None = None) -> None:
        self._server, self._model = server, model
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", f"{server.url}-{model}")
        self.path = (directory or journals()) / f"{safe}.json"
        self._file: IO[bytes] | None = None
        self._state: dict[str, Any] = {}

    def __enter__(self) -> Journal:
        self._file = _locked(self.path)
        if self.path.stat().st_size:
            self._close()
            raise UsageError(
                "an earlier run left this model with another configuration",
                where=f"{self._server.url}, `{self._model}`",
                got=self.path,
                hint="give it back with `tritune restore`",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._state:
                give_back(self._server, self._state)
            self.path.unlink(missing_ok=True)
        finally:
            self._close()

    def change(self, original: Config, config: Config) -> Config:
        """Load `config`, with `original` on disk first; the configuration then in force. Raises Refused."""
        self._write({"original": original, "loaded": None})
        self._server.load(self._model, config)
        loaded = self._server.model_config(self._model)
        self._write({"original": original, "loaded": loaded})
        return loaded

    def _write(self, state: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._state = {"url": self._server.url, "model": self._model, **state}
        with writing(self.path):
            self._file.seek(0)
            self._file.write(json.dumps(self._state).encode())
            self._file.truncate()
            self._file.flush()
            os.fsync(self._file.fileno())

    def _close(self) -> None:
        if self._file:
            self._file.close()


def give_back(server: RunningServer, state: Mapping[str, Any], *, force: bool = False) -> bool:
    """Load the original again; False when it is in force already.

    Raises Refused when the configuration in force is neither the original nor the one that was loaded: then somebody
    else has changed it since, or another server has the address.
    """
    model, original, loaded = state["model"], state["original"], state["loaded"]
    current = server.model_config(model)
    if current == original:
        return False
    if loaded is not None and current != loaded and not force:
        raise Refused(
            "somebody else has changed the configuration since, or another server has this address: nothing is loaded",
            where=f"{server.url}, `{model}`",
            hint="to load the configuration of before nevertheless: `tritune restore --force`",
        )
    server.load(model, original)
    return True


def restore(
    directory: Path | None = None, *, force: bool = False, tell: Callable[[str], None] = lambda text: None
) -> list[tuple[str, bool]]:
    """Give back what killed runs left; for each model its `URL, NAME` and whether it had to be loaded.

    Each is tried, whatever becomes of the others, and told as it is given back. Then raises the first error, with the
    problems of all: UsageError for a journal that a running process holds or that is damaged; as `give_back` otherwise.
    """
    found, errors = [], list[TrituneError]()
    for path in sorted((directory or journals()).glob("*.json")):
        try:
            with _locked(path):
                state = _read(path)
                if state:
                    changed = give_back(RunningServer(state["url"]), state, force=force)
                    found.append((f"{state['url']}, `{state['model']}`", changed))
                    tell(outcome(*found[-1]))
                path.unlink(missing_ok=True)
        except TrituneError as error:
            errors.append(error)
    if errors:
        raise type(errors[0])(problems=[problem for error in errors for problem in error.problems])
    return found


def outcome(model: str, loaded: bool) -> str:
    """What became of a model, in words."""
    return f"{model}: {'its own configuration is loaded again' if loaded else 'had its own configuration already'}"


def _locked(path: Path) -> IO[bytes]:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("r+b" if path.exists() else "w+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino != os.fstat(file.fileno()).st_ino:  # its holder ended and took it away meanwhile
            raise FileNotFoundError
    except (BlockingIOError, FileNotFoundError) as error:
        file.close()
        raise UsageError(
            "another process changes this model's configuration",
            where=path,
            expected="one at a time",
            hint="wait until it ends",
        ) from error
    return file


def _read(path: Path) -> dict[str, Any] | None:
    """The state of a journal; None for one that was never written to."""
    text = path.read_bytes()
    if not text:
        return None
    try:
        state = json.loads(text)
        names = [state[name] for name in ("url", "model")]
        if all(isinstance(name, str) for name in names) and isinstance(state["original"], dict):
            return {"loaded": None, **state}
    except (ValueError, LookupError, TypeError):
        pass
    raise UsageError(
        "the journal is damaged",
        where=path,
        got=repr(text[:40].decode(errors="replace")),
        hint="load the model's configuration by hand, then delete this file",
    )
