"""`tritune.lock`: what each step of a build was done from, what it made and what came out. Layer: project.

It is committed beside the project file, so that `build --frozen` can tell whether all that is committed fits together.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tooling.errors import UsageError
from tooling.repository import read_json, require_format, write_atomic, writing

LOCK_NAME: Final = "tritune.lock"
SCHEMA_VERSION: Final = 1
_HINT: Final = "take it back from version control, or remove it: the next build does every step again"


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was done: `facts` it follows from and digests of the files it made, both by name; `result` is what
    it answered, as far as other steps and readers need it."""

    facts: Mapping[str, str]
    outputs: Mapping[str, str]
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Lock:
    """The steps done so far, by name, on the machine that `hardware` names."""

    path: Path
    hardware: str
    steps: dict[str, Done] = field(default_factory=dict)

    def write(self) -> None:
        """Write the file whole. Raises UsageError when it cannot be written."""
        data = {
            "schema_version": SCHEMA_VERSION,
            "hardware": self.hardware,
            "steps": {name: asdict(done) for name, done in sorted(self.steps.items())},
        }
        write_atomic(self.path, json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n")

    def studies(self, *, sized: bool = False) -> dict[str, str]:
        """The directory of each tuned model's study; with `sized` of those only that tell what a server carries."""
        return {
            name.removesuffix(" tune"): str(done.result["study"])
            for name, done in self.steps.items()
            if name.endswith(" tune") and "study" in done.result and (done.result.get("capacity_rps") or not sized)
        }


def read_lock(path: Path, hardware: str) -> Lock:
    """The lock in a file; an empty one, of this `hardware`, where there is none.

    Raises UsageError for a file that is damaged or in another format.
    """
    if not path.exists():
        return Lock(path, hardware)
    data = read_json(path, expected="the lock of a build", hint=_HINT)
    version = data.get("schema_version") if isinstance(data, dict) else None
    require_format(version, SCHEMA_VERSION, what="the lock", where=path, hint=_HINT)
    try:
        steps = {
            str(name): Done(dict(done["facts"]), dict(done["outputs"]), dict(done["result"]))
            for name, done in data["steps"].items()  # type: ignore[index]
        }
        return Lock(path, str(data["hardware"]), steps)  # type: ignore[index]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError("a damaged lock", where=path, got=repr(error), hint=_HINT) from None


@contextmanager
def only_build(directory: Path) -> Iterator[None]:
    """Hold a project for one build; `directory` is made. Raises UsageError while another build runs."""
    path = directory / "running"
    with writing(path):
        directory.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                "another build of this project runs",
                where=path,
                expected="one at a time",
                hint="wait until it ends: whatever it finishes, the next build finds done",
            ) from error
        yield
